//! Match functions and evaluators: closures behind real gRPC and REST servers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use buffa_types::google::protobuf::Any;
use connectrpc::{
    ConnectError, ConnectRpcService, Encodable, InboundStream, RequestContext, Response, ServiceRequest,
    ServiceResult, ServiceStream,
};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use proto::openmatch::{
    self, Evaluator, EvaluatorExt, FunctionConfig, Match, MatchFunction, MatchFunctionExt, function_config,
};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver, UnboundedSender};

/// What a match function sends: proposals, or an error.
pub(crate) type Proposals = Sender<Result<Match, String>>;
type Function = Arc<dyn Fn(String, Proposals) -> BoxFuture<'static, ()> + Send + Sync>;
type Evaluation = Arc<
    dyn Fn(UnboundedReceiver<Match>, UnboundedSender<Result<String, String>>) -> BoxFuture<'static, ()>
        + Send
        + Sync,
>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Grpc,
    Rest,
}

/// Both protocols.
pub(crate) const KINDS: [Kind; 2] = [Kind::Grpc, Kind::Rest];

/// The deadlines that a server is given, as callers write them.
pub(crate) type Timeouts = UnboundedReceiver<String>;

/// Serves a match function. It gets the name of the profile.
pub(crate) async fn function<F>(
    kind: Kind,
    run: impl Fn(String, Proposals) -> F + Send + Sync + 'static,
) -> FunctionConfig
where
    F: Future<Output = ()> + Send + 'static,
{
    function_with_timeouts(kind, run).await.0
}

pub(crate) async fn function_with_timeouts<F>(
    kind: Kind,
    run: impl Fn(String, Proposals) -> F + Send + Sync + 'static,
) -> (FunctionConfig, Timeouts)
where
    F: Future<Output = ()> + Send + 'static,
{
    let served = ServedFunction(Arc::new(move |profile, proposals| run(profile, proposals).boxed()));
    let rest = served.clone();
    let router = Router::new().route(
        "/v1/matchfunction:run",
        post(async move |body: String| {
            let request: openmatch::RunRequest = serde_json::from_str(&body).unwrap();
            let lines =
                futures::stream::unfold(rest.start(request.profile.into_option()), next).map(|proposal| {
                    let line = match proposal {
                        Ok(proposal) => {
                            let response =
                                openmatch::RunResponse { proposal: proposal.into(), ..Default::default() };
                            json!({ "result": response })
                        }
                        Err(error) => json!({ "error": { "code": 2, "message": error } }),
                    };
                    Ok::<_, std::convert::Infallible>(format!("{line}\n"))
                });
            Body::from_stream(lines)
        }),
    );
    let (port, timeouts) = serve(router, Arc::new(served).register(connectrpc::Router::new())).await;
    let r#type = match kind {
        Kind::Grpc => function_config::Type::GRPC,
        Kind::Rest => function_config::Type::REST,
    };
    let config = FunctionConfig {
        host: "127.0.0.1".to_owned(),
        port: port.into(),
        r#type: r#type.into(),
        ..Default::default()
    };
    (config, timeouts)
}

/// Serves an evaluator. Returns its address, as in the settings.
pub(crate) async fn evaluator<F>(
    kind: Kind,
    evaluate: impl Fn(UnboundedReceiver<Match>, UnboundedSender<Result<String, String>>) -> F
    + Send
    + Sync
    + 'static,
) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    evaluator_with_timeouts(kind, evaluate).await.0
}

pub(crate) async fn evaluator_with_timeouts<F>(
    kind: Kind,
    evaluate: impl Fn(UnboundedReceiver<Match>, UnboundedSender<Result<String, String>>) -> F
    + Send
    + Sync
    + 'static,
) -> (String, Timeouts)
where
    F: Future<Output = ()> + Send + 'static,
{
    let served = ServedEvaluator(Arc::new(move |matches, chosen| evaluate(matches, chosen).boxed()));
    let rest = served.clone();
    let router = Router::new().route(
        "/v1/evaluator/matches:evaluate",
        post(async move |body: String| {
            let (sender, matches) = mpsc::unbounded_channel();
            for line in body.lines() {
                let request: openmatch::EvaluateRequest = serde_json::from_str(line).unwrap();
                sender.send(request.r#match.into_option().unwrap()).unwrap();
            }
            drop(sender);
            let (chosen, mut results) = mpsc::unbounded_channel();
            (rest.0)(matches, chosen).await;
            let mut answer = String::new();
            while let Some(result) = results.recv().await {
                let line = match result {
                    Ok(id) => json!({ "result": { "matchId": id } }),
                    Err(error) => json!({ "error": { "code": 2, "message": error } }),
                };
                answer += &format!("{line}\n");
            }
            answer
        }),
    );
    let (port, timeouts) = serve(router, Arc::new(served).register(connectrpc::Router::new())).await;
    let scheme = match kind {
        Kind::Grpc => "grpc",
        Kind::Rest => "http",
    };
    (format!("{scheme}://127.0.0.1:{port}"), timeouts)
}

/// Serves until the test ends.
async fn serve(rest: Router, grpc: connectrpc::Router) -> (u16, Timeouts) {
    let (told, timeouts) = mpsc::unbounded_channel();
    let router = rest.fallback_service(ConnectRpcService::new(grpc));
    let router = router.layer(axum::middleware::map_request(move |request: Request| {
        if let Some(timeout) = request.headers().get("grpc-timeout") {
            let _ = told.send(timeout.to_str().unwrap().to_owned());
        }
        async { request }
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (port, timeouts)
}

/// Returns the time that a caller gave a server.
pub(crate) async fn timeout(timeouts: &mut Timeouts) -> Duration {
    let text = timeouts.recv().await.unwrap();
    let (count, unit) = text.split_at(text.len() - 1);
    let count: u64 = count.parse().unwrap();
    match unit {
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => panic!("{text}"),
    }
}

#[derive(Clone)]
struct ServedFunction(Function);

impl ServedFunction {
    fn start(&self, profile: Option<openmatch::MatchProfile>) -> Receiver<Result<Match, String>> {
        let (proposals, receiver) = mpsc::channel(1);
        tokio::spawn((self.0)(profile.unwrap().name, proposals));
        receiver
    }
}

async fn next<T>(mut receiver: Receiver<T>) -> Option<(T, Receiver<T>)> {
    Some((receiver.recv().await?, receiver))
}

impl MatchFunction for ServedFunction {
    async fn run(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::RunRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<openmatch::RunResponse> + Send + use<>>> {
        let proposals = self.start(request.to_owned_message().profile.into_option());
        Ok(Response::stream(futures::stream::unfold(proposals, next).map(|proposal| {
            let proposal =
                proposal.map_err(|text| ConnectError::new(connectrpc::ErrorCode::Unknown, text))?;
            Ok(openmatch::RunResponse { proposal: proposal.into(), ..Default::default() })
        })))
    }
}

#[derive(Clone)]
struct ServedEvaluator(Evaluation);

impl Evaluator for ServedEvaluator {
    async fn evaluate(
        &self,
        _: RequestContext,
        mut requests: InboundStream<openmatch::EvaluateRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<openmatch::EvaluateResponse> + Send + use<>>> {
        let (sender, matches) = mpsc::unbounded_channel();
        let (chosen, results) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                let _ = sender.send(request.to_owned_message().r#match.into_option().unwrap());
            }
        });
        tokio::spawn((self.0)(matches, chosen));
        let results =
            futures::stream::unfold(results, async |mut results| Some((results.recv().await?, results)));
        Ok(Response::stream(results.map(|result: Result<String, String>| {
            let match_id = result.map_err(|text| ConnectError::new(connectrpc::ErrorCode::Unknown, text))?;
            Ok(openmatch::EvaluateResponse { match_id, ..Default::default() })
        })))
    }
}

/// Returns a proposal of these tickets.
pub(crate) fn proposal(id: &str, tickets: &[&openmatch::Ticket]) -> Match {
    Match {
        match_id: id.to_owned(),
        match_profile: "duel".to_owned(),
        match_function: "test".to_owned(),
        tickets: tickets.iter().map(|&ticket| ticket.clone()).collect(),
        ..Default::default()
    }
}

/// Returns a proposal with a score for the default evaluator.
pub(crate) fn scored(id: &str, score: f64, tickets: &[&openmatch::Ticket]) -> Match {
    use buffa::Message;
    let mut match_ = proposal(id, tickets);
    let value = openmatch::DefaultEvaluationCriteria { score, ..Default::default() }.encode_to_vec();
    let type_url = "type.googleapis.com/openmatch.DefaultEvaluationCriteria".to_owned();
    let score = Any { type_url, value: value.into(), ..Default::default() };
    match_.extensions.insert("evaluation_input".to_owned(), score);
    match_
}
