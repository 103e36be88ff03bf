//! The assigner that calls a service of the game, and gives back unused servers.
//!
//! Requests are signed as Standard Webhooks describes. Requests for the same matches have the same `webhook-id` and the
//! same body, so that the service can treat them idempotently.

mod response;

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
use webhook::{MessageId, Secrets};

use super::plugins::{AllocationError, AllocationResponse, Allocator, Assigner, PluginError, PluginFuture};
use crate::allocation::AbandonedMatch;
use crate::model::{Assignment, BackfillId, Match, MatchId, Team, Ticket, TicketId};
use crate::wire;

/// The largest response body that is read.
const MAX_RESPONSE: usize = 16 << 20;

/// The settings of the service.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// The service's name in allocations and give-back calls.
    pub name: Arc<str>,
    pub url: Url,
    /// The address that receives matches to give back.
    pub abandon_url: Url,
    /// The secrets that sign the requests.
    pub secrets: Option<Secrets>,
    /// The timeout of one request.
    pub timeout: Duration,
}

/// Requests game servers from a service.
#[derive(Debug)]
pub struct Webhook {
    config: WebhookConfig,
    client: reqwest::Client,
    clock: Clock,
}

/// A request for servers.
#[derive(Serialize)]
struct AssignRequest<'a> {
    /// Distinguishes it from `match.abandoned`, which may go to the same address.
    r#type: &'static str,
    matches: Vec<RequestedMatch<'a>>,
}

#[derive(Serialize)]
struct RequestedMatch<'a> {
    match_id: String,
    match_profile: &'a str,
    /// The version of the profile: 0 for the one of the configuration.
    profile_version: i64,
    match_function: &'a str,
    tickets: Vec<RequestedTicket<'a>>,
    /// The rule set that made the match, and its version. Absent for other match functions, as are teams and regions.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_set: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_set_version: Option<&'a str>,
    /// The definition of the rule set, and its version: 0 for the one of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    definition: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    definition_version: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    teams: Vec<RequestedTeam<'a>>,
    /// The backfill that the match gets for its open places, for the game server to acknowledge.
    #[serde(skip_serializing_if = "Option::is_none")]
    backfill_id: Option<&'a str>,
    /// The regions that suit all players, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    regions: Vec<RequestedRegion<'a>>,
}

#[derive(Serialize)]
struct RequestedTeam<'a> {
    name: &'a str,
    ticket_ids: Vec<&'a str>,
    /// How many more players it has room for.
    open: usize,
}

#[derive(Serialize)]
struct RequestedRegion<'a> {
    name: &'a str,
    latency_ms: f64,
}

#[derive(Serialize)]
struct RequestedTicket<'a> {
    id: &'a str,
    /// The player. Absent if an Open Match client created the ticket without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    /// All players of a party's ticket. Absent from other tickets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    user_ids: Vec<String>,
    /// Milliseconds since the Unix epoch.
    created_at: i64,
    double_args: &'a BTreeMap<String, f64>,
    string_args: &'a BTreeMap<String, String>,
    tags: &'a [String],
}

/// Gives servers back, in the form that Standard Webhooks recommends.
#[derive(Serialize)]
struct GiveBackMessage<'a> {
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

/// Why a request failed.
struct RequestError {
    cause: String,
    /// Whether a retry may succeed.
    is_transient: bool,
    /// Whether the service may have carried out the request.
    in_doubt: bool,
}

impl Webhook {
    pub fn new(config: WebhookConfig, clock: Clock) -> Result<Self, PluginError> {
        // A redirect would send the body to an address that the operator did not configure.
        let client = reqwest::Client::builder()
            .timeout(config.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        wire::register_types();
        Ok(Self { config, client, clock })
    }

    /// Sends one request. A retry for the same matches is the same request.
    async fn request_servers(&self, matches: &[Match]) -> Result<AllocationResponse, AllocationError> {
        let Some(first) = matches.first() else { return Ok(AllocationResponse::default()) };
        let request =
            AssignRequest { r#type: "match.assign", matches: matches.iter().map(requested_match).collect() };
        let body = serde_json::to_vec(&request).map_err(|error| AllocationError::unsent(&error))?;
        let id: MessageId =
            format!("assign_{}", first.id).parse().map_err(|error| AllocationError::unsent(&error))?;
        match self.post(&self.config.url, &id, body.into(), self.config.timeout).await {
            Ok(text) => response::read_response(matches, &text),
            Err(RequestError { cause, is_transient, in_doubt }) => {
                Err(AllocationError { cause, in_doubt, is_transient })
            }
        }
    }

    /// Sends one request and returns the body of a successful response.
    async fn post(
        &self,
        url: &Url,
        id: &MessageId,
        body: Bytes,
        limit: Duration,
    ) -> Result<Vec<u8>, RequestError> {
        let request = self
            .client
            .post(url.clone())
            .timeout(limit)
            .headers(webhook::headers(id, self.clock.now(), &body, self.config.secrets.as_ref()))
            .header("content-type", "application/json")
            .body(body);
        let mut response = request.send().await.map_err(RequestError::from_transport)?;
        let status = response.status();
        if !status.is_success() {
            return Err(RequestError::from_status(status));
        }
        let mut text = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(RequestError::from_transport)? {
            if text.len() + chunk.len() > MAX_RESPONSE {
                let cause = format!("the response is larger than {MAX_RESPONSE} bytes");
                return Err(RequestError { cause, is_transient: false, in_doubt: true });
            }
            text.extend_from_slice(&chunk);
        }
        Ok(text)
    }

    async fn send_give_back(&self, abandoned: &AbandonedMatch) -> Result<(), PluginError> {
        let message = GiveBackMessage {
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
        let id: MessageId = format!("abandoned_{}", abandoned.match_id).parse()?;
        match self.post(&self.config.abandon_url, &id, body, self.config.timeout).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.cause.into()),
        }
    }
}

impl RequestError {
    /// Creates the failure of a request without a response. A failed connection carried no request.
    fn from_transport(error: reqwest::Error) -> Self {
        let in_doubt = !error.is_connect();
        // The URL may contain secrets.
        Self { cause: chain(&error.without_url()), is_transient: true, in_doubt }
    }

    /// Creates the failure for an error status. A client error means that the service refused the request. Anything
    /// else may have been carried out, at least in part.
    fn from_status(status: StatusCode) -> Self {
        let timed_out = status == StatusCode::REQUEST_TIMEOUT;
        Self {
            cause: format!("the service answered {status}"),
            is_transient: status.is_server_error() || timed_out || status == StatusCode::TOO_MANY_REQUESTS,
            in_doubt: !status.is_client_error() || timed_out,
        }
    }
}

impl Assigner for Webhook {
    fn assign<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<(MatchId, Assignment)>> {
        let assigning = async {
            match self.allocate(matches).await {
                Ok(allocated) => Ok(allocated.servers),
                Err(error) => Err(error.cause.into()),
            }
        };
        assigning.boxed()
    }

    fn allocator(&self) -> Option<&dyn Allocator> {
        Some(self)
    }
}

impl Allocator for Webhook {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn allocate<'a>(
        &'a self,
        matches: &'a [Match],
    ) -> BoxFuture<'a, Result<AllocationResponse, AllocationError>> {
        self.request_servers(matches).boxed()
    }

    fn give_back<'a>(&'a self, abandoned: &'a AbandonedMatch) -> PluginFuture<'a, ()> {
        self.send_give_back(abandoned).boxed()
    }
}

fn requested_team(team: &Team) -> RequestedTeam<'_> {
    let ticket_ids = team.tickets.iter().map(TicketId::as_str).collect();
    RequestedTeam { name: &team.name, ticket_ids, open: team.open }
}

fn requested_match(match_: &Match) -> RequestedMatch<'_> {
    let lineup = match_.lineup.as_deref();
    let definition = lineup.and_then(|lineup| lineup.definition.as_ref());
    RequestedMatch {
        match_id: match_.id.to_string(),
        match_profile: &match_.profile,
        profile_version: match_.profile_version,
        match_function: &match_.function,
        tickets: match_.tickets.iter().map(|ticket| requested_ticket(ticket)).collect(),
        rule_set: lineup.map(|lineup| &*lineup.rule_set),
        rule_set_version: lineup.and_then(|lineup| lineup.version.as_deref()),
        definition: definition.map(|(name, _)| &**name),
        definition_version: definition.map(|(_, version)| *version),
        teams: lineup.iter().flat_map(|lineup| &lineup.teams).map(requested_team).collect(),
        backfill_id: match_.backfill.as_ref().map(BackfillId::as_str),
        regions: lineup
            .iter()
            .flat_map(|lineup| &lineup.regions)
            .map(|(name, latency)| RequestedRegion { name, latency_ms: *latency })
            .collect(),
    }
}

fn requested_ticket(ticket: &Ticket) -> RequestedTicket<'_> {
    RequestedTicket {
        id: ticket.id.as_str(),
        user_id: ticket.user.map(|user| user.to_string()),
        user_ids: ticket.members.iter().map(|user| user.to_string()).collect(),
        created_at: ticket.created.micros() / 1000,
        double_args: &ticket.fields.doubles,
        string_args: &ticket.fields.strings,
        tags: &ticket.fields.tags,
    }
}
