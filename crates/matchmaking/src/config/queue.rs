//! Settings of the queues that players join.

use std::time::Duration;

use ::config::{Reader, Section};

use crate::players::{QUEUE_FIELD, Queue};

impl Section for Queue {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let queue = Self {
            allow_other_queues: reader.get("allow_other_queues"),
            numbers: reader.get("numbers"),
            strings: reader.get("strings"),
            tags: reader.get("tags"),
            cancel_when_gone: reader.optional("cancel_when_gone"),
            ticket_ttl: reader.optional("ticket_ttl"),
            max_party: reader.get_within("max_party", 1..=100) as usize,
        };
        reader.check(&["strings"], queue.strings.iter().all(|name| name != QUEUE_FIELD), || {
            format!("{QUEUE_FIELD:?} holds the name of the queue: players cannot set it")
        });
        for (name, length) in [("cancel_when_gone", queue.cancel_when_gone), ("ticket_ttl", queue.ticket_ttl)]
        {
            reader.check(&[name], length.is_none_or(|length| (second..=day).contains(&length)), || {
                "must be from 1s to 1d".to_owned()
            });
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use ::config::{Layers, Loaded, load};

    use super::*;

    /// A section with queues only.
    #[derive(Debug)]
    struct Queues(BTreeMap<String, Queue>);

    impl Section for Queues {
        fn read(reader: &mut Reader<'_>) -> Self {
            Self(reader.tables("queues"))
        }
    }

    fn queues(text: &str) -> Result<BTreeMap<String, Queue>, String> {
        let reference = "[queues.NAME]\nallow_other_queues = false\nnumbers = []\nstrings = []\ntags = []\n\
                         # cancel_when_gone = \"30s\"\n# ticket_ttl = \"10m\"\nmax_party = 1\n";
        let loaded = load(Layers::new(reference).with_file_text(Path::new("play.toml"), text));
        loaded.map(|Loaded { config: Queues(queues), .. }| queues).map_err(|problems| problems.to_string())
    }

    #[test]
    fn queues_are_read_with_the_fields_that_players_may_set() {
        let text = "[queues.duel]\n[queues.ranked]\nallow_other_queues = true\nnumbers = [\"mmr\"]\n\
                    strings = [\"region\"]\ntags = [\"beta\"]\ncancel_when_gone = \"20s\"\nticket_ttl = \"5m\"\nmax_party = 3\n";
        let queues = queues(text).unwrap();
        assert_eq!(queues["duel"], Queue::default());
        let ranked = Queue {
            allow_other_queues: true,
            numbers: vec!["mmr".to_owned()],
            strings: vec!["region".to_owned()],
            tags: vec!["beta".to_owned()],
            cancel_when_gone: Some(Duration::from_secs(20)),
            ticket_ttl: Some(Duration::from_secs(300)),
            max_party: 3,
        };
        assert_eq!(queues["ranked"], ranked);
    }

    #[test]
    fn invalid_queue_is_refused() {
        for (bad, why) in [
            ("strings = [\"queue\"]", "holds the name of the queue"),
            ("cancel_when_gone = \"10ms\"", "from 1s to 1d"),
            ("ticket_ttl = \"2d\"", "from 1s to 1d"),
        ] {
            let problems = queues(&format!("[queues.duel]\n{bad}\n")).unwrap_err();
            assert!(problems.contains(why), "{bad}: {problems}");
        }
    }
}
