//! Templates and their checks at start-up.

use std::path::Path;

use bus::EventKind;
use config::{Layers, Reader, Section, load};
use notification::{Fields, TemplateError};

use super::*;

const GRANTED: &str = "playhouse.entitlement.granted.v1";

/// Returns all events that Playhouse publishes.
pub(crate) fn kinds() -> Vec<EventKind> {
    let all = [
        account::events(),
        drops::events(),
        drops::orders::events(),
        entitlement::events(),
        matchmaking::events(),
    ];
    all.into_iter().flatten().collect()
}

fn rules(name: &str, template: TemplateConfig) -> Result<Rules, Vec<TemplateError>> {
    let mut config = config();
    config.templates.insert(name.to_owned(), template);
    Rules::new(&config, &kinds())
}

/// Returns the only mistake in a template.
fn mistake(template: TemplateConfig) -> TemplateError {
    let mut errors = rules("x", template).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

#[test]
fn text_can_use_only_fields_of_the_event() {
    assert!(rules("x", template(Some(GRANTED), &[], "{resource} {quantity|many}")).is_ok());
    let unknown = mistake(template(Some(GRANTED), &[], "You got {resorce}"));
    assert_eq!(unknown.key, "notification.templates.x.texts.en.title");
    assert!(unknown.what.contains("no field \"resorce\"; the fields are"), "{}", unknown.what);
    let optional = mistake(template(Some(GRANTED), &[], "{reference}"));
    assert!(optional.what.contains("may be absent: write {reference|…}"), "{}", optional.what);
    let event = mistake(template(Some("playhouse.entitlement.granted.v2"), &[], "x"));
    assert_eq!(event.key, "notification.templates.x.event");
    assert!(
        event.what.contains("no event playhouse.entitlement.granted.v2; the events are"),
        "{}",
        event.what
    );
    assert!(event.what.contains(GRANTED));
    let schema = serde_json::json!({ "properties": { "weather": { "type": "string" } } });
    let weather = EventKind { kind: "playhouse.weather.v1", summary: "", key: "", schema };
    let mut config = config();
    config.templates.insert("x".to_owned(), template(Some(weather.kind), &[], "x"));
    let errors = Rules::new(&config, &[weather]).unwrap_err();
    assert!(errors[0].what.contains("neither user_id nor user_ids"), "{errors:?}");
    // The fields of other publishers' events are not known.
    assert!(rules("x", template(Some("shop.gone.v1"), &["who"], "{who}")).is_ok());
    assert!(mistake(template(Some("shop.gone.v1"), &[], "{who}")).what.contains("the fields are none"));
    assert!(mistake(template(None, &["a"], "{b}")).what.contains("the fields are a"));
}

#[test]
fn nullable_field_is_optional_and_field_that_is_not_text_is_left_out() {
    let schema = serde_json::json!({
        "required": ["name", "nick", "things", "ids", "address", "other"],
        "properties": {
            "name": { "type": "string" }, "nick": { "type": ["string", "null"] },
            "ids": { "type": "array", "items": { "type": "string" } },
            "things": { "type": "array", "items": { "type": "object" } },
            "address": { "type": ["object", "null"] },
            "other": { "oneOf": [{ "type": "null" }, { "type": "string" }] },
        },
    });
    let Fields { mut always, mut sometimes } = Fields::from_schema(&schema);
    always.sort();
    sometimes.sort();
    assert_eq!(always, ["ids", "name"]);
    assert_eq!(sometimes, ["nick", "other"]);
}

#[test]
fn built_in_templates_fit_their_events() {
    // Configured like any template, the built-in ones pass the same checks.
    for (event, title, body) in [
        (GRANTED, "You received {resource}", ""),
        ("playhouse.entitlement.revoked.v1", "{resource} was taken back", ""),
        ("playhouse.drop.admitted.v1", "It is your turn: {drop_name}", "Go in before {expires_at}"),
        ("playhouse.drop.admission_expired.v1", "Your time in {drop_name} is over", ""),
        ("playhouse.drop.wait_ended.v1", "{drop_name} is over", "You were in line, but {reason_text}"),
        ("playhouse.order.paid.v1", "You bought {quantity} × {resource}", "Order {order_id}"),
        (
            "playhouse.order.refund_due.v1",
            "Your payment for {resource} will be refunded",
            "Order {order_id} could not be delivered",
        ),
        (
            "playhouse.payment.refund_due.v1",
            "Your second payment will be refunded",
            "Order {order_id} was paid before",
        ),
    ] {
        let mut built_in = template(Some(event), &[], title);
        built_in.texts.get_mut("en").unwrap().body = Some(TextTemplate::parse(body).unwrap());
        rules("x", built_in).unwrap();
    }
}

/// Takes in one event. Returns the titles in the inbox of `uuid(1)` and the number of dead letters.
async fn take_in(setup: Setup, kind: &str, data: serde_json::Value) -> (Vec<String>, usize) {
    let database = TestDatabase::sqlite().unwrap();
    let process = Process::open(&database, setup).await;
    let bus = events::memory().await;
    let event = bus::Event {
        kind: kind.to_owned(),
        data: bus::Json::from_value(&data).unwrap(),
        ..events::sold_event(&[], "")
    };
    bus.publish(&[event]).await;
    let intake = process.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    intake.tick(&consumer, PATIENCE).await.unwrap();
    (process.titles(uuid(1)).await, process.dead_letters().await.len())
}

fn granted() -> serde_json::Value {
    serde_json::json!({ "user_id": uuid(1), "resource": "sword", "quantity": 3 })
}

#[tokio::test(flavor = "multi_thread")]
async fn built_in_events_notify_unless_the_configuration_changes_it() {
    let grant = async |setup| take_in(setup, GRANTED, granted()).await;
    assert_eq!(grant(Setup::default()).await, (vec!["You received sword".to_owned()], 0));
    let own = Setup::with(|config| {
        config.templates.insert("x".to_owned(), template(Some(GRANTED), &[], "{quantity|1} of {resource}"));
    });
    assert_eq!(grant(own).await, (vec!["3 of sword".to_owned()], 0));
    let off = Setup::with(|config| {
        let off = TemplateConfig { off: true, texts: BTreeMap::new(), ..template(Some(GRANTED), &[], "") };
        config.templates.insert("x".to_owned(), off);
    });
    assert_eq!(grant(off).await, (vec![], 0));
    let off = Setup::with(|config| {
        config
            .templates
            .insert("x".to_owned(), TemplateConfig { off: true, ..template(Some(GRANTED), &[], "x") });
    });
    assert_eq!(grant(off).await, (vec![], 0));
    // Events without a template notify nobody.
    let registered = take_in(Setup::default(), "playhouse.user.registered.v1", granted()).await;
    assert_eq!(registered, (vec![], 0));
}

/// Returns events of drops with their real data, and the expected titles.
fn events_of_drops() -> Vec<(&'static str, serde_json::Value, &'static str)> {
    let id = || uuid(9).to_string();
    let admission = drops::AdmissionChanged {
        drop_id: id(),
        drop_name: "Golden sword".to_owned(),
        user_id: uuid(1).to_string(),
        account_id: id(),
        admission_id: id(),
        expires_at: "2026-03-01T12:00:00.000Z".to_owned(),
        arrived: false,
    };
    let wait = drops::WaitEnded {
        drop_id: id(),
        drop_name: "Golden sword".to_owned(),
        user_id: uuid(1).to_string(),
        account_id: id(),
        reason: "SOLD_OUT".to_owned(),
        reason_text: "everything is sold".to_owned(),
    };
    let order = drops::orders::OrderChanged {
        order_id: id(),
        drop_id: id(),
        reservation_id: id(),
        user_id: uuid(1).to_string(),
        account_id: id(),
        resource: "sword".to_owned(),
        state: "PAID".to_owned(),
        quantity: 2,
        amount: 3_998,
        currency: "EUR".to_owned(),
        version: 2,
    };
    let payment = drops::orders::PaymentChanged {
        payment_id: "pay_2".to_owned(),
        order_id: id(),
        drop_id: id(),
        user_id: uuid(1).to_string(),
        account_id: id(),
        state: "REFUND_DUE".to_owned(),
        amount: 1_999,
        currency: "EUR".to_owned(),
    };
    let payment = serde_json::to_value(payment).unwrap();
    let admission = serde_json::to_value(admission).unwrap();
    let order = serde_json::to_value(order).unwrap();
    vec![
        ("playhouse.drop.admitted.v1", admission.clone(), "It is your turn: Golden sword"),
        ("playhouse.drop.admission_expired.v1", admission, "Your time in Golden sword is over"),
        ("playhouse.drop.wait_ended.v1", serde_json::to_value(wait).unwrap(), "Golden sword is over"),
        ("playhouse.order.paid.v1", order.clone(), "You bought 2 × sword"),
        ("playhouse.order.refund_due.v1", order, "Your payment for sword will be refunded"),
        ("playhouse.payment.refund_due.v1", payment, "Your second payment will be refunded"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_drops_reach_the_inbox() {
    for (kind, data, title) in events_of_drops() {
        assert_eq!(take_in(Setup::default(), kind, data).await, (vec![title.to_owned()], 0), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn match_without_players_is_not_a_dead_letter() {
    let data = serde_json::json!({
        "match_id": "m", "match_profile": "p", "match_function": "f", "ticket_ids": ["a"], "connection": "c",
    });
    assert_eq!(take_in(Setup::default(), "playhouse.match.made.v1", data).await, (vec![], 0));
}

const REFERENCE: &str = r#"
    [notification]
    language = "en"
    batch = 256
    max_attempts = 20
    retention = "30d"
    read_retention = "7d"
    dedupe_retention = "37d"
    dead_retention = "30d"
    [notification.delivery]
    workers = 2
    batch = 200
    poll = "200ms"
    lease = "10s"
    max_attempts = 20
    retry_min = "100ms"
    retry_max = "30s"
    retention = "10m"
    [notification.webhook_delivery]
    workers = 16
    batch = 8
    poll = "200ms"
    lease = "1m"
    max_attempts = 16
    retry_min = "5s"
    retry_max = "6h"
    retention = "1h"
    [notification.templates.NAME]
    # event = "x"
    fields = []
    channels = ["live"]
    # expires_after = "7d"
    off = false
    [notification.templates.NAME.texts.NAME]
    # title = "x"
    body = ""
    [notification.webhooks.NAME]
    # url = "https://example.com/hook"
    # secrets = ["whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCB0aGF0IHNpZ25z"]
    timeout = "15s"
    max_in_flight = 8
    retry_min = "1s"
    retry_max = "10m"
    allow_networks = []
"#;

struct All(Config);

impl Section for All {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self(reader.section("notification"))
    }
}

fn read(text: &str) -> Result<Config, String> {
    let layers = Layers::new(REFERENCE).with_file_text(Path::new("playhouse.toml"), text);
    load::<All>(layers).map(|loaded| loaded.config.0).map_err(|problems| problems.to_string())
}

#[test]
fn inconsistent_settings_are_refused() {
    let valid = read(
        "[notification.templates.a]\nevent = \"shop.a.v1\"\nchannels = [\"live\", \"log\"]\nexpires_after = \"1d\"\n\
         [notification.templates.a.texts.en]\ntitle = \"{{a}}\"\n[notification.templates.b]\nevent = \"shop.b.v1\"\noff = true",
    )
    .unwrap();
    assert_eq!(valid.templates["a"].channels, [Channel::Live, Channel::Log]);
    assert_eq!(valid.templates["a"].expires_after, Some(Duration::from_secs(86_400)));
    assert!(valid.templates["b"].off);
    for (text, expected) in [
        (
            "[notification.templates.a]\nevent = \"e\"\noff = true\n[notification.templates.b]\nevent = \"e\"\noff = true",
            "the template a is for the same event",
        ),
        ("[notification.templates.a]\nevent = \"e\"", "has no texts"),
        (
            "[notification.templates.a]\noff = true\nchannels = [\"webhook:shop\"]",
            "there is no [notification.webhooks.shop]",
        ),
        ("[notification.templates.a]\noff = true\nchannels = [\"mail\"]", "live, log or webhook:NAME"),
        ("[notification.templates.a.texts.en]\ntitle = \"{a\"", "an unmatched brace"),
        ("[notification.templates.a.texts.de]\nbody = \"b\"", "no title in the default language \"en\""),
        ("[notification]\ndedupe_retention = \"30d\"", "must be longer than retention"),
    ] {
        let problem = read(text).unwrap_err();
        assert!(problem.contains(expected), "{expected}: {problem}");
    }
}
