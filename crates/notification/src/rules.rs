//! What becomes of an event: whom it concerns, and what they are told.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use bus::{Event, EventKind};
use serde_json::Value;

use crate::config::{Config, TemplateConfig, TextConfig};
use crate::model::{Addressed, Channel, Message, Text, Texts};
use crate::template::{Fields, Missing, TextTemplate};

/// Those that an older version told of do not say who plays.
const MATCH_MADE: &str = "playhouse.match.made.v1";

/// What we tell of our own events unless a template says otherwise: the event, the name of the template, title and body.
const OURS: [(&str, &str, &str, &str); 9] = [
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

/// The field of an event that concerns several users.
const USERS: &str = "user_ids";
/// Nobody can be told of more at once: an event about more users is no event about players.
const MOST_USERS: usize = 1_000;
/// How long a title or body may be, in characters.
const LONGEST: usize = 4_000;

/// Every template, ready to be used.
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

/// Something is wrong with a template: the key of the setting, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub key: String,
    pub what: String,
}

/// Why an event cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Untold {
    #[error("it does not say whom it concerns: its data has neither user_id nor user_ids")]
    Nobody,
    #[error("{0:?} is not the id of a user")]
    NoUser(String),
    #[error("it concerns {0} users; at most {MOST_USERS} are told at once")]
    TooMany(usize),
    #[error("its data is not JSON")]
    NoJson,
    #[error("the template {template:?}: {source}")]
    Missing { template: String, source: Missing },
}

impl Rules {
    /// The templates of the configuration, and ours for those of our events that it does not mention. `kinds` are the events that
    /// we tell ourselves: of those the fields are known.
    pub fn new(config: &Config, kinds: &[EventKind]) -> Result<Self, Vec<Wrong>> {
        let mut rules = Self { by_event: HashMap::new(), by_name: HashMap::new() };
        let mut wrong = Vec::new();
        for (name, given) in &config.templates {
            wrong.extend(check(name, given, kinds));
            let template = Arc::new(Template::new(name, given));
            match &given.event {
                // An event that is off must not fall back to what we would tell.
                Some(event) if given.off => {
                    drop(rules.by_event.insert(event.clone(), Template::silent(name)))
                }
                Some(event) => drop(rules.by_event.insert(event.clone(), template)),
                None if given.off => {}
                None => drop(rules.by_name.insert(name.clone(), template)),
            }
        }
        // One that does not say whom it concerns can be told to nobody.
        let tells_who = |event: &str| {
            kinds.iter().find(|kind| kind.kind == event).is_none_or(|kind| names_users(&kind.schema))
        };
        for (event, name, title, body) in OURS.into_iter().filter(|(event, ..)| tells_who(event)) {
            let ours = || Arc::new(Template::ours(name, title, body));
            rules.by_event.entry(event.to_owned()).or_insert_with(ours);
        }
        if wrong.is_empty() { Ok(rules) } else { Err(wrong) }
    }

    /// Who is told what of an event. Nobody of one that no template is for.
    pub(crate) fn told(&self, event: &Event, now: Timestamp) -> Result<Vec<Addressed>, Untold> {
        let Some(template) = self.by_event.get(&event.kind) else { return Ok(Vec::new()) };
        if template.texts.is_empty() {
            return Ok(Vec::new());
        }
        let data: Value = serde_json::from_slice(event.data.as_bytes()).map_err(|_| Untold::NoJson)?;
        let users = match users(&data) {
            Err(Untold::Nobody) if event.kind == MATCH_MADE => return Ok(Vec::new()),
            users => users?,
        };
        let mut message = template.message(data, now)?;
        if let Some(fields) = message.data.as_object_mut() {
            // Nobody needs to know of all the others, and each would keep the list of all.
            fields.remove(USERS);
        }
        message.traceparent = event.traceparent.clone();
        let message = Arc::new(message);
        Ok(users.into_iter().map(|user| Addressed::new(*event.id.as_uuid(), user, &message)).collect())
    }

    /// The template that services name.
    pub(crate) fn named(&self, name: &str) -> Option<&Template> {
        self.by_name.get(name).map(Arc::as_ref)
    }

    /// What services can name.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

impl Template {
    fn new(name: &str, given: &TemplateConfig) -> Self {
        let texts = given.texts.iter();
        let can_do_without = |field: &String| {
            let both = |text: &TextConfig| [&text.title, &text.body].map(|text| text.can_do_without(field));
            given.texts.values().any(|text| both(text).contains(&true))
        };
        Self {
            name: name.to_owned(),
            fields: given.fields.iter().filter(|field| !can_do_without(field)).cloned().collect(),
            channels: given.channels.iter().cloned().collect(),
            expires_after: given.expires_after,
            texts: texts.map(|(lang, text)| (lang.clone(), text.title.clone(), text.body.clone())).collect(),
        }
    }

    fn silent(name: &str) -> Arc<Self> {
        let name = name.to_owned();
        Arc::new(Self {
            name,
            fields: Vec::new(),
            channels: BTreeSet::new(),
            expires_after: None,
            texts: Vec::new(),
        })
    }

    fn ours(name: &str, title: &str, body: &str) -> Self {
        // They are sound: a test reads them.
        let parsed = |text| TextTemplate::parse(text).ok();
        let texts = parsed(title).zip(parsed(body));
        Self {
            name: name.to_owned(),
            fields: Vec::new(),
            channels: BTreeSet::from([Channel::Live]),
            expires_after: None,
            texts: texts.into_iter().map(|(title, body)| ("en".to_owned(), title, body)).collect(),
        }
    }

    /// The texts for some data, in all languages.
    pub(crate) fn message(&self, data: Value, now: Timestamp) -> Result<Message, Untold> {
        let missing = |source| Untold::Missing { template: self.name.clone(), source };
        let mut texts = Texts::new();
        for (language, title, body) in &self.texts {
            let title = shortened(title.render(&data).map_err(missing)?);
            let body = shortened(body.render(&data).map_err(missing)?);
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

    /// The fields that have to be given.
    pub(crate) fn fields(&self) -> &[String] {
        &self.fields
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => text[..at].to_owned(),
        None => text,
    }
}

/// What is wrong with the texts of a template.
fn check(name: &str, given: &TemplateConfig, kinds: &[EventKind]) -> Vec<Wrong> {
    let known = given.event.as_deref().and_then(|event| kinds.iter().find(|kind| kind.kind == event));
    let mut fields = known.map(|kind| Fields::of_schema(&kind.schema)).unwrap_or_default();
    fields.always.extend(given.fields.iter().cloned());
    let mut wrong = Vec::new();
    if let Some(event) =
        given.event.as_deref().filter(|event| known.is_none() && event.starts_with("playhouse."))
    {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.kind).collect();
        let what = format!("there is no event {event}; there is {}", kinds.join(", "));
        wrong.push(Wrong { key: format!("notification.templates.{name}.event"), what });
        return wrong;
    }
    if let Some(kind) = known.filter(|kind| !given.off && !names_users(&kind.schema)) {
        let what =
            format!("{} does not say whom it concerns: its data has neither user_id nor user_ids", kind.kind);
        wrong.push(Wrong { key: format!("notification.templates.{name}.event"), what });
    }
    for (language, text) in &given.texts {
        for (key, text) in [("title", &text.title), ("body", &text.body)] {
            let key = format!("notification.templates.{name}.texts.{language}.{key}");
            wrong.extend(text.check(&fields).err().map(|what| Wrong { key, what }));
        }
    }
    wrong
}

/// Whether events of a schema say whom they concern.
fn names_users(schema: &Value) -> bool {
    [USERS, "user_id"].iter().any(|name| !schema["properties"][name].is_null())
}

/// Whom an event concerns: `user_ids`, or `user_id`.
fn users(data: &Value) -> Result<Vec<Uuid>, Untold> {
    let id = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        Uuid::try_parse(text).map_err(|_| Untold::NoUser(text.to_owned()))
    };
    match (&data[USERS], &data["user_id"]) {
        (Value::Array(all), _) if all.len() > MOST_USERS => Err(Untold::TooMany(all.len())),
        (Value::Array(all), _) => {
            let mut users = all.iter().map(id).collect::<Result<Vec<_>, _>>()?;
            users.sort_unstable();
            users.dedup();
            Ok(users)
        }
        (_, Value::Null) => Err(Untold::Nobody),
        (_, one) => Ok(vec![id(one)?]),
    }
}

#[cfg(test)]
mod tests {
    use base::Clock;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_match_that_does_not_say_who_plays_concerns_nobody_and_other_events_are_not_understood() {
        let by_event = OURS.map(|(event, name, title, body)| {
            (event.to_owned(), Arc::new(Template::ours(name, title, body)))
        });
        let rules = Rules { by_event: by_event.into(), by_name: HashMap::new() };
        let now = Clock::system().now();
        let told = |kind: &str, data: Value| {
            let event = Event {
                id: bus::EventId::generate(),
                subject: kind.to_owned(),
                kind: kind.to_owned(),
                source: "/test".to_owned(),
                time: now,
                key: None,
                traceparent: None,
                data: bus::Json::of(&data).unwrap(),
            };
            let told = rules.told(&event, now)?;
            assert!(
                told.iter().all(|told| told.message.data[USERS].is_null()),
                "nobody needs to know of the others"
            );
            Ok(told.len())
        };
        let users = [Uuid::from_u128(1), Uuid::from_u128(2)];
        assert_eq!(told(MATCH_MADE, json!({ "connection": "here", "user_ids": users })), Ok(2));
        assert_eq!(told(MATCH_MADE, json!({ "connection": "here" })), Ok(0));
        assert_eq!(told(OURS[0].0, json!({ "resource": "sword" })), Err(Untold::Nobody));
    }
}
