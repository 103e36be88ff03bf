//! Steps: what happened to a player, an event, an order, a ticket.

use std::collections::HashMap;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;

use crate::{Link, Tone};

/// How far the clocks of stores and processes may differ for steps to be sorted by stage instead of by time. The time of a publish is also
/// late by up to the period in which completions are batched.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);

/// What steps are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Everything that concerns a user, newest first.
    User(Uuid),
    /// The thing with this id: an event, an order, a ticket, a match, a notification or a request.
    Id(String),
}

/// How far an event has come with a step. Steps of one event happen in this order, whatever the clocks say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The change that causes the event, or anything that is not about an event.
    #[default]
    Change,
    Appended,
    Published,
    Received,
    InInbox,
    Delivered,
    /// The player has seen, read or archived the notification.
    Marked,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::Change,
        Self::Appended,
        Self::Published,
        Self::Received,
        Self::InInbox,
        Self::Delivered,
        Self::Marked,
    ];
}

/// Something that happened, as a store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub at: Timestamp,
    /// The store where it happened: `sql`, `redis` or `bus`.
    pub store: &'static str,
    /// The service that knows it.
    pub part: &'static str,
    /// A short sentence: "Granted skin-dragon (version 2)".
    pub what: String,
    pub tone: Tone,
    /// Where to look closer.
    pub link: Option<Link>,
    /// Ids of other things that belong to the same story. A trace follows them.
    pub follow: Vec<String>,
    pub stage: Stage,
    /// The event that this step belongs to, if the service knows it.
    pub event: Option<Uuid>,
}

impl Step {
    pub fn new(at: Timestamp, store: &'static str, part: &'static str, what: impl Into<String>) -> Self {
        Self {
            at,
            store,
            part,
            what: what.into(),
            tone: Tone::Neutral,
            link: None,
            follow: Vec::new(),
            stage: Stage::Change,
            event: None,
        }
    }

    pub const fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    pub fn link(mut self, text: impl Into<String>, href: impl Into<String>) -> Self {
        self.link = Some(Link::new(text, href));
        self
    }

    pub fn follow(mut self, id: impl ToString) -> Self {
        self.follow.push(id.to_string());
        self
    }

    pub const fn stage(mut self, stage: Stage) -> Self {
        self.stage = stage;
        self
    }

    /// Names the event that this step belongs to.
    pub const fn of_event(mut self, event: Uuid) -> Self {
        self.event = Some(event);
        self
    }

    /// Sorts steps by time, and steps of the same time by stage. Steps of one event are sorted by stage if their times differ by less than
    /// clocks may differ. Equal steps keep their order.
    pub fn sort(steps: &mut Vec<Self>) {
        let mut times: Vec<Timestamp> = steps.iter().map(|step| step.at).collect();
        // A step is no later than the steps of later stages of the same event.
        let mut bounds: HashMap<Uuid, Timestamp> = HashMap::new();
        for stage in Stage::ALL.into_iter().rev() {
            let of_stage = || {
                let of_stage = steps.iter().enumerate().filter(|(_, step)| step.stage == stage);
                of_stage.filter_map(|(index, step)| Some((index, step.event?)))
            };
            for (index, event) in of_stage() {
                if let Some(bound) = bounds.get(&event)
                    && times[index] > *bound
                    && times[index].distance(*bound) <= MAX_CLOCK_DIFFERENCE
                {
                    times[index] = *bound;
                }
            }
            for (index, event) in of_stage() {
                let bound = bounds.entry(event).or_insert(times[index]);
                *bound = times[index].min(*bound);
            }
        }
        let mut sorted: Vec<(Timestamp, Self)> = times.into_iter().zip(std::mem::take(steps)).collect();
        sorted.sort_by_key(|(at, step)| (*at, step.stage));
        *steps = sorted.into_iter().map(|(_, step)| step).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(at: i64, stage: Stage, event: Option<u128>) -> Step {
        let step = Step::new(Timestamp::from_millis(at), "sql", "test", format!("{stage:?}")).stage(stage);
        Step { event: event.map(Uuid::from_u128), ..step }
    }

    fn sorted(mut steps: Vec<Step>) -> Vec<(i64, String)> {
        Step::sort(&mut steps);
        steps.into_iter().map(|step| (step.at.as_millis(), step.what)).collect()
    }

    #[test]
    fn steps_of_the_same_time_are_sorted_by_stage() {
        use Stage::{Appended, Change, InInbox, Published, Received};
        let steps = [InInbox, Published, Change, Received, Appended].map(|stage| step(7, stage, None));
        let found: Vec<String> = sorted(steps.to_vec()).into_iter().map(|(_, what)| what).collect();
        assert_eq!(found, ["Change", "Appended", "Published", "Received", "InInbox"]);
    }

    #[test]
    fn steps_of_an_event_are_in_causal_order_although_clocks_differ() {
        let steps = vec![
            step(100, Stage::Change, Some(1)),
            step(90, Stage::Appended, Some(1)),
            step(130, Stage::Published, Some(1)),
            step(105, Stage::Received, Some(1)),
            step(106, Stage::InInbox, Some(1)),
            step(104, Stage::Delivered, Some(1)),
            step(103, Stage::Delivered, Some(1)),
            // Another event, and a step without one, stay at their times.
            step(102, Stage::Published, Some(2)),
            step(95, Stage::Change, None),
        ];
        let expected = [
            (100, "Change"),
            (90, "Appended"),
            (95, "Change"),
            (102, "Published"),
            (130, "Published"),
            (105, "Received"),
            (106, "InInbox"),
            (103, "Delivered"),
            (104, "Delivered"),
        ];
        assert_eq!(sorted(steps), expected.map(|(at, what)| (at, what.to_owned())));
    }

    #[test]
    fn an_event_that_was_published_again_much_later_keeps_its_time() {
        let steps = vec![step(60_000, Stage::Published, Some(1)), step(10, Stage::InInbox, Some(1))];
        assert_eq!(sorted(steps), [(10, "InInbox".to_owned()), (60_000, "Published".to_owned())]);
    }
}
