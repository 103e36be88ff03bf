//! The assigner that asks a service of the game.
//!
//! The request is signed as Standard Webhooks describes it.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Clock;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use url::Url;
use webhook::Secrets;

use super::plugins::{Answer, Assigner, PluginError};
use crate::model::{Assignment, Match, MatchId, Ticket};

/// How much of an answer is read.
const MAX_ANSWER: usize = 16 << 20;

/// Where the service is.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    pub url: Url,
    /// Signs the requests.
    pub secrets: Option<Secrets>,
    pub timeout: Duration,
}

/// Asks a service where matches are played.
#[derive(Debug)]
pub struct Webhook {
    config: WebhookConfig,
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
        Ok(Self { config, client, clock })
    }

    async fn ask(&self, matches: &[Match]) -> Result<Vec<(MatchId, Assignment)>, PluginError> {
        let question = Question { matches: matches.iter().map(asked_match).collect() };
        let body = serde_json::to_vec(&question)?;
        let id = MatchId::generate().to_string().parse()?;
        let request = self
            .client
            .post(self.config.url.clone())
            .headers(webhook::headers(&id, self.clock.now(), &body, self.config.secrets.as_ref()))
            .header("content-type", "application/json")
            .body(body);
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
