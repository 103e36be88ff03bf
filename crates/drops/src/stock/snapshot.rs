//! The counts of a stock as watchers see them, and the live topic that carries them.

use live::{Key, Message, Topic, Topics};
use serde::{Deserialize, Serialize};

use super::model::Levels;
use crate::DropId;

/// The counts of a drop's stock in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(rename = "drop_id", with = "id")]
    pub drop: DropId,
    /// Incremented by every transaction that changes the stock. The larger of two versions is newer.
    pub version: i64,
    /// `available + reserved + sold`.
    pub total: i64,
    pub available: i64,
    pub reserved: i64,
    pub sold: i64,
}

/// The topic of stock changes. A message is published after the commit.
#[derive(Debug)]
pub enum StockChanged {}

impl Topic for StockChanged {
    type Key = DropId;
    type Message = Snapshot;
    const NAME: &'static str = "stock";
}

impl Key for DropId {
    const CHANNEL: &'static str = "drop:";
}

/// A message that a feed receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StockUpdate(pub(super) Snapshot);

impl Topics for StockUpdate {
    type Key = DropId;

    fn read(message: &Message<DropId>) -> Option<Self> {
        message.read::<StockChanged>().map(|snapshot| Self(*snapshot))
    }
}

impl Snapshot {
    pub(super) const fn new(drop: DropId, levels: Levels) -> Self {
        let Levels { available, reserved, sold, version, .. } = levels;
        Self { drop, version, total: levels.total(), available, reserved, sold }
    }

    /// Returns the newer of two snapshots.
    pub(super) const fn or_newer(self, other: Self) -> Self {
        if other.version > self.version { other } else { self }
    }
}

mod id {
    use base::id::Uuid;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::DropId;

    pub(super) fn serialize<S: Serializer>(id: &DropId, serializer: S) -> Result<S::Ok, S::Error> {
        id.as_uuid().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DropId, D::Error> {
        Uuid::deserialize(deserializer).map(DropId::from_uuid)
    }
}

#[cfg(test)]
mod tests {
    use base::id::Uuid;

    use super::*;

    /// During an upgrade, processes of two versions exchange messages.
    #[test]
    fn wire_format_is_stable() {
        let drop = DropId::from_uuid(Uuid::from_u128(7));
        let levels = Levels { initial: 9, adjusted: -1, available: 5, reserved: 2, sold: 1, version: 4 };
        let snapshot = Snapshot::new(drop, levels);
        let text = r#"{"drop_id":"00000000-0000-0000-0000-000000000007","version":4,"total":8,"available":5,"reserved":2,"sold":1}"#;
        assert_eq!(serde_json::to_string(&snapshot).unwrap(), text);
        assert_eq!(serde_json::from_str::<Snapshot>(text).unwrap(), snapshot);
        assert_eq!(drop.channel(), "drop:00000000-0000-0000-0000-000000000007");
    }
}
