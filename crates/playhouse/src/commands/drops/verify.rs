//! `playhouse drops verify-order`

use anyhow::{Context, bail};
use drops::model::{LineOrder, Place, Seed};
use drops::{Deviation, JoinRecord, verify_order};
use reqwest::Method;
use serde_json::{Value, json};

use super::{DropsClient, ExitStatus, encoded, output};
use crate::commands::{items, text};

/// The most deviations that are listed.
const LISTED: usize = 20;

pub(super) async fn run(client: &DropsClient, drop: &str) -> anyhow::Result<ExitStatus> {
    let found = client.admin.call(Method::GET, drop).await?;
    let order: LineOrder = serde_json::from_value(found["terms"]["order"].clone())
        .context("this version does not know the order of the drop")?;
    let seed = seed(&found, order)?;
    let entries = entries(client, drop).await?;
    let deviations = verify_order(order, items(&found["terms"], "lanes").len(), &seed, &entries);
    let listed: Vec<String> = deviations.iter().take(LISTED).map(describe).collect();
    let unlisted = deviations.len().saturating_sub(listed.len());
    let report = json!({ "entries": entries.len(), "deviations": listed, "unlisted": unlisted });
    client.print(&report, output::verified)?;
    Ok(if deviations.is_empty() { ExitStatus::Done } else { ExitStatus::Failed })
}

/// Reads the published seed and checks it against its hash. An order without a shuffle needs none.
fn seed(drop: &Value, order: LineOrder) -> anyhow::Result<Seed> {
    let Some(text) = drop["seed"].as_str() else {
        if order == LineOrder::FirstCome {
            return Ok(Seed::from_bytes([0; 32]));
        }
        bail!("the seed is published when the drop opens: run this again then");
    };
    let bytes: Option<Vec<u8>> =
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect();
    let bytes = bytes
        .and_then(|bytes| bytes.try_into().ok())
        .context("the seed does not have 64 hexadecimal digits")?;
    let seed = Seed::from_bytes(bytes);
    if Some(seed.hash().as_str()) != drop["seed_hash"].as_str() {
        bail!(
            "the seed does not match the hash that was published before the opening: the order cannot be trusted"
        );
    }
    Ok(seed)
}

/// Reads the entries, page by page.
async fn entries(client: &DropsClient, drop: &str) -> anyhow::Result<Vec<JoinRecord>> {
    let mut entries = Vec::new();
    let mut after = String::new();
    loop {
        let page = client.admin.call(Method::GET, &format!("{drop}/entries?limit=1000{after}")).await?;
        for entry in items(&page, "entries") {
            entries.push(read(entry).with_context(|| format!("cannot parse the entry {entry}"))?);
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", encoded(next)),
            None => return Ok(entries),
        }
    }
}

fn read(entry: &Value) -> Option<JoinRecord> {
    let user = text(&entry["user_id"]).parse().ok()?;
    let place = Place::from_stored(entry["place"].as_i64()?)?;
    Some(JoinRecord { user, number: entry["number"].as_i64()?, place })
}

fn describe(deviation: &Deviation) -> String {
    match deviation {
        Deviation::WrongValue { user, stored, computed } => {
            format!("{user} has the place {} instead of {}", stored.stored(), computed.stored())
        }
        Deviation::NoSuchLane { user, lane } => {
            format!("{user} is in lane {}, which the drop does not have", lane.number())
        }
        Deviation::NumberTwice { number } => format!("two joins have the number {number}"),
        Deviation::ShuffledAfterOpening { user, number } => {
            format!("{user} joined after the opening, as number {number}, but was shuffled")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_with_another_hash_is_not_trusted() {
        let honest = Seed::from_bytes([7; 32]);
        let drop = |hash: &str| json!({ "seed": honest.to_hexadecimal(), "seed_hash": hash });
        assert!(seed(&drop(&honest.hash()), LineOrder::Shuffle).is_ok());
        let other = Seed::from_bytes([8; 32]).hash();
        let refused = seed(&drop(&other), LineOrder::Shuffle).err().unwrap();
        assert!(refused.to_string().contains("cannot be trusted"), "{refused}");
    }

    #[test]
    fn shuffle_cannot_be_verified_before_its_seed_is_published() {
        assert!(seed(&json!({}), LineOrder::Shuffle).is_err());
        assert!(seed(&json!({}), LineOrder::FirstCome).is_ok());
        assert!(seed(&json!({ "seed": "ü" }), LineOrder::Shuffle).is_err());
    }
}
