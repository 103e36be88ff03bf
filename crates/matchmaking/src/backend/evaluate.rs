//! Evaluators: they choose among the proposals of a cycle.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use buffa::Message;
use buffa_types::google::protobuf::Any;
use connectrpc::client::{CallOptions, HttpClient};
use proto::openmatch::{self, EvaluatorClient as GrpcClient};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::function::{RestLines, grpc_config, grpc_error, rest_client, time_until};

/// How much later the deadline of an evaluator is than that of its cycle. So Directors get the error of the cycle.
const GRACE: Duration = Duration::from_secs(1);

/// The extension of a match with its score.
const SCORE: &str = "evaluation_input";
const SCORE_TYPE: &str = "openmatch.DefaultEvaluationCriteria";

/// Where an evaluator is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluatorAddress {
    is_rest: bool,
    /// Host and port.
    address: String,
}

/// Calls the evaluator, or chooses by score if there is none.
#[derive(Clone, Debug)]
pub(super) struct EvaluatorClient {
    address: Option<EvaluatorAddress>,
    grpc: HttpClient,
    rest: reqwest::Client,
}

/// An evaluation while it runs. Dropping it cancels the evaluator.
#[derive(Debug)]
pub(super) struct Evaluation {
    input: Input,
    chosen: UnboundedReceiver<Result<String, String>>,
    calling: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Input {
    Scored(Vec<Scored>, UnboundedSender<Result<String, String>>),
    Remote(UnboundedSender<openmatch::Match>),
    Closed,
}

/// A proposal, as far as the default evaluator looks at it.
#[derive(Clone, Debug)]
struct Scored {
    id: String,
    score: f64,
    tickets: Vec<String>,
    /// Empty if there is none.
    backfill: String,
}

impl EvaluatorClient {
    pub(super) fn new(address: Option<EvaluatorAddress>) -> Result<Self, reqwest::Error> {
        Ok(Self { address, grpc: HttpClient::plaintext_http2_only(), rest: rest_client()? })
    }

    /// Begins an evaluation, which must end by `until`.
    pub(super) fn start(&self, until: Instant) -> Evaluation {
        let (chosen, results) = mpsc::unbounded_channel();
        let Some(EvaluatorAddress { is_rest, address }) = self.address.clone() else {
            return Evaluation { input: Input::Scored(Vec::new(), chosen), chosen: results, calling: None };
        };
        let (input, proposals) = mpsc::unbounded_channel();
        let (grpc, rest) = (self.grpc.clone(), self.rest.clone());
        let calling = tokio::spawn(async move {
            let done = if is_rest {
                evaluate_rest(&rest, &address, proposals, &chosen, until).await
            } else {
                evaluate_grpc(grpc, &address, proposals, &chosen, until).await
            };
            if let Err(cause) = done {
                // An error means that the cycle is over.
                let _ = chosen.send(Err(cause));
            }
        });
        Evaluation { input: Input::Remote(input), chosen: results, calling: Some(calling) }
    }
}

impl Evaluation {
    /// Adds a proposal.
    pub(super) fn send(&mut self, proposal: &openmatch::Match) {
        match &mut self.input {
            Input::Scored(proposals, _) => proposals.extend(Scored::read(proposal)),
            // An error means that the evaluator has failed, which `next` reports.
            Input::Remote(input) => drop(input.send(proposal.clone())),
            Input::Closed => {}
        }
    }

    /// Ends the proposals.
    pub(super) fn close(&mut self) {
        if let Input::Scored(proposals, chosen) = std::mem::replace(&mut self.input, Input::Closed) {
            for id in best(proposals) {
                let _ = chosen.send(Ok(id));
            }
        }
    }

    /// Returns the next match that the evaluator chose. Returns `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<String, String>> {
        self.chosen.recv().await
    }
}

impl Drop for Evaluation {
    fn drop(&mut self) {
        if let Some(calling) = &self.calling {
            calling.abort();
        }
    }
}

async fn evaluate_grpc(
    client: HttpClient,
    address: &str,
    mut proposals: UnboundedReceiver<openmatch::Match>,
    chosen: &UnboundedSender<Result<String, String>>,
    until: Instant,
) -> Result<(), String> {
    let failed =
        |error| format!("failed to get response from evaluator client, desc: {}", grpc_error(&error));
    let config = grpc_config(address).map_err(failed)?;
    let client = GrpcClient::new(client, config);
    let options = CallOptions::default().with_timeout(time_until(until + GRACE));
    let call = client.evaluate_with_options(options).await.map_err(failed)?;
    let (mut requests, mut responses) = call.into_split();
    let sending = async {
        while let Some(proposal) = proposals.recv().await {
            let request = openmatch::EvaluateRequest { r#match: proposal.into(), ..Default::default() };
            if requests.send(request).await.is_err() {
                // The response says why.
                break;
            }
        }
        requests.close_send();
    };
    let receiving = async {
        while let Some(response) = responses.message().await.map_err(failed)? {
            let _ = chosen.send(Ok(response.to_owned_message().match_id));
        }
        Ok(())
    };
    let ((), received) = tokio::join!(sending, receiving);
    received
}

async fn evaluate_rest(
    client: &reqwest::Client,
    address: &str,
    mut proposals: UnboundedReceiver<openmatch::Match>,
    chosen: &UnboundedSender<Result<String, String>>,
    until: Instant,
) -> Result<(), String> {
    let mut body = Vec::new();
    while let Some(proposal) = proposals.recv().await {
        let request = openmatch::EvaluateRequest { r#match: proposal.into(), ..Default::default() };
        serde_json::to_writer(&mut body, &request).map_err(|error| error.to_string())?;
        body.push(b'\n');
    }
    let failed = |cause| format!("failed to get response from evaluator client, desc: {cause}");
    let url = format!("http://{address}/v1/evaluator/matches:evaluate");
    let mut lines = RestLines::post_bytes(client, &url, body, until + GRACE).await.map_err(failed)?;
    while let Some(response) = lines.next::<openmatch::EvaluateResponse>().await.map_err(failed)? {
        let _ = chosen.send(Ok(response.match_id));
    }
    Ok(())
}

impl Scored {
    /// Reads the score of a proposal. A proposal without one comes last; one with an unreadable score is dropped.
    fn read(proposal: &openmatch::Match) -> Option<Self> {
        let score = match proposal.extensions.get(SCORE) {
            Some(any) => read_score(any)?,
            None => f64::NEG_INFINITY,
        };
        Some(Self {
            id: proposal.match_id.clone(),
            score,
            tickets: proposal.tickets.iter().map(|ticket| ticket.id.clone()).collect(),
            backfill: proposal.backfill.as_option().map(|backfill| backfill.id.clone()).unwrap_or_default(),
        })
    }
}

fn read_score(any: &Any) -> Option<f64> {
    let is_score = any.type_url.rsplit('/').next() == Some(SCORE_TYPE);
    let criteria =
        is_score.then(|| openmatch::DefaultEvaluationCriteria::decode_from_slice(&any.value).ok())??;
    Some(if criteria.score.is_nan() { f64::NEG_INFINITY } else { criteria.score })
}

/// Chooses the proposals with the highest scores, so that no two of them share a ticket or a backfill.
fn best(mut proposals: Vec<Scored>) -> Vec<String> {
    proposals.sort_by(|a, b| b.score.total_cmp(&a.score));
    let (mut tickets, mut backfills, mut chosen) = (HashSet::new(), HashSet::new(), Vec::new());
    for proposal in &proposals {
        let has_backfill = !proposal.backfill.is_empty();
        let collides = proposal.tickets.iter().any(|id| tickets.contains(id))
            || has_backfill && backfills.contains(&proposal.backfill);
        if !collides {
            tickets.extend(&proposal.tickets);
            backfills.extend(has_backfill.then_some(&proposal.backfill));
            chosen.push(proposal.id.clone());
        }
    }
    chosen
}

impl std::str::FromStr for EvaluatorAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (scheme, address) = text.split_once("://").ok_or(())?;
        let is_rest = match scheme {
            "grpc" => false,
            "http" => true,
            _ => return Err(()),
        };
        let (host, port) = address.rsplit_once(':').ok_or(())?;
        let is_sound =
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|port| port > 0);
        is_sound.then(|| Self { is_rest, address: address.to_owned() }).ok_or(())
    }
}

impl fmt::Display for EvaluatorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_rest { "http" } else { "grpc" };
        write!(f, "{scheme}://{}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(id: &str, score: f64, tickets: &[&str], backfill: &str) -> Scored {
        let tickets = tickets.iter().map(|&id| id.to_owned()).collect();
        Scored { id: id.to_owned(), score, tickets, backfill: backfill.to_owned() }
    }

    #[test]
    fn default_evaluator_chooses_as_the_original() {
        assert_eq!(best(Vec::new()), Vec::<String>::new());
        assert_eq!(best(vec![scored("1", 1.0, &["a"], "")]), ["1"]);
        let overlapping = vec![scored("1", 1.0, &["a", "b"], ""), scored("2", 2.0, &["b", "c"], "")];
        assert_eq!(best(overlapping), ["2"], "the higher score wins");
        let disjoint = vec![scored("1", 1.0, &["a"], ""), scored("2", 2.0, &["b"], "")];
        assert_eq!(best(disjoint), ["2", "1"]);
        let empty_ids = vec![scored("1", 1.0, &["a"], ""), scored("2", 1.0, &["b"], "")];
        assert_eq!(best(empty_ids).len(), 2, "empty backfill ids never collide");
        let backfills = vec![scored("1", 1.0, &["a"], "x"), scored("2", 2.0, &["b"], "x")];
        assert_eq!(best(backfills), ["2"], "a backfill is in one match");
        let unscored = vec![scored("1", f64::NEG_INFINITY, &["a"], ""), scored("2", -9.0, &["a"], "")];
        assert_eq!(best(unscored), ["2"], "a match without a score comes last");
    }

    #[test]
    fn scores_are_read_from_the_extension() {
        let with = |any: Option<Any>| {
            let mut match_ = openmatch::Match { match_id: "m".to_owned(), ..Default::default() };
            match_.extensions.extend(any.map(|any| (SCORE.to_owned(), any)));
            Scored::read(&match_).map(|scored| scored.score)
        };
        let any = |type_url: &str, value: Vec<u8>| Any {
            type_url: type_url.to_owned(),
            value: value.into(),
            ..Default::default()
        };
        let value = openmatch::DefaultEvaluationCriteria { score: 2.5, ..Default::default() }.encode_to_vec();
        let name = "type.googleapis.com/openmatch.DefaultEvaluationCriteria";
        assert_eq!(with(None), Some(f64::NEG_INFINITY));
        assert_eq!(with(Some(any(name, value.clone()))), Some(2.5));
        assert_eq!(with(Some(any(name, vec![0xff]))), None, "undecodable: dropped");
        assert_eq!(with(Some(any("type.googleapis.com/google.protobuf.StringValue", value))), None);
    }

    #[test]
    fn address_needs_a_scheme_and_a_port() {
        for good in ["grpc://evaluator:50508", "http://10.0.0.1:51508", "grpc://[::1]:1"] {
            assert_eq!(good.parse::<EvaluatorAddress>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "evaluator:1",
            "https://evaluator:1",
            "grpc://evaluator",
            "grpc://:1",
            "http://e/x:1",
            "grpc://e:0",
        ] {
            assert!(bad.parse::<EvaluatorAddress>().is_err(), "{bad}");
        }
    }
}
