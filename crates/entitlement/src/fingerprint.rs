//! Fingerprints, by which repeated requests are recognised.

use base::Timestamp;
use db::RequestFingerprint;
use serde_json::{Value, json};

use crate::model::{Action, Change, Holding};

/// Computes the fingerprint of a request. It must never change (see [`RequestFingerprint`]); a test pins it.
pub(crate) fn fingerprint(changes: &[Change]) -> RequestFingerprint {
    let describe = |list: RequestFingerprint, change: &Change| {
        let Change { holding: Holding { user, account, resource }, action, occurred_at, reference } = change;
        list.text(action.word())
            .id(user.as_uuid())
            .id(account.as_uuid())
            .text(resource)
            .option(action.quantity(), RequestFingerprint::integer)
            .option(valid_until(action), RequestFingerprint::integer)
            .integer(occurred_at.as_millis())
            .option(reference.as_deref(), RequestFingerprint::text)
    };
    RequestFingerprint::new("entitlement.apply").list(changes.iter(), describe)
}

/// Returns the bytes whose SHA-256 is the legacy fingerprint of a request (see [`KeyLookup::or_legacy`](db::KeyLookup::or_legacy)).
pub(crate) fn legacy_description(changes: &[Change]) -> Vec<u8> {
    let describe = |change: &Change| {
        let Change { holding: Holding { user, account, resource }, action, occurred_at, reference } = change;
        json!([
            action.word(),
            user.as_uuid(),
            account.as_uuid(),
            resource,
            action.quantity(),
            valid_until(action),
            occurred_at.as_millis(),
            reference,
        ])
    };
    Value::from_iter(changes.iter().map(describe)).to_string().into_bytes()
}

fn valid_until(action: &Action) -> Option<i64> {
    match action {
        Action::Grant { valid_until, .. } => valid_until.map(Timestamp::as_millis),
        Action::Revoke { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use account::{AccountId, UserId};
    use base::id::Uuid;

    use super::*;

    /// The expected values were computed independently. If one changes, a retry from before an upgrade is refused.
    #[test]
    fn fingerprint_of_a_request_never_changes() {
        let holding = Holding {
            user: UserId::from_uuid(Uuid::from_u128(1)),
            account: AccountId::from_uuid(Uuid::from_u128(2)),
            resource: "sword".to_owned(),
        };
        let grant = Change {
            holding: holding.clone(),
            action: Action::Grant { quantity: Some(3), valid_until: Some(Timestamp::from_millis(5_000)) },
            occurred_at: Timestamp::from_millis(1_000),
            reference: Some("order 7".to_owned()),
        };
        let revoke = Change {
            holding,
            action: Action::Revoke { quantity: None },
            occurred_at: Timestamp::from_millis(2_000),
            reference: None,
        };
        let changes = [grant, revoke];
        let hex: String = fingerprint(&changes).finish().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "65ce463c0c29f046b1c6d6aea340b1b1b72c7ca11aff2c756795ce21b6d2f5ca");
        let legacy = r#"[["grant","00000000-0000-0000-0000-000000000001","00000000-0000-0000-0000-000000000002","sword",3,5000,1000,"order 7"],["revoke","00000000-0000-0000-0000-000000000001","00000000-0000-0000-0000-000000000002","sword",null,null,2000,null]]"#;
        assert_eq!(String::from_utf8(legacy_description(&changes)).unwrap(), legacy);
    }
}
