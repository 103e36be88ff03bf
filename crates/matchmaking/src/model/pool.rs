//! Pools: which tickets a match function is given.
//!
//! The rules are Open Match's. All filters of a pool must hold. A ticket is out if it lacks the field, or if the field
//! is NaN. Strings and tags are compared exactly. Times are strict: a ticket created exactly at the moment is not
//! "created before" it.

use std::fmt;
use std::time::Duration;

use super::{Moment, Ticket};

/// The tickets that pass all filters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pool {
    pub name: String,
    pub filters: Vec<Filter>,
}

/// One condition of a pool.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    Double {
        field: String,
        min: f64,
        max: f64,
        bounds: Bounds,
    },
    Text {
        field: String,
        value: String,
    },
    /// The text is another one, or missing. Open Match has no such filter.
    OtherText {
        field: String,
        value: String,
    },
    Tag(String),
    CreatedBefore(Moment),
    CreatedAfter(Moment),
    /// Has waited at least this long.
    MinWait(Duration),
    /// Has waited at most this long.
    MaxWait(Duration),
}

/// Which ends of a range are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    Closed,
    OpenMin,
    OpenMax,
    Open,
}

impl Pool {
    pub fn admits(&self, ticket: &Ticket, now: Moment) -> bool {
        self.filters.iter().all(|filter| filter.admits(ticket, now))
    }

    /// Returns the filters that keep this ticket out.
    pub fn obstacles<'a>(&'a self, ticket: &'a Ticket, now: Moment) -> impl Iterator<Item = &'a Filter> {
        self.filters.iter().filter(move |filter| !filter.admits(ticket, now))
    }
}

impl Filter {
    pub fn admits(&self, ticket: &Ticket, now: Moment) -> bool {
        match self {
            Self::Double { field, min, max, bounds } => ticket
                .fields
                .doubles
                .get(field)
                // Comparisons with NaN are false on either side.
                .is_some_and(|value| match bounds {
                    Bounds::Closed => min <= value && value <= max,
                    Bounds::OpenMin => min < value && value <= max,
                    Bounds::OpenMax => min <= value && value < max,
                    Bounds::Open => min < value && value < max,
                }),
            Self::Text { field, value } => ticket.fields.strings.get(field) == Some(value),
            Self::OtherText { field, value } => ticket.fields.strings.get(field) != Some(value),
            Self::Tag(tag) => ticket.fields.tags.contains(tag),
            Self::CreatedBefore(moment) => ticket.created < *moment,
            Self::CreatedAfter(moment) => ticket.created > *moment,
            Self::MinWait(wait) => ticket.created.age(now) >= *wait,
            Self::MaxWait(wait) => ticket.created.age(now) <= *wait,
        }
    }
}

/// Formats the filter as it is written in the configuration.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Double { field, min, max, bounds } => {
                let (open, close) = match bounds {
                    Bounds::Closed => ('[', ']'),
                    Bounds::OpenMin => ('(', ']'),
                    Bounds::OpenMax => ('[', ')'),
                    Bounds::Open => ('(', ')'),
                };
                write!(f, "{field} in {open}{min}, {max}{close}")
            }
            Self::Text { field, value } => write!(f, "{field} = {value}"),
            Self::OtherText { field, value } => write!(f, "{field} != {value}"),
            Self::Tag(tag) => write!(f, "tag {tag}"),
            Self::CreatedBefore(moment) => write!(f, "created before {}", moment.nanos()),
            Self::CreatedAfter(moment) => write!(f, "created after {}", moment.nanos()),
            Self::MinWait(wait) => write!(f, "waited >= {}", config::show_duration(*wait)),
            Self::MaxWait(wait) => write!(f, "waited <= {}", config::show_duration(*wait)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_nanos(0);

    fn ticket(change: impl FnOnce(&mut Ticket)) -> Ticket {
        let mut ticket = Ticket::default();
        change(&mut ticket);
        ticket
    }

    fn number(value: f64) -> Ticket {
        ticket(|ticket| ticket.fields.doubles = [("mmr".to_owned(), value)].into())
    }

    fn range(min: f64, max: f64, bounds: Bounds) -> Filter {
        Filter::Double { field: "mmr".to_owned(), min, max, bounds }
    }

    #[test]
    fn each_bounds_kind_excludes_its_ends() {
        let inside =
            |bounds| [1.0, 1.5, 2.0].map(|value| range(1.0, 2.0, bounds).admits(&number(value), NOW));
        assert_eq!(inside(Bounds::Closed), [true, true, true]);
        assert_eq!(inside(Bounds::OpenMin), [false, true, true]);
        assert_eq!(inside(Bounds::OpenMax), [true, true, false]);
        assert_eq!(inside(Bounds::Open), [false, true, false]);
        for bounds in [Bounds::Closed, Bounds::OpenMin, Bounds::OpenMax, Bounds::Open] {
            assert!(
                !range(1.0, 2.0, bounds).admits(&number(0.9), NOW)
                    && !range(1.0, 2.0, bounds).admits(&number(2.1), NOW)
            );
        }
    }

    #[test]
    fn range_may_be_a_single_number_or_unbounded() {
        assert!(range(5.0, 5.0, Bounds::Closed).admits(&number(5.0), NOW));
        assert!(!range(5.0, 5.0, Bounds::OpenMax).admits(&number(5.0), NOW));
        assert!(range(f64::NEG_INFINITY, f64::INFINITY, Bounds::Open).admits(&number(0.0), NOW));
        assert!(!range(f64::NEG_INFINITY, f64::INFINITY, Bounds::Open).admits(&number(f64::INFINITY), NOW));
        assert!(range(f64::NEG_INFINITY, f64::INFINITY, Bounds::Closed).admits(&number(f64::INFINITY), NOW));
        assert!(!range(2.0, 1.0, Bounds::Closed).admits(&number(1.5), NOW));
        assert!(range(-0.0, 0.0, Bounds::Closed).admits(&number(0.0), NOW));
    }

    #[test]
    fn nan_never_matches_a_range() {
        let nan = f64::NAN;
        for bounds in [Bounds::Closed, Bounds::OpenMin, Bounds::OpenMax, Bounds::Open] {
            for (min, max, value) in [
                (1.0, 2.0, nan),
                (nan, 2.0, 1.5),
                (1.0, nan, 1.5),
                (nan, nan, nan),
                (f64::NEG_INFINITY, f64::INFINITY, nan),
            ] {
                assert!(
                    !range(min, max, bounds).admits(&number(value), NOW),
                    "{min} {max} {value} {bounds:?}"
                );
            }
        }
    }

    #[test]
    fn ticket_without_the_field_is_out() {
        let text = Filter::Text { field: "mode".to_owned(), value: String::new() };
        for filter in
            [range(f64::NEG_INFINITY, f64::INFINITY, Bounds::Closed), text, Filter::Tag(String::new())]
        {
            assert!(!filter.admits(&Ticket::default(), NOW), "{filter}");
        }
    }

    #[test]
    fn strings_and_tags_are_compared_exactly() {
        let ticket = ticket(|ticket| {
            ticket.fields.strings.insert("mode".to_owned(), "Ranked".to_owned());
            ticket.fields.tags = vec!["beta".to_owned(), "eu".to_owned()];
        });
        let text = |value: &str| {
            Filter::Text { field: "mode".to_owned(), value: value.to_owned() }.admits(&ticket, NOW)
        };
        assert_eq!([text("Ranked"), text("ranked"), text("Ranked "), text("")], [true, false, false, false]);
        let tag = |tag: &str| Filter::Tag(tag.to_owned()).admits(&ticket, NOW);
        assert_eq!([tag("eu"), tag("EU"), tag("e"), tag("mode")], [true, false, false, false]);
    }

    #[test]
    fn created_before_and_after_are_strict() {
        let at = |nanos| ticket(|ticket| ticket.created = Moment::from_nanos(nanos));
        let before = Filter::CreatedBefore(Moment::from_nanos(10));
        let after = Filter::CreatedAfter(Moment::from_nanos(10));
        assert_eq!([9, 10, 11].map(|nanos| before.admits(&at(nanos), NOW)), [true, false, false]);
        assert_eq!([9, 10, 11].map(|nanos| after.admits(&at(nanos), NOW)), [false, false, true]);
    }

    #[test]
    fn wait_is_measured_from_creation() {
        let ticket = ticket(|ticket| ticket.created = Moment::from_nanos(0));
        let after = |filter: Filter, millis: i64| filter.admits(&ticket, Moment::from_micros(millis * 1000));
        let wait = Duration::from_millis(10);
        assert_eq!([9, 10, 11].map(|now| after(Filter::MinWait(wait), now)), [false, true, true]);
        assert_eq!([9, 10, 11].map(|now| after(Filter::MaxWait(wait), now)), [true, true, false]);
    }

    #[test]
    fn pool_requires_all_filters_and_admits_all_tickets_without_any() {
        let both = Pool {
            name: "both".to_owned(),
            filters: vec![range(1.0, 2.0, Bounds::Closed), Filter::Tag("eu".to_owned())],
        };
        let mut ticket = number(1.5);
        assert!(Pool::default().admits(&ticket, NOW) && !both.admits(&ticket, NOW));
        assert_eq!(both.obstacles(&ticket, NOW).map(ToString::to_string).collect::<Vec<_>>(), ["tag eu"]);
        ticket.fields.tags.push("eu".to_owned());
        assert!(both.admits(&ticket, NOW));
    }
}
