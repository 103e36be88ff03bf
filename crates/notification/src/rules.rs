//! The rules that turn an event into messages: its template and its recipients.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use bus::{Event, EventKind};
use serde_json::Value;

use crate::config::{Config, TemplateConfig, TextConfig};
use crate::model::{AddressedMessage, Channel, Message, Text, Texts};
use crate::template::{Fields, MissingField, TextTemplate};

/// Matches that an older version published do not name their players.
const MATCH_MADE: &str = "playhouse.match.made.v1";

/// How long the built-in notification of a match is worth reading: the game is over by then.
const MATCH_EXPIRES_AFTER: Duration = Duration::from_secs(3600);

/// A built-in template, which a template of the configuration for the same event replaces: event, name, title, body.
type BuiltIn = (&'static str, &'static str, &'static str, &'static str);

const BUILT_IN: [BuiltIn; 9] = [
    ("playhouse.entitlement.granted.v1", "entitlement-granted", "You received {resource}", ""),
    ("playhouse.entitlement.revoked.v1", "entitlement-revoked", "{resource} was taken back", ""),
    (MATCH_MADE, "match-made", "Your match is ready", "Play at {connection}"),
    (
        "playhouse.drop.admitted.v1",
        "drop-admitted",
        "It is your turn: {drop_name}",
        "Go in before {expires_at}",
    ),
    ("playhouse.drop.admission_expired.v1", "drop-admission-expired", "Your time in {drop_name} is over", ""),
    (
        "playhouse.drop.wait_ended.v1",
        "drop-wait-ended",
        "{drop_name} is over",
        "You were in line, but {reason_text}",
    ),
    ("playhouse.order.paid.v1", "order-paid", "You bought {quantity} × {resource}", "Order {order_id}"),
    (
        "playhouse.order.refund_due.v1",
        "order-refund-due",
        "Your payment for {resource} will be refunded",
        "Order {order_id} could not be delivered",
    ),
    (
        "playhouse.payment.refund_due.v1",
        "payment-refund-due",
        "Your second payment will be refunded",
        "Order {order_id} was paid before",
    ),
];

/// The field with the recipients of an event that has several.
const USER_IDS: &str = "user_ids";
/// How many recipients an event can have.
const MAX_USERS: usize = 1_000;
/// The longest title or body, in characters.
const MAX_TEXT: usize = 4_000;

/// All templates, parsed and checked.
#[derive(Clone, Debug)]
pub struct Rules {
    by_event: HashMap<String, Arc<Template>>,
    by_name: HashMap<String, Arc<Template>>,
}

#[derive(Debug)]
pub(crate) struct Template {
    name: String,
    fields: Vec<String>,
    channels: BTreeSet<Channel>,
    expires_after: Option<Duration>,
    texts: Vec<(String, TextTemplate, TextTemplate)>,
}

/// A mistake in a template: the key of the setting, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    pub key: String,
    pub what: String,
}

/// Why an event cannot be turned into messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("it names no recipients: its data has neither user_id nor user_ids")]
    NoRecipients,
    #[error("{0:?} is not the id of a user")]
    InvalidUserId(String),
    #[error("it names {0} users; at most {MAX_USERS} are allowed")]
    TooMany(usize),
    #[error("its data is not JSON")]
    NotJson,
    #[error("cannot render the template {template:?}: {source}")]
    MissingField { template: String, source: MissingField },
}

impl Rules {
    /// Parses the templates of the configuration, and adds the built-in ones for events that it does not mention. `kinds` are the events
    /// that this program publishes, whose fields are known. Fails with all mistakes.
    pub fn new(config: &Config, kinds: &[EventKind]) -> Result<Self, Vec<TemplateError>> {
        let mut rules = Self { by_event: HashMap::new(), by_name: HashMap::new() };
        let mut errors = Vec::new();
        for (name, given) in &config.templates {
            errors.extend(check(name, given, kinds));
            let template = Arc::new(Template::new(name, given, &config.language.0));
            match &given.event {
                // Without this entry the built-in template would be used.
                Some(event) if given.off => drop(rules.by_event.insert(event.clone(), Template::off(name))),
                Some(event) => drop(rules.by_event.insert(event.clone(), template)),
                None if given.off => {}
                None => drop(rules.by_name.insert(name.clone(), template)),
            }
        }
        // An event without recipients cannot notify.
        let has_recipients = |event: &str| {
            kinds.iter().find(|kind| kind.kind == event).is_none_or(|kind| names_users(&kind.schema))
        };
        for built_in in BUILT_IN.into_iter().filter(|(event, ..)| has_recipients(event)) {
            let template = || Arc::new(Template::built_in(built_in));
            rules.by_event.entry(built_in.0.to_owned()).or_insert_with(template);
        }
        if errors.is_empty() { Ok(rules) } else { Err(errors) }
    }

    /// Renders the messages of an event, one per recipient. Returns none if the event has no template.
    pub(crate) fn messages(
        &self,
        event: &Event,
        now: Timestamp,
    ) -> Result<Vec<AddressedMessage>, MessageError> {
        let Some(template) = self.by_event.get(&event.kind) else { return Ok(Vec::new()) };
        if template.texts.is_empty() {
            return Ok(Vec::new());
        }
        let data: Value = serde_json::from_slice(event.data.as_bytes()).map_err(|_| MessageError::NotJson)?;
        let users = match recipients(&data) {
            Err(MessageError::NoRecipients) if event.kind == MATCH_MADE => return Ok(Vec::new()),
            users => users?,
        };
        let mut message = template.message(data, now)?;
        if let Some(fields) = message.data.as_object_mut() {
            // A player must not see the other recipients, and each row would store the whole list.
            fields.remove(USER_IDS);
        }
        message.traceparent = event.traceparent.clone();
        let message = Arc::new(message);
        Ok(users.into_iter().map(|user| AddressedMessage::new(*event.id.as_uuid(), user, &message)).collect())
    }

    /// Returns the template for services with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Template> {
        self.by_name.get(name).map(Arc::as_ref)
    }

    /// Returns the names of the templates for services.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

impl Template {
    /// Creates a template of the configuration. A text that a language lacks is taken from the default language.
    fn new(name: &str, given: &TemplateConfig, default_language: &str) -> Self {
        let default = given.texts.get(default_language);
        let or_default = |text: &TextConfig, of: fn(&TextConfig) -> &Option<TextTemplate>| {
            of(text).clone().or_else(|| of(default?).clone()).unwrap_or_default()
        };
        let texts = given.texts.iter().map(|(language, text)| {
            (language.clone(), or_default(text, |text| &text.title), or_default(text, |text| &text.body))
        });
        let has_fallback = |field: &String| {
            let texts = given.texts.values().flat_map(|text| text.title.iter().chain(&text.body));
            texts.into_iter().any(|text| text.has_fallback(field))
        };
        Self {
            name: name.to_owned(),
            fields: given.fields.iter().filter(|field| !has_fallback(field)).cloned().collect(),
            channels: given.channels.iter().cloned().collect(),
            expires_after: given.expires_after,
            texts: texts.collect(),
        }
    }

    fn off(name: &str) -> Arc<Self> {
        let name = name.to_owned();
        Arc::new(Self {
            name,
            fields: Vec::new(),
            channels: BTreeSet::new(),
            expires_after: None,
            texts: Vec::new(),
        })
    }

    fn built_in((event, name, title, body): BuiltIn) -> Self {
        // They always parse: a test checks all of them.
        let parsed = |text| TextTemplate::parse(text).ok();
        let texts = parsed(title).zip(parsed(body));
        Self {
            name: name.to_owned(),
            fields: Vec::new(),
            channels: BTreeSet::from([Channel::Live]),
            expires_after: (event == MATCH_MADE).then_some(MATCH_EXPIRES_AFTER),
            texts: texts.into_iter().map(|(title, body)| ("en".to_owned(), title, body)).collect(),
        }
    }

    /// Renders the texts in all languages. Fails if the data lacks a field.
    pub(crate) fn message(&self, data: Value, now: Timestamp) -> Result<Message, MessageError> {
        let missing = |source| MessageError::MissingField { template: self.name.clone(), source };
        let mut texts = Texts::new();
        for (language, title, body) in &self.texts {
            let title = truncated(title.render(&data).map_err(missing)?);
            let body = truncated(body.render(&data).map_err(missing)?);
            texts.insert(language.clone(), Text { title, body });
        }
        Ok(Message {
            template: self.name.clone(),
            texts,
            data,
            channels: self.channels.clone(),
            expires_at: self.expires_after.map(|after| now.after(after).as_millis()),
            traceparent: None,
        })
    }

    /// Returns the fields that the data must have.
    pub(crate) fn fields(&self) -> &[String] {
        &self.fields
    }
}

fn truncated(text: String) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((at, _)) => text[..at].to_owned(),
        None => text,
    }
}

/// Returns the mistakes in a template.
fn check(name: &str, given: &TemplateConfig, kinds: &[EventKind]) -> Vec<TemplateError> {
    let known = given.event.as_deref().and_then(|event| kinds.iter().find(|kind| kind.kind == event));
    let mut fields = known.map(|kind| Fields::from_schema(&kind.schema)).unwrap_or_default();
    fields.always.extend(given.fields.iter().cloned());
    let mut errors = Vec::new();
    if let Some(event) =
        given.event.as_deref().filter(|event| known.is_none() && event.starts_with("playhouse."))
    {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.kind).collect();
        let what = format!("there is no event {event}; the events are {}", kinds.join(", "));
        errors.push(TemplateError { key: format!("notification.templates.{name}.event"), what });
        return errors;
    }
    if let Some(kind) = known.filter(|kind| !given.off && !names_users(&kind.schema)) {
        let what = format!("{} names no recipients: its data has neither user_id nor user_ids", kind.kind);
        errors.push(TemplateError { key: format!("notification.templates.{name}.event"), what });
    }
    for (language, text) in &given.texts {
        for (key, text) in [("title", &text.title), ("body", &text.body)] {
            let Some(text) = text else { continue };
            let key = format!("notification.templates.{name}.texts.{language}.{key}");
            errors.extend(text.check(&fields).err().map(|what| TemplateError { key, what }));
        }
    }
    errors
}

/// Whether events with this schema name their recipients.
fn names_users(schema: &Value) -> bool {
    [USER_IDS, "user_id"].iter().any(|name| !schema["properties"][name].is_null())
}

/// Returns the recipients of an event: its `user_ids`, or its `user_id`.
fn recipients(data: &Value) -> Result<Vec<Uuid>, MessageError> {
    let id = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        Uuid::try_parse(text).map_err(|_| MessageError::InvalidUserId(text.to_owned()))
    };
    match (&data[USER_IDS], &data["user_id"]) {
        (Value::Array(all), _) if all.len() > MAX_USERS => Err(MessageError::TooMany(all.len())),
        (Value::Array(all), _) => {
            let mut users = all.iter().map(id).collect::<Result<Vec<_>, _>>()?;
            users.sort_unstable();
            users.dedup();
            Ok(users)
        }
        (_, Value::Null) => Err(MessageError::NoRecipients),
        (_, one) => Ok(vec![id(one)?]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::Clock;
    use serde_json::json;

    use super::*;

    #[test]
    fn text_that_a_language_lacks_is_taken_from_the_default_language() {
        let parse = |text: &str| Some(TextTemplate::parse(text).unwrap());
        let given = TemplateConfig {
            event: None,
            fields: Vec::new(),
            channels: vec![Channel::Live],
            expires_after: None,
            off: false,
            texts: BTreeMap::from([
                ("de".to_owned(), TextConfig { title: parse("Hallo"), body: None }),
                ("en".to_owned(), TextConfig { title: parse("Hello"), body: parse("Welcome back") }),
                ("fr".to_owned(), TextConfig { title: None, body: parse("Bienvenue") }),
            ]),
        };
        let message =
            Template::new("greeting", &given, "en").message(json!({}), Clock::system().now()).unwrap();
        let text = |title: &str, body: &str| Text { title: title.to_owned(), body: body.to_owned() };
        assert_eq!(message.texts["de"], text("Hallo", "Welcome back"));
        assert_eq!(message.texts["fr"], text("Hello", "Bienvenue"));
    }

    #[test]
    fn match_without_players_notifies_nobody_and_other_events_without_recipients_fail() {
        let by_event =
            BUILT_IN.map(|built_in| (built_in.0.to_owned(), Arc::new(Template::built_in(built_in))));
        let rules = Rules { by_event: by_event.into(), by_name: HashMap::new() };
        let now = Clock::system().now();
        let recipients = |kind: &str, data: Value| {
            let event = Event {
                id: bus::EventId::generate(),
                subject: kind.to_owned(),
                kind: kind.to_owned(),
                source: "/test".to_owned(),
                time: now,
                key: None,
                traceparent: None,
                data: bus::Json::from_value(&data).unwrap(),
            };
            let messages = rules.messages(&event, now)?;
            assert!(
                messages.iter().all(|to| to.message.data[USER_IDS].is_null()),
                "a message lists the other recipients"
            );
            let expires_at = (kind == MATCH_MADE).then(|| now.after(MATCH_EXPIRES_AFTER).as_millis());
            assert!(messages.iter().all(|to| to.message.expires_at == expires_at), "{kind}");
            Ok(messages.len())
        };
        let users = [Uuid::from_u128(1), Uuid::from_u128(2)];
        assert_eq!(recipients(MATCH_MADE, json!({ "connection": "here", "user_ids": users })), Ok(2));
        assert_eq!(recipients(MATCH_MADE, json!({ "connection": "here" })), Ok(0));
        assert_eq!(
            recipients(BUILT_IN[0].0, json!({ "resource": "sword" })),
            Err(MessageError::NoRecipients)
        );
    }
}
