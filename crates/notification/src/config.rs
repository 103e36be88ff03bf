//! Settings of notifications.

use std::collections::BTreeMap;
use std::time::Duration;

use ::config::{InvalidValue, Reader, Section, Setting, Value};

use crate::model::Channel;
use crate::template::TextTemplate;

const DAY: Duration = Duration::from_secs(86_400);

/// Settings of notifications.
#[derive(Clone, Debug)]
pub struct Config {
    /// The default language: used where a notification has no text in a player's language.
    pub language: Language,
    /// How many events one transaction takes in.
    pub batch: u32,
    /// After how many deliveries by the bus an event that was never taken in becomes a dead letter.
    pub max_attempts: u32,
    /// How long a notification is kept.
    pub retention: Duration,
    /// How long a notification is kept after it was read.
    pub read_retention: Duration,
    /// How long event ids are kept, so that no event notifies twice.
    pub dedupe_retention: Duration,
    /// How long dead letters are kept.
    pub dead_retention: Duration,
    pub delivery: work_queue::Config,
    pub webhook_delivery: work_queue::Config,
    pub templates: BTreeMap<String, TemplateConfig>,
    pub webhooks: BTreeMap<String, webhook::Config>,
}

/// A template: the texts and channels of an event, or of requests of services.
#[derive(Clone, Debug)]
pub struct TemplateConfig {
    /// The event type. A template without one is for services, which refer to it by name.
    pub event: Option<String>,
    /// Fields of the data that texts may use. Those of Playhouse's own events are known.
    pub fields: Vec<String>,
    pub channels: Vec<Channel>,
    pub expires_after: Option<Duration>,
    /// Whether the event creates no notifications.
    pub off: bool,
    pub texts: BTreeMap<String, TextConfig>,
}

/// The texts in one language. A text that is missing is taken from the default language.
#[derive(Clone, Debug)]
pub struct TextConfig {
    pub title: Option<TextTemplate>,
    pub body: Option<TextTemplate>,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let config = Self {
            language: reader.get("language"),
            batch: reader.get_within("batch", 1..=1_000),
            max_attempts: reader.get_within("max_attempts", 1..=1_000),
            retention: reader.get_within("retention", DAY..=3_650 * DAY),
            read_retention: reader.get_within("read_retention", Duration::from_secs(3600)..=3_650 * DAY),
            dedupe_retention: reader.get_within("dedupe_retention", 7 * DAY..=3_660 * DAY),
            dead_retention: reader.get_within("dead_retention", Duration::from_secs(3600)..=3_650 * DAY),
            delivery: reader.section("delivery"),
            webhook_delivery: reader.section("webhook_delivery"),
            templates: reader.tables("templates"),
            webhooks: reader.tables("webhooks"),
        };
        let outlives = config.dedupe_retention > config.retention;
        reader.check(&["dedupe_retention", "retention"], outlives, || {
            "dedupe_retention must be longer than retention: otherwise an event that arrives again after its notification was \
             removed would notify the player a second time"
                .to_owned()
        });
        config.check_templates(reader);
        config
    }
}

impl Config {
    fn check_templates(&self, reader: &mut Reader<'_>) {
        let mut events: BTreeMap<&str, &String> = BTreeMap::new();
        for (name, template) in &self.templates {
            let key = |key: &str| format!("templates.{name}.{key}");
            if let Some(other) = template.event.as_deref().and_then(|event| events.insert(event, name)) {
                reader.check(&[&key("event"), &format!("templates.{other}.event")], false, || {
                    format!("the template {other} is for the same event; an event can have only one template")
                });
            }
            reader.check(&[&format!("templates.{name}")], !template.texts.is_empty() || template.off, || {
                format!("has no texts; add some, for example in [notification.templates.{name}.texts.en]")
            });
            let has_default_title =
                template.texts.get(&self.language.0).is_some_and(|text| text.title.is_some());
            for (language, _) in template.texts.iter().filter(|(_, text)| text.title.is_none()) {
                reader.check(&[&key(&format!("texts.{language}.title"))], has_default_title, || {
                    let default = &self.language.0;
                    format!("is required, because there is no title in the default language {default:?} to use instead")
                });
            }
            for channel in &template.channels {
                let Channel::Webhook(webhook) = channel else { continue };
                reader.check(&[&key("channels")], self.webhooks.contains_key(webhook), || {
                    format!("there is no [notification.webhooks.{webhook}]")
                });
            }
        }
    }
}

impl Section for TemplateConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            event: reader.optional("event"),
            fields: reader.get("fields"),
            channels: reader.get("channels"),
            expires_after: reader.optional("expires_after"),
            off: reader.get("off"),
            texts: reader.tables("texts"),
        }
    }
}

impl Section for TextConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { title: reader.optional("title"), body: reader.optional("body") }
    }
}

impl Setting for TextTemplate {
    fn expected() -> String {
        "a text in quotes, in which {field} stands for a field of the data".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        Self::parse(&String::parse(value)?).map_err(InvalidValue::with_reason)
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

impl Setting for Channel {
    fn expected() -> String {
        "live, log or webhook:NAME".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        String::parse(value)?.parse().map_err(|_| InvalidValue::default())
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// A language tag in lower case: `en`, `pt-br`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Language(pub String);

impl Setting for Language {
    fn expected() -> String {
        "a language, such as \"en\" or \"pt-br\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let text = String::parse(value)?;
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if (1..=35).contains(&text.len()) && text.chars().all(is_valid) {
            return Ok(Self(text));
        }
        Err(InvalidValue::default())
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}
