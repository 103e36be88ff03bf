//! What `playhouse dev` matches if nothing is configured: duels of strangers, and duels of friends.

use std::sync::Arc;
use std::time::Duration;

use ::config::{Problems, show_duration};
use rules::RuleSet;
use url::Url;
use webhook::Secrets;

use super::Config;
use super::assigner::{AssignerConfig, AssignerKind};
use super::definitions::RuleSetText;

const ASSIGNER: &str = "demo";
const DUEL: &str = "duel";
/// The name of a queue, a profile and a rule set.
const FRIENDS: &str = "friends";

/// Every ticket but those of friends, also those of Open Match clients, which are in no queue.
const DUEL_PROFILE: &str = "\
players = 2
assigner = \"demo\"

[pools.all]
filters = [\"queue != friends\"]
";
const FRIENDS_PROFILE: &str = "\
function = \"rules\"
rules = \"friends\"
assigner = \"demo\"

[pools.friends]
filters = [\"queue = friends\"]
";
/// A party of two makes a match, in which its members play each other.
const FRIENDS_RULES: &str = "\
name = \"friends\"

[teams.friends]
min = 2
max = 2
";
const FRIENDS_QUEUE: &str = "max_party = 2\n";
/// How long friends have to accept.
const READY_CHECK: Duration = Duration::from_secs(20);

impl Config {
    /// Adds the demo unless profiles are configured. Its servers are requested at `url`.
    pub fn or_demo(mut self, url: Url, secrets: Secrets) -> Result<Self, Problems> {
        let has_queues = !self.queues.is_empty();
        if !has_queues {
            self.queues.insert(DUEL.to_owned(), self.queue_reader.add(DUEL, "")?);
        }
        if !self.demo || !self.profiles.is_empty() {
            return Ok(self);
        }
        let demo = AssignerConfig {
            kind: AssignerKind::Webhook,
            addresses: Vec::new(),
            url: Some(url),
            abandon_url: None,
            secrets: Some(secrets),
            timeout: None,
        };
        self.assigners.insert(ASSIGNER.to_owned(), demo);
        self.profiles.insert(DUEL.to_owned(), self.profile_reader.add(DUEL, DUEL_PROFILE)?);
        if !has_queues {
            self.add_friends()?;
        }
        Ok(self)
    }

    fn add_friends(&mut self) -> Result<(), Problems> {
        let ready_check = show_duration(READY_CHECK.min(self.rules.pending_timeout));
        let profile = format!("ready_check = {ready_check:?}\n{FRIENDS_PROFILE}");
        self.profiles.insert(FRIENDS.to_owned(), self.profile_reader.add(FRIENDS, &profile)?);
        self.queues.insert(FRIENDS.to_owned(), self.queue_reader.add(FRIENDS, FRIENDS_QUEUE)?);
        if let Ok(rules) = RuleSet::parse(FRIENDS_RULES) {
            let rules = RuleSetText { text: FRIENDS_RULES.to_owned(), rules: Arc::new(rules) };
            self.rule_sets.insert(FRIENDS.to_owned(), rules);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_set_of_friends_has_no_mistakes() {
        assert!(RuleSet::parse(FRIENDS_RULES).is_ok());
    }
}
