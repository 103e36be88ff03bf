//! The driver must not log statements.

use std::fmt;
use std::sync::{Arc, Mutex};

use testkit::need;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

/// Records everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Text(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?}\n"));
    }
}

/// By default the driver logs the text of slow statements, which may contain ids.
#[tokio::test]
async fn slow_statement_is_not_logged() {
    const SLOW: &str = "SELECT SLEEP(1.2), 'the-id-of-a-player'";
    for server in need!(private_servers().await) {
        let database = server.database().await;
        let log = Log::default();
        let guard = tracing::subscriber::set_default(log.clone());
        tracing::info!("the log works");
        let db =
            Db::open(&config(DbUrl::parse(&Value::Text(database.url().to_owned())).unwrap())).await.unwrap();
        let mut connection = db.connection().await.unwrap();
        if let db::Raw::MySql(raw) = connection.raw() {
            sqlx::query(SLOW).execute(raw).await.unwrap();
        }
        drop(guard);
        let text = log.0.lock().unwrap().clone();
        assert!(text.contains("the log works"), "{text}");
        assert!(!text.contains("SLEEP") && !text.contains("the-id-of-a-player"), "{text}");
    }
}
