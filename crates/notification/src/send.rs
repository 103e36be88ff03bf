//! What services ask to be told: to one user, to some, or to all.

use std::sync::Arc;

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Earlier, Fingerprint, IdempotencyKey, Tx};
use runtime::telemetry::TraceContext;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::broadcast::Broadcast;
use crate::model::{Addressed, Channel, Message, Text, Texts};
use crate::service::Made;
use crate::{Error, Notifications};

/// How many users a request can name.
pub const MOST_USERS: usize = 1_000;
/// How long a title and a body may be, in characters; how large the data, in bytes.
const LONGEST_TITLE: usize = 200;
const LONGEST_BODY: usize = 4_000;
const LARGEST_DATA: usize = 16 << 10;

/// What a service asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub to: Recipients,
    pub content: Content,
    /// JSON for the client, and for the fields of a template.
    pub data: Value,
    pub expires_at: Option<Timestamp>,
}

/// Who is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipients {
    Users(Vec<UserId>),
    /// Everybody who is not erased.
    All,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// By a template of the configuration.
    Template(String),
    /// In so many words.
    Texts(Texts, Vec<Channel>),
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Of the request. The broadcast to all users goes by this name.
    pub id: Uuid,
    /// How many users have it in their inbox now; nothing when all users are being told.
    pub told: Option<u64>,
    /// Those who do not exist, or were erased.
    pub unknown: Vec<Uuid>,
}

impl Notifications {
    /// Tells users. Also says whether that had been done before, under the same key.
    pub async fn send(&self, caller: &str, key: &str, request: &Request) -> Result<(Sent, bool), Error> {
        let key = IdempotencyKey::new(caller, key, request.fingerprint())?;
        let message = Arc::new(self.message(request)?);
        // Before the transaction: whoever has a connection and waits for another one may wait for ever.
        let known = match &request.to {
            Recipients::Users(users) => self.0.accounts.known(users).await?,
            Recipients::All => Vec::new(),
        };
        let (sent, made) = self.retrying(|| self.try_send(&key, request, &known, &message)).await?;
        self.deliver(&made).await;
        Ok(sent)
    }

    async fn try_send(
        &self,
        key: &IdempotencyKey,
        request: &Request,
        known: &[UserId],
        message: &Arc<Message>,
    ) -> Result<((Sent, bool), Made), Error> {
        let mut tx = self.begin().await?;
        let earlier = key.earlier(&mut tx).await?;
        match earlier.or_before(|| request.before_fingerprints().into_bytes()) {
            Earlier::Answer(answer) => {
                let corrupt = |cause| self.0.db.corrupt("idempotency_keys", key.row(), cause);
                let sent = serde_json::from_str(&answer).map_err(corrupt)?;
                Ok(((sent, true), Made::default()))
            }
            Earlier::Unreadable(cause) => Err(self.0.db.corrupt("idempotency_keys", key.row(), cause).into()),
            Earlier::OtherRequest(_) => Err(Error::KeyReused),
            Earlier::Nothing => {
                let (sent, made) = self.send_in(&mut tx, request, known, message).await?;
                // It is made of plain values.
                key.record(&mut tx, &Uuid::nil(), &serde_json::to_string(&sent).unwrap_or_default());
                tx.commit().await?;
                Ok(((sent, false), made))
            }
        }
    }

    async fn send_in(
        &self,
        tx: &mut Tx,
        request: &Request,
        known: &[UserId],
        message: &Arc<Message>,
    ) -> Result<(Sent, Made), Error> {
        let id = Uuid::now_v7();
        let users = match &request.to {
            Recipients::All => {
                self.0.broadcasts.push(tx, id, &Broadcast::new(message.as_ref().clone()));
                return Ok((Sent { id, told: None, unknown: Vec::new() }, Made::default()));
            }
            Recipients::Users(users) => users,
        };
        let unknown: Vec<Uuid> =
            users.iter().filter(|user| !known.contains(user)).map(|user| *user.as_uuid()).collect();
        if let ([only], [_]) = (&users[..], &unknown[..]) {
            return Err(Error::UnknownUser(*only));
        }
        let messages: Vec<Addressed> =
            known.iter().map(|user| Addressed::new(id, *user.as_uuid(), message)).collect();
        let made = self.make(tx, &messages).await?;
        Ok((Sent { id, told: Some(made.len() as u64), unknown }, made))
    }

    /// What is told, if the request is sound.
    fn message(&self, request: &Request) -> Result<Message, Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if let Recipients::Users(users) = &request.to {
            if users.is_empty() {
                return invalid("name at least one user, or all".to_owned());
            }
            if users.len() > MOST_USERS {
                return Err(Error::TooMany { most: MOST_USERS });
            }
        }
        if !request.data.is_object() {
            return invalid("data must be an object".to_owned());
        }
        if request.data.to_string().len() > LARGEST_DATA {
            return invalid(format!("data may have {LARGEST_DATA} bytes at most"));
        }
        let now = self.0.clock.now();
        let mut message = match &request.content {
            Content::Template(name) => {
                let Some(template) = self.0.rules.named(name) else {
                    let names = self.0.rules.names();
                    let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                    return invalid(format!("there is no template {name:?} for services; there is {there}"));
                };
                if let Some(missing) =
                    template.fields().iter().find(|field| request.data[field.as_str()].is_null())
                {
                    return invalid(format!("the template {name:?} needs data.{missing}"));
                }
                template
                    .message(request.data.clone(), now)
                    .map_err(|untold| Error::Invalid(untold.to_string()))?
            }
            Content::Texts(texts, channels) => {
                check_texts(texts)?;
                self.check_channels(channels)?;
                Message {
                    template: String::new(),
                    texts: texts.clone(),
                    data: request.data.clone(),
                    channels: channels.iter().cloned().collect(),
                    expires_at: None,
                    traceparent: None,
                }
            }
        };
        if let Some(expires_at) = request.expires_at {
            if expires_at <= now {
                return invalid("expires_at is in the past".to_owned());
            }
            message.expires_at = Some(expires_at.as_millis());
        }
        message.traceparent = TraceContext::current().traceparent().map(ToOwned::to_owned);
        Ok(message)
    }

    fn check_channels(&self, channels: &[Channel]) -> Result<(), Error> {
        let webhooks = self.0.deliveries.webhooks();
        let unknown = channels.iter().find(|channel| match channel {
            Channel::Webhook(name) => !webhooks.names().any(|known| known == name),
            Channel::Live | Channel::Log => false,
        });
        match unknown {
            Some(channel) => Err(Error::Invalid(format!("there is no channel {channel}"))),
            None => Ok(()),
        }
    }
}

fn check_texts(texts: &Texts) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::Invalid(what));
    if texts.is_empty() {
        return invalid("say something: give texts in at least one language, or name a template".to_owned());
    }
    for (language, text) in texts {
        let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !(1..=35).contains(&language.len()) || !language.chars().all(sound) {
            return invalid(format!("{language:?} is no language: expected one such as \"en\" or \"pt-br\""));
        }
        if !(1..=LONGEST_TITLE).contains(&text.title.chars().count()) {
            return invalid(format!("texts.{language}.title must have 1 to {LONGEST_TITLE} characters"));
        }
        if text.body.chars().count() > LONGEST_BODY {
            return invalid(format!("texts.{language}.body may have {LONGEST_BODY} characters at most"));
        }
    }
    Ok(())
}

impl Request {
    /// What makes two requests the same. A test pins it: see [`Fingerprint`].
    fn fingerprint(&self) -> Fingerprint {
        let fingerprint = Fingerprint::of("notification.send");
        let fingerprint = match &self.to {
            Recipients::All => fingerprint.text("all"),
            Recipients::Users(users) => {
                fingerprint.text("users").list(users.iter(), |list, user| list.id(user.as_uuid()))
            }
        };
        let fingerprint = match &self.content {
            Content::Template(name) => fingerprint.text("template").text(name),
            Content::Texts(texts, channels) => fingerprint
                .text("texts")
                .list(texts.iter(), |list, (language, Text { title, body })| {
                    list.text(language).text(title).text(body)
                })
                .list(channels.iter(), |list, channel| list.text(&channel.to_string())),
        };
        let expires_at = self.expires_at.map(Timestamp::as_millis);
        fingerprint.json(&self.data).option(expires_at, Fingerprint::integer)
    }

    /// What fingerprints were made of before there were forms of them.
    fn before_fingerprints(&self) -> String {
        let to = match &self.to {
            Recipients::All => "all".to_owned(),
            Recipients::Users(users) => format!("{users:?}"),
        };
        let expires_at = self.expires_at.map(Timestamp::as_millis);
        format!("{to}\n{:?}\n{}\n{expires_at:?}", self.content, self.data)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hex(request: &Request) -> String {
        request.fingerprint().finish().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Computed once by another program. They never change: a retry from before an upgrade would be refused.
    #[test]
    fn the_fingerprint_of_a_request_never_changes() {
        let text = Text { title: "Hello".to_owned(), body: "You".to_owned() };
        let texts = Texts::from([("en".to_owned(), text)]);
        let users = [1, 2].map(|number| UserId::from_uuid(Uuid::from_u128(number)));
        let some = Request {
            to: Recipients::Users(users.to_vec()),
            content: Content::Texts(texts, vec![Channel::Live, Channel::Webhook("crm".to_owned())]),
            data: json!({ "season": 7, "days": [1, 2.5] }),
            expires_at: Some(Timestamp::from_millis(9_000)),
        };
        assert_eq!(hex(&some), "f6c310a7c5c6f3d7b1ab0ec7d44ad7ec4b9e386d6695ca8ff3419e2a98a928c2");
        let all = Request {
            to: Recipients::All,
            content: Content::Template("season".to_owned()),
            data: json!({}),
            expires_at: None,
        };
        assert_eq!(hex(&all), "066ae6a748b2399a7704764181495429f14eaa312833a573e0d50d0ddd438dce");
        assert_eq!(all.before_fingerprints(), "all\nTemplate(\"season\")\n{}\nNone");
    }
}
