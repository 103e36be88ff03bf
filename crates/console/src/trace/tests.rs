//! Traces over services with fixed steps.

use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use service::{Context, OpenError, Service, ServiceParts, StatusError};

use super::*;

const USER: Uuid = Uuid::from_u128(1);
const EVENT: Uuid = Uuid::from_u128(2);

/// A service that answers with a function.
struct Fixed(&'static str, fn(&Subject) -> Vec<Step>);

impl Service for Fixed {
    fn name(&self) -> &'static str {
        self.0
    }

    fn steps<'a>(
        &'a self,
        _: &'a Provided,
        subject: &'a Subject,
        _: u32,
    ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
        async move { Ok((self.1)(subject)) }.boxed()
    }

    fn open<'a>(&'a self, _: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        unreachable!("these services are never opened")
    }
}

fn step(at: i64, part: &'static str, what: &str) -> Step {
    Step::new(Timestamp::from_millis(at), "sql", part, what)
}

fn is_id(subject: &Subject, id: impl ToString) -> bool {
    *subject == Subject::Id(id.to_string())
}

/// A shop whose grant causes an event.
fn shop(subject: &Subject) -> Vec<Step> {
    let grant = step(100, "shop", "granted").of_event(EVENT).follow(EVENT);
    let is_known = *subject == Subject::User(USER) || is_id(subject, EVENT);
    if is_known { vec![grant] } else { Vec::new() }
}

/// An outbox that records late that the event was published.
fn outbox(subject: &Subject) -> Vec<Step> {
    let step = |at, what, stage| step(at, "outbox", what).stage(stage).of_event(EVENT).follow(EVENT);
    let steps = vec![step(140, "published", Stage::Published), step(101, "appended", Stage::Appended)];
    if is_id(subject, EVENT) { steps } else { Vec::new() }
}

/// Inboxes, which do not know the event of a notification.
fn inbox(subject: &Subject) -> Vec<Step> {
    let notification = || step(120, "inbox", "in the inbox").stage(Stage::InInbox).follow("n");
    if *subject == Subject::User(USER) || is_id(subject, "n") {
        vec![notification()]
    } else if is_id(subject, EVENT) {
        vec![step(119, "inbox", "received").stage(Stage::Received).of_event(EVENT).follow("n")]
    } else {
        Vec::new()
    }
}

static SERVICES: Services =
    Services(&[&Fixed("shop", shop), &Fixed("outbox", outbox), &Fixed("inbox", inbox)]);

async fn trace(services: Services, id: impl ToString) -> Trace {
    Tracer::new(services, Provided::default()).trace(&id.to_string()).await
}

fn texts(trace: &Trace) -> Vec<&str> {
    trace.steps.iter().map(|step| step.what.as_str()).collect()
}

const WAY: [&str; 5] = ["granted", "appended", "published", "received", "in the inbox"];

#[tokio::test]
async fn event_is_traced_in_causal_order_although_its_publish_was_recorded_late() {
    let found = trace(SERVICES, EVENT).await;
    assert_eq!(texts(&found), WAY);
    assert_eq!(found.ids, [EVENT.to_string(), "n".to_owned()]);
    assert!(!found.is_cut && found.failed.is_empty());
}

#[tokio::test]
async fn user_is_traced_through_the_events_of_the_user_and_each_step_is_shown_once() {
    let found = trace(SERVICES, USER).await;
    assert_eq!(texts(&found), WAY);
    assert_eq!(found.ids[0], USER.to_string());
}

#[tokio::test]
async fn steps_of_an_unknown_id_are_none_and_the_answer_says_what_can_be_traced() {
    let found = trace(SERVICES, "nothing").await;
    assert!(found.steps.is_empty());
    let Json(answer) =
        show(Open(Tracer::new(SERVICES, Provided::default())), Path("nothing".to_owned())).await;
    assert!(answer["detail"].as_str().unwrap().contains("outbox.retention"), "{answer}");
}

#[tokio::test]
async fn long_story_is_cut_and_says_so() {
    /// Each number leads to the next two.
    fn numbers(subject: &Subject) -> Vec<Step> {
        let Subject::Id(id) = subject else { return Vec::new() };
        let Ok(n) = id.parse::<i64>() else { return Vec::new() };
        vec![step(n, "numbers", id).follow(n + 1).follow(n + 2)]
    }
    static NUMBERS: Services = Services(&[&Fixed("numbers", numbers)]);
    let found = trace(NUMBERS, 1).await;
    assert_eq!((found.steps.len(), found.is_cut), (MAX_IDS, true));
    let request = ScreenRequest {
        parameters: Default::default(),
        query: [("id".to_owned(), "1".to_owned())].into_iter().collect(),
    };
    let view = view(Tracer::new(NUMBERS, Provided::default()), request).await.unwrap();
    let text = format!("{view:?}");
    assert!(text.contains("Only 40 connected ids were followed.") && text.contains("playhouse trace 1"));
}
