//! Kinds of events, for the document that lists them all.

use serde_json::Value;

/// A kind of event that a service tells.
#[derive(Clone, Debug, PartialEq)]
pub struct EventKind {
    /// `playhouse.match.made.v1`
    pub kind: &'static str,
    /// What it means, in a sentence.
    pub summary: &'static str,
    /// What the key is made of: events with the same key come in order.
    pub key: &'static str,
    /// The JSON schema of its data, complete in itself.
    pub schema: Value,
}
