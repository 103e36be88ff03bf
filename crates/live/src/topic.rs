//! Topics, their keys, and the encoding of messages.

use std::any::Any;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use base::id::Uuid;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind of live message. The service that publishes the messages declares it.
pub trait Topic: 'static {
    /// The subject of the messages, such as a player.
    type Key: Key;
    type Message: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Identifies the topic among those of the key type. Letters, digits and `_`. It is part of the wire format and never changes.
    const NAME: &'static str;
    /// Whether subscribers handle duplicates. If so, subscribers in the publishing process receive a message at once, and a second time
    /// through Redis.
    const REPEATABLE: bool = false;
}

/// A subject that can be subscribed to. All topics of a key share its channel.
pub trait Key: Clone + Eq + Hash + fmt::Debug + fmt::Display + FromStr + Send + Sync + 'static {
    /// Precedes the key in the name of its channel. It ends with `:` and is unique among key types. Only [`Player`] has none, so that
    /// its channels keep their names.
    const CHANNEL: &'static str;

    /// Returns the name of the key's channel, without the stem of all channels.
    fn channel(&self) -> String {
        format!("{}{self}", Self::CHANNEL)
    }

    /// Reads the key from the name of its channel. Returns none if the channel belongs to another key type.
    fn from_channel(channel: &str) -> Option<Self> {
        channel.strip_prefix(Self::CHANNEL)?.parse().ok()
    }
}

/// The key of all messages about one player.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Player(pub Uuid);

/// The topics of a subscriber: an enum with a variant for each.
pub trait Topics: Sized {
    type Key: Key;

    /// Reads a message of any of the topics. Returns none if it belongs to another topic: the subscriber receives a gap.
    fn read(message: &Message<Self::Key>) -> Option<Self>;
}

/// A message of some topic of a key type.
pub struct Message<K> {
    content: Content,
    key: PhantomData<fn() -> K>,
}

#[derive(Clone)]
enum Content {
    /// Published in this process.
    Local { topic: &'static str, body: Arc<dyn Any + Send + Sync> },
    /// Received through Redis.
    Encoded(Arc<[u8]>),
}

impl Key for Player {
    const CHANNEL: &'static str = "";
}

impl fmt::Display for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Player {
    type Err = <Uuid as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text).map(Self)
    }
}

impl<K: Key> Message<K> {
    pub(crate) fn local<T: Topic<Key = K>>(message: T::Message) -> Self {
        Self::of(Content::Local { topic: T::NAME, body: Arc::new(message) })
    }

    pub(crate) fn encoded(payload: &[u8]) -> Self {
        Self::of(Content::Encoded(payload.into()))
    }

    fn of(content: Content) -> Self {
        Self { content, key: PhantomData }
    }

    /// Reads the message if it belongs to this topic.
    pub fn read<T: Topic<Key = K>>(&self) -> Option<Arc<T::Message>> {
        match &self.content {
            Content::Local { topic, body } if *topic == T::NAME => body.clone().downcast().ok(),
            Content::Local { .. } => None,
            Content::Encoded(payload) => serde_json::from_slice(body(T::NAME, payload)?).ok().map(Arc::new),
        }
    }
}

impl<K> Clone for Message<K> {
    fn clone(&self) -> Self {
        Self { content: self.content.clone(), key: PhantomData }
    }
}

impl<K> fmt::Debug for Message<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").finish_non_exhaustive()
    }
}

/// Encodes a message as `{"NAME":message}`, or as `"NAME"` if the topic's messages are `()`.
pub(crate) fn encode<T: Topic>(message: &T::Message) -> Vec<u8> {
    let mut payload = format!("{{\"{}\":", T::NAME).into_bytes();
    let start = payload.len();
    match serde_json::to_writer(&mut payload, message) {
        Ok(()) if payload[start..] == *b"null" => format!("\"{}\"", T::NAME).into_bytes(),
        Ok(()) => {
            payload.push(b'}');
            payload
        }
        // An empty payload belongs to no topic, so subscribers receive a gap.
        Err(_) => Vec::new(),
    }
}

/// Returns the message in a payload that [`encode`] wrote for the topic of this name.
fn body<'a>(name: &str, payload: &'a [u8]) -> Option<&'a [u8]> {
    let after_name = |text: &'a [u8]| -> Option<&'a [u8]> {
        text.strip_prefix(b"\"")?.strip_prefix(name.as_bytes())?.strip_prefix(b"\"")
    };
    match payload.strip_prefix(b"{") {
        Some(inside) => after_name(inside)?.strip_prefix(b":")?.strip_suffix(b"}"),
        None => after_name(payload)?.is_empty().then_some(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    enum Moved {}

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct To {
        place: u32,
    }

    impl Topic for Moved {
        type Key = Player;
        type Message = To;
        const NAME: &'static str = "moved";
    }

    enum Stopped {}

    impl Topic for Stopped {
        type Key = Player;
        type Message = ();
        const NAME: &'static str = "stopped";
    }

    fn received<T: Topic>(payload: &[u8]) -> Option<Arc<T::Message>> {
        Message::<T::Key>::encoded(payload).read::<T>()
    }

    #[test]
    fn message_is_tagged_with_the_name_of_its_topic() {
        assert_eq!(encode::<Moved>(&To { place: 3 }), br#"{"moved":{"place":3}}"#);
        assert_eq!(encode::<Stopped>(&()), br#""stopped""#);
        assert_eq!(received::<Moved>(br#"{"moved":{"place":3}}"#).as_deref(), Some(&To { place: 3 }));
        assert_eq!(received::<Moved>(br#"{"moved":{"place":3,"new":1}}"#).as_deref(), Some(&To { place: 3 }));
        assert_eq!(received::<Stopped>(br#""stopped""#).as_deref(), Some(&()));
        assert_eq!(received::<Stopped>(br#"{"stopped":null}"#).as_deref(), Some(&()));
    }

    #[test]
    fn unknown_payload_is_not_read() {
        let payloads: [&[u8]; 13] = [
            b"",
            b"{",
            b"\"",
            b"\xff",
            b"null",
            br#"{"moved":}"#,
            br#"{"moved":{}}"#,
            br#"{"moved":{"place":3}"#,
            br#"{"mover":{"place":3}}"#,
            br#"{"moved_on":{"place":3}}"#,
            br#"{"stopped":{"place":3}}"#,
            br#"{"moved":{"place":3},"stopped":null}"#,
            br#""stopped"s"#,
        ];
        for payload in payloads {
            assert_eq!(received::<Moved>(payload), None, "{}", String::from_utf8_lossy(payload));
            assert_eq!(received::<Stopped>(payload), None, "{}", String::from_utf8_lossy(payload));
        }
        assert_eq!(received::<Moved>(br#""stopped""#), None);
        assert_eq!(received::<Stopped>(br#"{"moved":{"place":3}}"#), None);
    }
}
