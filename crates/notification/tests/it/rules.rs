//! Templates, and what is found out about them beforehand.

use std::path::Path;

use bus::EventKind;
use config::{Layers, Reader, Section, load};
use notification::{Fields, Wrong};

use super::*;

const GRANTED: &str = "playhouse.entitlement.granted.v1";

/// Every event that we tell ourselves.
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

fn rules(name: &str, template: TemplateConfig) -> Result<Rules, Vec<Wrong>> {
    let mut config = config();
    config.templates.insert(name.to_owned(), template);
    Rules::new(&config, &kinds())
}

fn wrong(template: TemplateConfig) -> Wrong {
    let mut wrong = rules("x", template).unwrap_err();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    wrong.remove(0)
}

#[test]
fn a_text_can_only_tell_what_the_event_says() {
    assert!(rules("x", template(Some(GRANTED), &[], "{resource} {quantity|many}")).is_ok());
    let unknown = wrong(template(Some(GRANTED), &[], "You got {resorce}"));
    assert_eq!(unknown.key, "notification.templates.x.texts.en.title");
    assert!(unknown.what.contains("no field \"resorce\"; there is"), "{}", unknown.what);
    let optional = wrong(template(Some(GRANTED), &[], "{reference}"));
    assert!(optional.what.contains("may be absent: write {reference|…}"), "{}", optional.what);
    let event = wrong(template(Some("playhouse.entitlement.granted.v2"), &[], "x"));
    assert_eq!(event.key, "notification.templates.x.event");
    assert!(event.what.contains("no event playhouse.entitlement.granted.v2; there is"), "{}", event.what);
    assert!(event.what.contains(GRANTED));
    let schema = serde_json::json!({ "properties": { "weather": { "type": "string" } } });
    let weather = EventKind { kind: "playhouse.weather.v1", summary: "", key: "", schema };
    let mut config = config();
    config.templates.insert("x".to_owned(), template(Some(weather.kind), &[], "x"));
    let nobody = Rules::new(&config, &[weather]).unwrap_err();
    assert!(nobody[0].what.contains("neither user_id nor user_ids"), "{nobody:?}");
    // Of the events of others only they know.
    assert!(rules("x", template(Some("shop.gone.v1"), &["who"], "{who}")).is_ok());
    assert!(wrong(template(Some("shop.gone.v1"), &[], "{who}")).what.contains("there is none"));
    assert!(wrong(template(None, &["a"], "{b}")).what.contains("there is a"));
}

#[test]
fn a_field_that_may_be_null_may_be_absent_and_what_is_no_text_is_none() {
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
    let Fields { mut always, mut sometimes } = Fields::of_schema(&schema);
    always.sort();
    sometimes.sort();
    assert_eq!(always, ["ids", "name"]);
    assert_eq!(sometimes, ["nick", "other"]);
}

#[test]
fn what_we_tell_without_being_told_to_fits_our_events() {
    // As anybody would write it, ours is checked by the same rules.
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
        let mut ours = template(Some(event), &[], title);
        ours.texts.get_mut("en").unwrap().body = TextTemplate::parse(body).unwrap();
        rules("x", ours).unwrap();
    }
}

/// What becomes of one event by these rules.
async fn told(setup: Setup, kind: &str, data: serde_json::Value) -> (Vec<String>, usize) {
    let place = SqlPlace::sqlite().unwrap();
    let house = House::open(&place, setup).await;
    let bus = events::memory().await;
    let event = bus::Event {
        kind: kind.to_owned(),
        data: bus::Json::of(&data).unwrap(),
        ..events::sold_event(&[], "")
    };
    bus.publish(&[event]).await;
    let intake = house.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    intake.tick(&consumer, PATIENCE).await.unwrap();
    (house.titles(uuid(1)).await, house.letters().await.len())
}

fn granted() -> serde_json::Value {
    serde_json::json!({ "user_id": uuid(1), "resource": "sword", "quantity": 3 })
}

#[tokio::test(flavor = "multi_thread")]
async fn our_events_are_told_unless_somebody_says_otherwise() {
    let of = async |setup| told(setup, GRANTED, granted()).await;
    assert_eq!(of(Setup::default()).await, (vec!["You received sword".to_owned()], 0));
    let own = Setup::with(|config| {
        config.templates.insert("x".to_owned(), template(Some(GRANTED), &[], "{quantity|1} of {resource}"));
    });
    assert_eq!(of(own).await, (vec!["3 of sword".to_owned()], 0));
    let off = Setup::with(|config| {
        let off = TemplateConfig { off: true, texts: BTreeMap::new(), ..template(Some(GRANTED), &[], "") };
        config.templates.insert("x".to_owned(), off);
    });
    assert_eq!(of(off).await, (vec![], 0));
    let off = Setup::with(|config| {
        config
            .templates
            .insert("x".to_owned(), TemplateConfig { off: true, ..template(Some(GRANTED), &[], "x") });
    });
    assert_eq!(of(off).await, (vec![], 0));
    // Whatever else happens concerns nobody.
    let registered = told(Setup::default(), "playhouse.user.registered.v1", granted()).await;
    assert_eq!(registered, (vec![], 0));
}

/// Events of drops with the data that drops give them.
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
        assert_eq!(told(Setup::default(), kind, data).await, (vec![title.to_owned()], 0), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_match_that_names_no_players_is_no_dead_letter() {
    let made = serde_json::json!({
        "match_id": "m", "match_profile": "p", "match_function": "f", "ticket_ids": ["a"], "connection": "c",
    });
    assert_eq!(told(Setup::default(), "playhouse.match.made.v1", made).await, (vec![], 0));
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
fn what_does_not_go_together_is_refused_at_the_start() {
    let sound = read(
        "[notification.templates.a]\nevent = \"shop.a.v1\"\nchannels = [\"live\", \"log\"]\nexpires_after = \"1d\"\n\
         [notification.templates.a.texts.en]\ntitle = \"{{a}}\"\n[notification.templates.b]\nevent = \"shop.b.v1\"\noff = true",
    )
    .unwrap();
    assert_eq!(sound.templates["a"].channels, [Channel::Live, Channel::Log]);
    assert_eq!(sound.templates["a"].expires_after, Some(Duration::from_secs(86_400)));
    assert!(sound.templates["b"].off);
    for (text, expected) in [
        (
            "[notification.templates.a]\nevent = \"e\"\noff = true\n[notification.templates.b]\nevent = \"e\"\noff = true",
            "the template a is for the same event",
        ),
        ("[notification.templates.a]\nevent = \"e\"", "it says nothing"),
        (
            "[notification.templates.a]\noff = true\nchannels = [\"webhook:shop\"]",
            "there is no [notification.webhooks.shop]",
        ),
        ("[notification.templates.a]\noff = true\nchannels = [\"mail\"]", "live, log or webhook:NAME"),
        ("[notification.templates.a.texts.en]\ntitle = \"{a\"", "a brace stands alone"),
        ("[notification]\ndedupe_retention = \"30d\"", "must be longer than retention"),
    ] {
        let problem = read(text).unwrap_err();
        assert!(problem.contains(expected), "{expected}: {problem}");
    }
}
