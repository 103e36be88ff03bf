//! Reads events from the outbox.

use db::Db;
use serde_json::Value;

/// Returns the data of all events of a kind, in the order of their rows.
pub(crate) async fn events(db: &Db, kind: &str) -> Vec<Value> {
    let mut connection = db.connection().await.unwrap();
    let rows: Vec<Vec<u8>> = db::on!(connection, raw => {
        sqlx::query_scalar("SELECT payload FROM outbox ORDER BY id").fetch_all(raw).await.unwrap()
    });
    let mut events = Vec::new();
    for row in rows {
        let end = row.iter().position(|byte| *byte == b'\n').unwrap();
        let (head, mut data) = (serde_json::from_slice(&row[..end]).unwrap(), &row[end + 1..]);
        let Value::Array(heads) = head else {
            if head["kind"] == kind {
                events.push(serde_json::from_slice(data).unwrap());
            }
            continue;
        };
        let mut last = String::new();
        for head in heads {
            let own;
            (own, data) = data.split_at(usize::try_from(head["size"].as_u64().unwrap()).unwrap());
            last = head["kind"].as_str().map_or(last, str::to_owned);
            if last == kind {
                events.push(serde_json::from_slice(own).unwrap());
            }
        }
    }
    events
}
