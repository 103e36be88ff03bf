//! Sends notifications of services: to one user, to several, or to all.

use std::sync::Arc;

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{IdempotencyKey, KeyLookup, RequestFingerprint, Tx};
use runtime::telemetry::TraceContext;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::broadcast::Broadcast;
use crate::model::{AddressedMessage, Channel, Message, Text, Texts};
use crate::service::CreatedBatch;
use crate::{Error, Notifications};

/// How many users a request can name.
pub const MAX_USERS: usize = 1_000;
/// The longest title and body, in characters, and the largest data, in bytes.
const MAX_TITLE: usize = 200;
const MAX_BODY: usize = 4_000;
const MAX_DATA: usize = 16 << 10;

/// A request of a service to notify users.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub to: Recipients,
    pub content: Content,
    /// JSON for the client, and for the fields of a template.
    pub data: Value,
    pub expires_at: Option<Timestamp>,
}

/// The recipients of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipients {
    Users(Vec<UserId>),
    /// All users who are not erased.
    All,
}

/// The content of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The name of a template in the configuration.
    Template(String),
    /// The texts by language, and the channels.
    Texts(Texts, Vec<Channel>),
}

/// The result of a request, as it is also recorded for its idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendReceipt {
    /// The id of the request. It is also the id of the broadcast to all users.
    pub id: Uuid,
    /// How many users have it in their inbox now; none for a broadcast.
    pub notified: Option<u64>,
    /// The users who do not exist or were erased.
    pub unknown: Vec<Uuid>,
}

impl Notifications {
    /// Sends a notification. A repetition under the same key returns the recorded receipt, and `true`.
    pub async fn send(
        &self,
        caller: &str,
        key: &str,
        request: &Request,
    ) -> Result<(SendReceipt, bool), Error> {
        let key = IdempotencyKey::new(caller, key, request.fingerprint())?;
        let message = Arc::new(self.message(request)?);
        // Before the transaction: a transaction that waits for a second connection may wait forever.
        let existing = match &request.to {
            Recipients::Users(users) => self.0.accounts.filter_existing(users).await?,
            Recipients::All => Vec::new(),
        };
        let (receipt, created) = self.retrying(|| self.try_send(&key, request, &existing, &message)).await?;
        self.deliver(&created).await;
        Ok(receipt)
    }

    async fn try_send(
        &self,
        key: &IdempotencyKey,
        request: &Request,
        existing: &[UserId],
        message: &Arc<Message>,
    ) -> Result<((SendReceipt, bool), CreatedBatch), Error> {
        let mut tx = self.begin().await?;
        let lookup = key.look_up(&mut tx).await?;
        match lookup.or_legacy(|| request.legacy_fingerprint().into_bytes()) {
            KeyLookup::RecordedResponse(response) => {
                let corrupt = |cause| self.0.db.corrupt("idempotency_keys", key.row(), cause);
                let receipt = serde_json::from_str(&response).map_err(corrupt)?;
                Ok(((receipt, true), CreatedBatch::default()))
            }
            KeyLookup::Unreadable(cause) => {
                Err(self.0.db.corrupt("idempotency_keys", key.row(), cause).into())
            }
            KeyLookup::OtherRequest(_) => Err(Error::KeyReused),
            KeyLookup::New => {
                let (receipt, created) = self.send_in(&mut tx, request, existing, message).await?;
                // A struct of plain values always serializes.
                key.record(&mut tx, &Uuid::nil(), &serde_json::to_string(&receipt).unwrap_or_default());
                tx.commit().await?;
                Ok(((receipt, false), created))
            }
        }
    }

    async fn send_in(
        &self,
        tx: &mut Tx,
        request: &Request,
        existing: &[UserId],
        message: &Arc<Message>,
    ) -> Result<(SendReceipt, CreatedBatch), Error> {
        let id = Uuid::now_v7();
        let users = match &request.to {
            Recipients::All => {
                self.0.broadcasts.push(tx, id, &Broadcast::new(message.as_ref().clone()));
                return Ok((
                    SendReceipt { id, notified: None, unknown: Vec::new() },
                    CreatedBatch::default(),
                ));
            }
            Recipients::Users(users) => users,
        };
        let unknown: Vec<Uuid> =
            users.iter().filter(|user| !existing.contains(user)).map(|user| *user.as_uuid()).collect();
        if let ([only], [_]) = (&users[..], &unknown[..]) {
            return Err(Error::UnknownUser(*only));
        }
        let messages: Vec<AddressedMessage> =
            existing.iter().map(|user| AddressedMessage::new(id, *user.as_uuid(), message)).collect();
        let created = self.create(tx, &messages).await?;
        Ok((SendReceipt { id, notified: Some(created.len() as u64), unknown }, created))
    }

    /// Counts the users who would get a broadcast, up to `cap + 1`.
    pub(crate) async fn count_recipients(&self, cap: u64) -> Result<u64, Error> {
        let limit = u32::try_from(cap).unwrap_or(u32::MAX - 1).saturating_add(1);
        Ok(self.0.accounts.ids_after(None, limit).await?.len() as u64)
    }

    /// Validates a request and renders its message.
    pub(crate) fn message(&self, request: &Request) -> Result<Message, Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if let Recipients::Users(users) = &request.to {
            if users.is_empty() {
                return invalid("name at least one user, or all".to_owned());
            }
            if users.len() > MAX_USERS {
                return Err(Error::TooMany { max: MAX_USERS });
            }
        }
        if !request.data.is_object() {
            return invalid("data must be an object".to_owned());
        }
        if request.data.to_string().len() > MAX_DATA {
            return invalid(format!("data must have at most {MAX_DATA} bytes"));
        }
        let now = self.0.clock.now();
        let mut message = match &request.content {
            Content::Template(name) => {
                let Some(template) = self.0.rules.named(name) else {
                    let names = self.0.rules.names();
                    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                    return invalid(format!(
                        "there is no template {name:?} for services; the templates are: {known}"
                    ));
                };
                if let Some(missing) =
                    template.fields().iter().find(|field| request.data[field.as_str()].is_null())
                {
                    return invalid(format!("the template {name:?} needs data.{missing}"));
                }
                template
                    .message(request.data.clone(), now)
                    .map_err(|error| Error::Invalid(error.to_string()))?
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
        return invalid(
            "there are no texts: give them in at least one language, or name a template".to_owned(),
        );
    }
    for (language, text) in texts {
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !(1..=35).contains(&language.len()) || !language.chars().all(is_valid) {
            return invalid(format!(
                "{language:?} is not a language: expected one such as \"en\" or \"pt-br\""
            ));
        }
        if !(1..=MAX_TITLE).contains(&text.title.chars().count()) {
            return invalid(format!("texts.{language}.title must have 1 to {MAX_TITLE} characters"));
        }
        if text.body.chars().count() > MAX_BODY {
            return invalid(format!("texts.{language}.body must have at most {MAX_BODY} characters"));
        }
    }
    Ok(())
}

impl Request {
    /// Returns the fingerprint, which is equal for equal requests. A test pins it: see [`RequestFingerprint`].
    fn fingerprint(&self) -> RequestFingerprint {
        let fingerprint = RequestFingerprint::new("notification.send");
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
        fingerprint.json(&self.data).option(expires_at, RequestFingerprint::integer)
    }

    /// Returns the text that earlier versions hashed as the fingerprint.
    fn legacy_fingerprint(&self) -> String {
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

    /// Another program computed the expected values. If they changed, a retry of a request from before an upgrade would be refused.
    #[test]
    fn fingerprint_of_a_request_never_changes() {
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
        assert_eq!(all.legacy_fingerprint(), "all\nTemplate(\"season\")\n{}\nNone");
    }
}
