//! What of a rule set cannot work with the settings.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use rules::{RuleSet, Warning};

use super::Config;
use crate::engine::RuleFunction;
use crate::metrics::Metrics;
use crate::model::SearchFields;

impl Config {
    /// Returns the relaxations that no ticket lives to see, and what the rules read and no queue lets players send. Without queues
    /// nothing is known of what is sent.
    pub fn lint(&self, rules: &RuleSet) -> Vec<Warning> {
        let mut warnings = rules.lint_lifetime(self.longest_lifetime());
        if !self.queues.is_empty() {
            // The function reads the fields as it reads those of tickets. Nobody sees its metrics.
            let metrics = Metrics::new(&mut Registry::default());
            let function = RuleFunction::new("".into(), Arc::new(rules.clone()), metrics);
            let unsent = function.unsent(self.fields_of_queues());
            let message = |unsent: rules::Unsent| unsent.by("no queue of the configuration");
            warnings
                .extend(unsent.into_iter().map(message).map(|message| Warning { position: None, message }));
        }
        warnings
    }

    /// Returns how long a ticket lives in the queue where it lives longest.
    fn longest_lifetime(&self) -> Duration {
        let default = self.frontend.ticket_ttl;
        self.queues.values().map(|queue| queue.ticket_ttl.unwrap_or(default)).max().unwrap_or(default)
    }

    /// Returns all fields that players may set in any queue.
    fn fields_of_queues(&self) -> SearchFields {
        let mut fields = SearchFields::default();
        for queue in self.queues.values() {
            fields.doubles.extend(queue.numbers.iter().map(|name| (name.clone(), 0.0)));
            fields.strings.extend(queue.strings.iter().map(|name| (name.clone(), String::new())));
            fields.tags.extend(queue.tags.iter().cloned());
        }
        fields
    }
}
