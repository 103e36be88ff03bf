//! The kinds of events, for the generated event reference.

use serde_json::Value;

/// A kind of event that a service publishes.
#[derive(Clone, Debug, PartialEq)]
pub struct EventKind {
    /// `playhouse.match.made.v1`
    pub kind: &'static str,
    /// What it means, in a sentence.
    pub summary: &'static str,
    /// What identifies the key. Events with the same key are delivered in order.
    pub key: &'static str,
    /// The self-contained JSON schema of its data.
    pub schema: Value,
}
