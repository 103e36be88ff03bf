//! The assigner that asks a service of the game.
//!
//! The request is signed as Standard Webhooks describes it: `webhook-id`, `webhook-timestamp` and `webhook-signature`, the latter
//! HMAC-SHA256 over `id.timestamp.body`.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use config::Secret;
use futures::FutureExt;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use url::Url;

use super::plugins::{Answer, Assigner, PluginError};
use crate::model::{Assignment, Match, MatchId, Ticket};

/// How much of an answer is read.
const MAX_ANSWER: usize = 16 << 20;

/// Where the service is.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    pub url: Url,
    /// Signs the requests; what stands behind `whsec_` is base64.
    pub secret: Option<Secret>,
    pub timeout: Duration,
}

/// Asks a service where matches are played.
#[derive(Debug)]
pub struct Webhook {
    config: WebhookConfig,
    key: Option<Vec<u8>>,
    client: reqwest::Client,
    clock: Clock,
}

#[derive(Serialize)]
struct Question<'a> {
    matches: Vec<AskedMatch<'a>>,
}

#[derive(Serialize)]
struct AskedMatch<'a> {
    match_id: String,
    match_profile: &'a str,
    match_function: &'a str,
    tickets: Vec<AskedTicket<'a>>,
}

#[derive(Serialize)]
struct AskedTicket<'a> {
    id: &'a str,
    /// Milliseconds since the Unix epoch.
    created_at: i64,
    double_args: &'a BTreeMap<String, f64>,
    string_args: &'a BTreeMap<String, String>,
    tags: &'a [String],
}

#[derive(Deserialize)]
struct Reply {
    assignments: Vec<ReplyAssignment>,
}

#[derive(Deserialize)]
struct ReplyAssignment {
    match_id: String,
    connection: String,
}

impl Webhook {
    pub fn new(config: WebhookConfig, clock: Clock) -> Result<Self, PluginError> {
        // A redirect would be followed with the body and without the operator's knowledge.
        let client = reqwest::Client::builder()
            .timeout(config.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let key = config.secret.as_ref().map(|secret| key(secret.expose())).transpose()?;
        Ok(Self { config, key, client, clock })
    }

    async fn ask(&self, matches: &[Match]) -> Result<Vec<(MatchId, Assignment)>, PluginError> {
        let question = Question { matches: matches.iter().map(asked_match).collect() };
        let body = serde_json::to_vec(&question)?;
        let id = MatchId::generate().to_string();
        let timestamp = (self.clock.now().as_millis() / 1000).to_string();
        let mut request =
            self.client.post(self.config.url.clone()).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("webhook-signature", signature(key, &id, &timestamp, &body));
        }
        let request = request.header("webhook-id", id).header("webhook-timestamp", timestamp).body(body);
        let mut answer = request.send().await?;
        if !answer.status().is_success() {
            return Err(format!("the service answered {}", answer.status()).into());
        }
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            if text.len() + chunk.len() > MAX_ANSWER {
                return Err(format!("the answer is larger than {MAX_ANSWER} bytes").into());
            }
            text.extend_from_slice(&chunk);
        }
        let reply: Reply = serde_json::from_slice(&text)?;
        reply
            .assignments
            .into_iter()
            // Nowhere is no place to play at.
            .filter(|assigned| !assigned.connection.is_empty())
            .map(|assigned| Ok((assigned.match_id.parse()?, Assignment::to(assigned.connection))))
            .collect()
    }
}

impl Assigner for Webhook {
    fn assign<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<(MatchId, Assignment)>> {
        self.ask(matches).boxed()
    }
}

fn asked_match(made: &Match) -> AskedMatch<'_> {
    AskedMatch {
        match_id: made.id.to_string(),
        match_profile: &made.profile,
        match_function: &made.function,
        tickets: made.tickets.iter().map(|ticket| asked_ticket(ticket)).collect(),
    }
}

fn asked_ticket(ticket: &Ticket) -> AskedTicket<'_> {
    AskedTicket {
        id: ticket.id.as_str(),
        created_at: ticket.created.micros() / 1000,
        double_args: &ticket.fields.doubles,
        string_args: &ticket.fields.strings,
        tags: &ticket.fields.tags,
    }
}

/// The key that a secret stands for.
fn key(secret: &str) -> Result<Vec<u8>, PluginError> {
    match secret.strip_prefix("whsec_") {
        Some(encoded) => Ok(BASE64.decode(encoded).map_err(|_| "what stands behind whsec_ is not base64")?),
        None => Ok(secret.as_bytes().to_vec()),
    }
}

fn signature(key: &[u8], id: &str, timestamp: &str, body: &[u8]) -> String {
    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_signed_as_standard_webhooks_are() {
        // The example of the specification.
        let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature =
            signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b"{\"test\": 2432232314}");
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
