//! The assigner that asks a service of the game, and gives back the servers that are not used.
//!
//! Requests are signed as Standard Webhooks describes it. A request for the same matches has the same `webhook-id` and the same body, so
//! that the service can answer it idempotently.

mod answer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::error::chain;
use base::{Clock, Timestamp};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::StatusCode;
use serde::Serialize;
use url::Url;
use webhook::{Id, Secrets};

use super::plugins::{Allocated, Allocator, Answer, Assigner, NotAllocated, PluginError};
use crate::allocation::AbandonedMatch;
use crate::model::{Assignment, Match, MatchId, Ticket};
use crate::wire;

/// How much of an answer is read.
const MAX_ANSWER: usize = 16 << 20;

/// Where the service is.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// Names the service in allocations and give-back calls.
    pub name: Arc<str>,
    pub url: Url,
    /// Where matches that are not made are given back.
    pub abandon_url: Url,
    /// Signs the requests.
    pub secrets: Option<Secrets>,
    /// How long one request may take.
    pub timeout: Duration,
}

/// Asks a service where matches are played.
#[derive(Debug)]
pub struct Webhook {
    config: WebhookConfig,
    client: reqwest::Client,
    clock: Clock,
}

/// Asks for servers.
#[derive(Serialize)]
struct Question<'a> {
    /// Tells it from `match.abandoned`, which may go to the same address.
    r#type: &'static str,
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
    /// The player, unless an Open Match client made the ticket for nobody that we know.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    /// Milliseconds since the Unix epoch.
    created_at: i64,
    double_args: &'a BTreeMap<String, f64>,
    string_args: &'a BTreeMap<String, String>,
    tags: &'a [String],
}

/// Gives servers back, in the form that Standard Webhooks recommends.
#[derive(Serialize)]
struct GiveBack<'a> {
    r#type: &'static str,
    timestamp: String,
    data: GiveBackData<'a>,
}

#[derive(Serialize)]
struct GiveBackData<'a> {
    match_id: &'a str,
    match_profile: &'a str,
    ticket_ids: &'a [String],
    reason: &'static str,
}

/// Why a request was not answered well.
struct Failure {
    cause: String,
    /// Whether the next attempt may succeed.
    is_passing: bool,
    /// Whether the service may have done what it was asked for.
    in_doubt: bool,
}

impl Webhook {
    pub fn new(config: WebhookConfig, clock: Clock) -> Result<Self, PluginError> {
        // A redirect would be followed with the body and without the operator's knowledge.
        let client = reqwest::Client::builder()
            .timeout(config.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        wire::register_types();
        Ok(Self { config, client, clock })
    }

    /// Asks once. Asking again for the same matches is the same request.
    async fn ask(&self, matches: &[Match]) -> Result<Allocated, NotAllocated> {
        let Some(first) = matches.first() else { return Ok(Allocated::default()) };
        let question =
            Question { r#type: "match.assign", matches: matches.iter().map(asked_match).collect() };
        let body = serde_json::to_vec(&question).map_err(|error| NotAllocated::unsent(&error))?;
        let id: Id = format!("assign_{}", first.id).parse().map_err(|error| NotAllocated::unsent(&error))?;
        match self.post(&self.config.url, &id, body.into(), self.config.timeout).await {
            Ok(text) => answer::judge(matches, &text),
            Err(Failure { cause, is_passing, in_doubt }) => Err(NotAllocated { cause, in_doubt, is_passing }),
        }
    }

    /// Sends one request and returns the body of an answer that is a success.
    async fn post(&self, url: &Url, id: &Id, body: Bytes, limit: Duration) -> Result<Vec<u8>, Failure> {
        let request = self
            .client
            .post(url.clone())
            .timeout(limit)
            .headers(webhook::headers(id, self.clock.now(), &body, self.config.secrets.as_ref()))
            .header("content-type", "application/json")
            .body(body);
        let mut answer = request.send().await.map_err(Failure::unanswered)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(Failure::answered(status));
        }
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(Failure::unanswered)? {
            if text.len() + chunk.len() > MAX_ANSWER {
                let cause = format!("the answer is larger than {MAX_ANSWER} bytes");
                return Err(Failure { cause, is_passing: false, in_doubt: true });
            }
            text.extend_from_slice(&chunk);
        }
        Ok(text)
    }

    async fn abandon(&self, abandoned: &AbandonedMatch) -> Result<(), PluginError> {
        let message = GiveBack {
            r#type: "match.abandoned",
            timestamp: Timestamp::from_millis(abandoned.asked_at).to_rfc3339(),
            data: GiveBackData {
                match_id: &abandoned.match_id,
                match_profile: &abandoned.match_profile,
                ticket_ids: &abandoned.ticket_ids,
                reason: abandoned.reason.word(),
            },
        };
        let body = Bytes::from(serde_json::to_vec(&message)?);
        let id: Id = format!("abandoned_{}", abandoned.match_id).parse()?;
        match self.post(&self.config.abandon_url, &id, body, self.config.timeout).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.cause.into()),
        }
    }
}

impl Failure {
    /// A connection that was never made carried no question.
    fn unanswered(error: reqwest::Error) -> Self {
        let in_doubt = !error.is_connect();
        // The URL may hold secrets.
        Self { cause: chain(&error.without_url()), is_passing: true, in_doubt }
    }

    /// A client error says that the service refused the question as it stands. Anything else may have been done, at least in part.
    fn answered(status: StatusCode) -> Self {
        let timed_out = status == StatusCode::REQUEST_TIMEOUT;
        Self {
            cause: format!("the service answered {status}"),
            is_passing: status.is_server_error() || timed_out || status == StatusCode::TOO_MANY_REQUESTS,
            in_doubt: !status.is_client_error() || timed_out,
        }
    }
}

impl Assigner for Webhook {
    fn assign<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<(MatchId, Assignment)>> {
        let asking = async {
            match self.allocate(matches).await {
                Ok(allocated) => Ok(allocated.servers),
                Err(error) => Err(error.cause.into()),
            }
        };
        asking.boxed()
    }

    fn allocator(&self) -> Option<&dyn Allocator> {
        Some(self)
    }
}

impl Allocator for Webhook {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn allocate<'a>(&'a self, matches: &'a [Match]) -> BoxFuture<'a, Result<Allocated, NotAllocated>> {
        self.ask(matches).boxed()
    }

    fn give_back<'a>(&'a self, abandoned: &'a AbandonedMatch) -> Answer<'a, ()> {
        self.abandon(abandoned).boxed()
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
        user_id: ticket.user.map(|user| user.to_string()),
        created_at: ticket.created.micros() / 1000,
        double_args: &ticket.fields.doubles,
        string_args: &ticket.fields.strings,
        tags: &ticket.fields.tags,
    }
}
