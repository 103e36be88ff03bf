//! Settings for Directors.

use std::time::Duration;

use ::config::{InvalidValue, Reader, Section, Setting, Value};

use crate::backend::{BackendConfig, EvaluatorAddress, HostRules};

impl Section for BackendConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (millisecond, day) = (Duration::from_millis(1), Duration::from_secs(86_400));
        let config = Self {
            registration_window: reader.get_within("registration_window", Duration::ZERO..=day),
            proposal_window: reader.get_within("proposal_window", millisecond..=day),
            evaluator: reader.optional("evaluator"),
            evaluator_timeout: reader.get_within("evaluator_timeout", millisecond..=day),
            max_proposals: reader.get_within("max_proposals", 1..=10_000_000) as usize,
            hosts: HostRules { allowed: reader.get("function_hosts") },
        };
        let names = ["registration_window", "proposal_window"];
        reader.check(&names, config.registration_window <= config.proposal_window, || {
            "registration_window must not be longer than proposal_window".to_owned()
        });
        config
    }
}

impl Setting for EvaluatorAddress {
    fn expected() -> String {
        "an address such as \"grpc://evaluator:50508\" or \"http://evaluator:51508\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        String::parse(value)?.parse().map_err(|()| InvalidValue::default())
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}
