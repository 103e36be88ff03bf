//! What a player is told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base::id::Uuid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

base::typed_id!(
    /// A notification. Made of what it tells and whom, so the same one is never made twice under two ids.
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

/// A notification as it is kept in the inbox, and as it travels to streams and destinations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notification {
    pub notification_id: Uuid,
    pub user_id: Uuid,
    /// Where it stands in the user's inbox: counts up, and becomes visible in this order.
    pub position: i64,
    /// What made it.
    pub template: String,
    pub texts: Texts,
    /// What the texts were made of.
    pub data: Value,
    /// Milliseconds since the Unix epoch, as all times here.
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub seen_at: Option<i64>,
    pub read_at: Option<i64>,
    pub archived_at: Option<i64>,
    /// The W3C trace that it belongs to. It travels, and is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl Notification {
    /// The text in the first of these languages that there is, or whatever there is.
    pub fn text(&self, languages: &[String]) -> Option<(&str, &Text)> {
        let wanted = languages.iter().find_map(|language| find(&self.texts, language));
        wanted.or_else(|| self.texts.iter().next().map(|(language, text)| (language.as_str(), text)))
    }
}

/// The texts in this language, or in that of which it is a kind: `pt-br` is content with `pt`.
fn find<'a>(texts: &'a Texts, language: &str) -> Option<(&'a str, &'a Text)> {
    let found = texts.get_key_value(language).or_else(|| {
        let (general, _) = language.split_once('-')?;
        texts.get_key_value(general)
    });
    found.map(|(language, text)| (language.as_str(), text))
}

/// What is to be told to somebody, before anybody is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) template: String,
    pub(crate) texts: Texts,
    pub(crate) data: Value,
    /// Each once: a delivery goes by the name of its channel.
    pub(crate) channels: BTreeSet<Channel>,
    /// Milliseconds since the Unix epoch.
    pub(crate) expires_at: Option<i64>,
    pub(crate) traceparent: Option<String>,
}

/// A message to one user.
#[derive(Clone, Debug)]
pub(crate) struct Addressed {
    pub(crate) id: NotificationId,
    pub(crate) user: Uuid,
    pub(crate) message: Arc<Message>,
}

impl Addressed {
    /// `origin` is what makes it be told: an event, or a request.
    pub(crate) fn new(origin: Uuid, user: Uuid, message: &Arc<Message>) -> Self {
        let id = NotificationId::from_uuid(derived(&[origin.as_bytes(), user.as_bytes()]));
        Self { id, user, message: message.clone() }
    }
}

/// How somebody is told, beside the inbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Channel {
    /// The player's own event stream.
    Live,
    /// A line in the log.
    Log,
    /// A destination of this name.
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

/// The text names no channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no channel: expected live, log or webhook:NAME")]
pub struct NoChannel(String);

impl FromStr for Channel {
    type Err = NoChannel;

    fn from_str(text: &str) -> Result<Self, NoChannel> {
        match (text, text.strip_prefix(WEBHOOK)) {
            ("live", _) => Ok(Self::Live),
            ("log", _) => Ok(Self::Log),
            (_, Some(name)) if !name.is_empty() => Ok(Self::Webhook(name.to_owned())),
            _ => Err(NoChannel(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Channel {
    type Error = NoChannel;

    fn try_from(text: String) -> Result<Self, NoChannel> {
        text.parse()
    }
}

impl From<Channel> for String {
    fn from(channel: Channel) -> Self {
        channel.to_string()
    }
}

/// What a player does with notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// It was on the screen.
    Seen,
    /// Read, and therefore seen.
    Read,
    Unread,
    /// Out of the way.
    Archived,
    Unarchived,
}

/// How far a user's inbox is. Both numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The position of the last notification that the user was ever given; 0 before the first.
    pub position: i64,
    /// How often the user's marks have changed the counts.
    pub marks: i64,
}

impl Head {
    /// Returns a number that grows with each of them. A stream reports the sum of what it knows, which is smaller if and only if it
    /// is behind in either.
    pub const fn version(self) -> i64 {
        self.position + self.marks
    }
}

/// How many there are that the player has not dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub unread: i64,
    pub unseen: i64,
}

/// An id that is always the same for the same parts.
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
    fn a_language_that_is_not_there_is_replaced_by_the_nearest() {
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
    fn a_channel_survives_text() {
        for channel in [Channel::Live, Channel::Log, Channel::Webhook("shop".to_owned())] {
            assert_eq!(channel.to_string().parse(), Ok(channel));
        }
        for wrong in ["", "webhook:", "mail"] {
            assert!(wrong.parse::<Channel>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_same_parts_make_the_same_id_and_others_do_not() {
        assert_eq!(derived(&[b"ab", b"c"]), derived(&[b"ab", b"c"]));
        assert_ne!(derived(&[b"ab", b"c"]), derived(&[b"a", b"bc"]));
    }
}
