//! The metrics of definitions.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub struct DefinitionMetrics {
    pub(super) active: Gauge,
    pub(super) stored: Gauge,
    pub(super) rejected: Gauge,
}

impl DefinitionMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let this = Self::default();
        let registry = registry.sub_registry_with_prefix("playhouse_matchmaking_definitions");
        registry.register(
            "active_revision",
            "Revision of the rule sets, profiles and queues that this process follows",
            this.active.clone(),
        );
        registry.register(
            "stored_revision",
            "Newest stored revision of rule sets, profiles and queues",
            this.stored.clone(),
        );
        registry.register(
            "rejected",
            "1 while this process cannot follow the stored definitions",
            this.rejected.clone(),
        );
        this
    }
}
