//! Settings of notifications.

use std::collections::BTreeMap;
use std::time::Duration;

use ::config::{Reader, Rejected, Section, Setting, Value};

use crate::model::Channel;
use crate::template::TextTemplate;

const DAY: Duration = Duration::from_secs(86_400);

/// Settings of notifications.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of texts, where a player's own is not there.
    pub language: Language,
    /// How many events are taken in with one transaction.
    pub batch: u32,
    /// After how many deliveries an event that cannot be taken in is a dead letter.
    pub max_attempts: u32,
    /// How long a notification is kept, and one that was read.
    pub retention: Duration,
    pub read_retention: Duration,
    /// How long events are remembered, so that none is told twice.
    pub dedupe_retention: Duration,
    /// How long dead letters are kept.
    pub dead_retention: Duration,
    pub delivery: work_queue::Config,
    pub webhook_delivery: work_queue::Config,
    pub templates: BTreeMap<String, TemplateConfig>,
    pub webhooks: BTreeMap<String, webhook::Config>,
}

/// What becomes of an event, or of what a service asks to be told.
#[derive(Clone, Debug)]
pub struct TemplateConfig {
    /// The kind of event that it tells of. Without one it is for services, by its name.
    pub event: Option<String>,
    /// Fields of the data, where we do not know them ourselves.
    pub fields: Vec<String>,
    pub channels: Vec<Channel>,
    pub expires_after: Option<Duration>,
    /// Whether nothing is told at all.
    pub off: bool,
    pub texts: BTreeMap<String, TextConfig>,
}

/// The texts in one language.
#[derive(Clone, Debug)]
pub struct TextConfig {
    pub title: TextTemplate,
    pub body: TextTemplate,
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
            "dedupe_retention must be longer than retention: an event that comes again after its notification was removed would \
             be told again"
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
                    format!("the template {other} is for the same event: one event is told once")
                });
            }
            reader.check(&[&format!("templates.{name}")], !template.texts.is_empty() || template.off, || {
                format!("it says nothing: give it texts, as in [notification.templates.{name}.texts.en]")
            });
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
        Self { title: reader.required("title"), body: reader.get("body") }
    }
}

impl Setting for TextTemplate {
    fn expected() -> String {
        "a text in quotes, in which {field} stands for a field of the data".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        Self::parse(&String::parse(value)?).map_err(Rejected::because)
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

impl Setting for Channel {
    fn expected() -> String {
        "live, log or webhook:NAME".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        String::parse(value)?.parse().map_err(|_| Rejected::default())
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// A language, as in the names of its texts: `en`, `pt-br`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Language(pub String);

impl Setting for Language {
    fn expected() -> String {
        "a language, such as \"en\" or \"pt-br\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        let text = String::parse(value)?;
        let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if (1..=35).contains(&text.len()) && text.chars().all(sound) {
            return Ok(Self(text));
        }
        Err(Rejected::default())
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}
