//! Notifications, messages and channels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base::id::Uuid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

base::typed_id!(
    /// The id of a notification. It is derived from the event or request and the user, so the same notification never has two ids.
    NotificationId
);

/// Title and body in one language.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    pub title: String,
    #[serde(default)]
    pub body: String,
}

/// Texts by language: `en`, `pt-br`.
pub type Texts = BTreeMap<String, Text>;

/// A notification, as the inbox stores it and as streams and destinations receive it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notification {
    pub notification_id: Uuid,
    pub user_id: Uuid,
    /// The position in the user's inbox. Positions increase and become visible in this order.
    pub position: i64,
    /// The name of its template; empty if a service sent the texts.
    pub template: String,
    pub texts: Texts,
    /// The data that the texts were rendered from.
    pub data: Value,
    /// Milliseconds since the Unix epoch, as all times here.
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub seen_at: Option<i64>,
    pub read_at: Option<i64>,
    pub archived_at: Option<i64>,
    /// The W3C trace context. It goes to streams and destinations, and is not stored in the inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl Notification {
    /// Returns the text in the first of these languages that it has, or in any language.
    pub fn text(&self, languages: &[String]) -> Option<(&str, &Text)> {
        let preferred = languages.iter().find_map(|language| find(&self.texts, language));
        preferred.or_else(|| self.texts.iter().next().map(|(language, text)| (language.as_str(), text)))
    }
}

/// Finds the text in a language, or in the language without its region: `pt` for `pt-br`.
fn find<'a>(texts: &'a Texts, language: &str) -> Option<(&'a str, &'a Text)> {
    let found = texts.get_key_value(language).or_else(|| {
        let (general, _) = language.split_once('-')?;
        texts.get_key_value(general)
    });
    found.map(|(language, text)| (language.as_str(), text))
}

/// The content of a notification, before it has recipients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) template: String,
    pub(crate) texts: Texts,
    pub(crate) data: Value,
    /// A set, because the id of a delivery is derived from the channel.
    pub(crate) channels: BTreeSet<Channel>,
    /// Milliseconds since the Unix epoch.
    pub(crate) expires_at: Option<i64>,
    pub(crate) traceparent: Option<String>,
}

/// A message to one user.
#[derive(Clone, Debug)]
pub(crate) struct AddressedMessage {
    pub(crate) id: NotificationId,
    pub(crate) user: Uuid,
    pub(crate) message: Arc<Message>,
}

impl AddressedMessage {
    /// Addresses a message to a user. `origin` is the id of the event or the request.
    pub(crate) fn new(origin: Uuid, user: Uuid, message: &Arc<Message>) -> Self {
        let id = NotificationId::from_uuid(derived(&[origin.as_bytes(), user.as_bytes()]));
        Self { id, user, message: message.clone() }
    }
}

/// A way to deliver a notification, beside the inbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Channel {
    /// The player's streams.
    Live,
    /// A line in the log.
    Log,
    /// The webhook destination with this name.
    Webhook(String),
}

const WEBHOOK: &str = "webhook:";

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str("live"),
            Self::Log => f.write_str("log"),
            Self::Webhook(name) => write!(f, "{WEBHOOK}{name}"),
        }
    }
}

/// A text that is not a channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a channel: expected live, log or webhook:NAME")]
pub struct UnknownChannel(String);

impl FromStr for Channel {
    type Err = UnknownChannel;

    fn from_str(text: &str) -> Result<Self, UnknownChannel> {
        match (text, text.strip_prefix(WEBHOOK)) {
            ("live", _) => Ok(Self::Live),
            ("log", _) => Ok(Self::Log),
            (_, Some(name)) if !name.is_empty() => Ok(Self::Webhook(name.to_owned())),
            _ => Err(UnknownChannel(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Channel {
    type Error = UnknownChannel;

    fn try_from(text: String) -> Result<Self, UnknownChannel> {
        text.parse()
    }
}

impl From<Channel> for String {
    fn from(channel: Channel) -> Self {
        channel.to_string()
    }
}

/// How a player marks notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// It was shown on the screen.
    Seen,
    /// Read, and therefore seen.
    Read,
    Unread,
    /// Removed from the inbox list.
    Archived,
    Unarchived,
}

/// The head of a user's inbox. Both numbers only increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The position of the user's latest notification ever; 0 before the first.
    pub position: i64,
    /// How often the user's marks have changed the counts.
    pub marks: i64,
}

impl Head {
    /// Returns the sum of both. A stream reports the same sum for what it has sent: it is smaller if and only if the stream is behind in
    /// either.
    pub const fn version(self) -> i64 {
        self.position + self.marks
    }
}

/// How many notifications the player has not read or not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub unread: i64,
    pub unseen: i64,
}

/// Returns an id that is always the same for the same parts.
pub(crate) fn derived(parts: &[&[u8]]) -> Uuid {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let digest: [u8; 32] = digest.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    base::id::derived(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_language_falls_back_to_the_nearest() {
        let text = |title: &str| Text { title: title.to_owned(), body: String::new() };
        let texts: Texts = [("en", "Hello"), ("ja", "こんにちは"), ("pt", "Olá")]
            .map(|(language, title)| (language.to_owned(), text(title)))
            .into();
        let notification = Notification {
            notification_id: Uuid::nil(),
            user_id: Uuid::nil(),
            position: 1,
            template: String::new(),
            texts,
            data: Value::Null,
            created_at: 0,
            expires_at: None,
            seen_at: None,
            read_at: None,
            archived_at: None,
            traceparent: None,
        };
        let title = |languages: &[&str]| {
            let languages: Vec<String> = languages.iter().map(|language| (*language).to_owned()).collect();
            notification.text(&languages).unwrap().1.title.clone()
        };
        assert_eq!(title(&["ja", "en"]), "こんにちは");
        assert_eq!(title(&["pt-br", "en"]), "Olá");
        assert_eq!(title(&["de", "ja"]), "こんにちは");
        assert_eq!(title(&["de"]), "Hello");
    }

    #[test]
    fn channel_survives_formatting_and_parsing() {
        for channel in [Channel::Live, Channel::Log, Channel::Webhook("shop".to_owned())] {
            assert_eq!(channel.to_string().parse(), Ok(channel));
        }
        for invalid in ["", "webhook:", "mail"] {
            assert!(invalid.parse::<Channel>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn same_parts_give_the_same_id_and_different_parts_do_not() {
        assert_eq!(derived(&[b"ab", b"c"]), derived(&[b"ab", b"c"]));
        assert_ne!(derived(&[b"ab", b"c"]), derived(&[b"a", b"bc"]));
    }
}
