//! FrontendService and QueryService over gRPC, gRPC-Web and Connect: what the end-to-end tests of Open Match expect of them.

use std::time::Duration;

use buffa_types::google::protobuf::Timestamp;
use connectrpc::client::{ClientConfig, HttpClient};
use connectrpc::{CodecFormat, ConnectError, ErrorCode, Protocol};
use matchmaking::ProposedBackfill;
use matchmaking::model::{Moment, TicketId};
use matchmaking::store::{ClaimOutcome, ClaimRequest, Holder, Rules};
use proto::openmatch::{
    self, Assignment, BackendServiceClient, Backfill, FrontendServiceClient, Pool, QueryServiceClient,
    SearchFields, Ticket,
};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use testkit::eventually;

use crate::backend::function;
use crate::frontend::assign;
use crate::server::{LIMITS, Served, rules};

fn config(served: &Served, protocol: Protocol) -> ClientConfig {
    ClientConfig::new(format!("http://{}", served.address).parse().unwrap()).with_protocol(protocol)
}

fn transport(protocol: Protocol) -> HttpClient {
    if protocol == Protocol::Grpc { HttpClient::plaintext_http2_only() } else { HttpClient::plaintext() }
}

fn frontend(served: &Served, protocol: Protocol) -> FrontendServiceClient<HttpClient> {
    FrontendServiceClient::new(transport(protocol), config(served, protocol))
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Grpc, Protocol::GrpcWeb, Protocol::Connect];

fn refused<T>(answer: Result<T, ConnectError>) -> (ErrorCode, String) {
    let error = answer.err().unwrap();
    (error.code, error.message.unwrap_or_default())
}

async fn create(
    client: &FrontendServiceClient<HttpClient>,
    ticket: Option<Ticket>,
) -> Result<Ticket, ConnectError> {
    let request = openmatch::CreateTicketRequest { ticket: ticket.into(), ..Default::default() };
    client.create_ticket(request).await.map(|ticket| ticket.into_owned())
}

async fn get(client: &FrontendServiceClient<HttpClient>, id: &str) -> Result<Ticket, ConnectError> {
    let request = openmatch::GetTicketRequest { ticket_id: id.to_owned(), ..Default::default() };
    client.get_ticket(request).await.map(|ticket| ticket.into_owned())
}

async fn delete(client: &FrontendServiceClient<HttpClient>, id: &str) -> Result<(), ConnectError> {
    let request = openmatch::DeleteTicketRequest { ticket_id: id.to_owned(), ..Default::default() };
    client.delete_ticket(request).await.map(drop)
}

fn tagged(tag: &str) -> Option<SearchFields> {
    Some(SearchFields { tags: vec![tag.to_owned()], ..Default::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_are_created_read_and_deleted() {
    let served = Served::in_memory().await;
    for protocol in PROTOCOLS {
        let client = frontend(&served, protocol);
        let made = create(&client, Some(Ticket { search_fields: tagged("eu").into(), ..Default::default() }))
            .await
            .unwrap();
        assert!(
            made.id.len() == 20 && made.id.chars().all(|c| matches!(c, '0'..='9' | 'a'..='v')),
            "{}",
            made.id
        );
        assert!(made.create_time.is_set());
        assert_eq!(get(&client, &made.id).await.unwrap(), made);
        delete(&client, &made.id).await.unwrap();
        let words = format!("Ticket id: {} not found", made.id);
        assert_eq!(refused(get(&client, &made.id).await), (ErrorCode::NotFound, words), "{protocol:?}");
        delete(&client, &made.id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tickets_have_the_code_of_open_match() {
    let served = Served::in_memory().await;
    let assigned = Ticket { assignment: Some(Assignment::default()).into(), ..Default::default() };
    let dated = Ticket { create_time: Some(Timestamp::default()).into(), ..Default::default() };
    for protocol in PROTOCOLS {
        let client = frontend(&served, protocol);
        for (ticket, words) in [
            (None, ".ticket is required"),
            (Some(assigned.clone()), "tickets cannot be created with an assignment"),
            (Some(dated.clone()), "tickets cannot be created with create time set"),
        ] {
            let answer = refused(create(&client, ticket).await);
            assert_eq!(answer, (ErrorCode::InvalidArgument, words.to_owned()), "{protocol:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn assignment_from_before_the_watch_is_sent() {
    let served = Served::in_memory().await;
    for protocol in PROTOCOLS {
        let client = frontend(&served, protocol);
        let watch = async |id: &str| {
            let request =
                openmatch::WatchAssignmentsRequest { ticket_id: id.to_owned(), ..Default::default() };
            client.watch_assignments(request).await.unwrap()
        };
        let id = create(&client, Some(Ticket::default())).await.unwrap().id;
        assign(&served, &id, "10.0.0.1:7777").await;
        let first = watch(&id).await.message().await.unwrap().unwrap().to_owned_message();
        assert_eq!(first.assignment.connection, "10.0.0.1:7777", "{protocol:?}");
        assert_eq!(get(&client, &id).await.unwrap().assignment.connection, "10.0.0.1:7777");
        let words = format!("ticket {id} is already assigned");
        assert_eq!(refused(delete(&client, &id).await), (ErrorCode::FailedPrecondition, words));
        // The end of a watch is an error of the stream.
        let other = create(&client, Some(Ticket::default())).await.unwrap().id;
        let mut watching = watch(&other).await;
        delete(&client, &other).await.unwrap();
        let words = format!("Ticket id: {other} not found");
        assert_eq!(refused(watching.message().await), (ErrorCode::NotFound, words), "{protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn assigned_ticket_is_gone_after_its_time() {
    let rules = Rules { assigned_ttl: Duration::from_millis(500), ..rules() };
    let served = Served::under(rules).await;
    for protocol in PROTOCOLS {
        let client = frontend(&served, protocol);
        let id = create(&client, Some(Ticket::default())).await.unwrap().id;
        assign(&served, &id, "10.0.0.1:7777").await;
        let error =
            eventually("the ticket is gone", crate::PATIENCE, async || get(&client, &id).await.err()).await;
        assert_eq!(error.code, ErrorCode::NotFound, "{protocol:?}");
        let (status, _) = served.rest(Method::GET, &format!("/v1/frontendservice/tickets/{id}"), "").await;
        assert_eq!(status, 404);
    }
}

async fn create_backfill(
    client: &FrontendServiceClient<HttpClient>,
    backfill: Option<Backfill>,
) -> Result<Backfill, ConnectError> {
    let request = openmatch::CreateBackfillRequest { backfill: backfill.into(), ..Default::default() };
    client.create_backfill(request).await.map(|made| made.into_owned())
}

async fn get_backfill(
    client: &FrontendServiceClient<HttpClient>,
    id: &str,
) -> Result<Backfill, ConnectError> {
    let request = openmatch::GetBackfillRequest { backfill_id: id.to_owned(), ..Default::default() };
    client.get_backfill(request).await.map(|found| found.into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn backfills_are_created_updated_and_deleted() {
    let served = Served::in_memory().await;
    for protocol in PROTOCOLS {
        let client = frontend(&served, protocol);
        let made = create_backfill(
            &client,
            Some(Backfill { search_fields: tagged("desert").into(), ..Default::default() }),
        )
        .await
        .unwrap();
        assert!(
            made.id.len() == 20 && made.id.chars().all(|c| matches!(c, '0'..='9' | 'a'..='v')),
            "{}",
            made.id
        );
        assert!(made.create_time.is_set() && made.generation == 1);
        assert_eq!(get_backfill(&client, &made.id).await.unwrap(), made);

        let mut update = made.clone();
        (update.search_fields, update.generation) = (tagged("ice").into(), 42);
        update.create_time = Some(Timestamp { seconds: 770, ..Default::default() }).into();
        let request =
            openmatch::UpdateBackfillRequest { backfill: Some(update).into(), ..Default::default() };
        let updated = client.update_backfill(request).await.unwrap().into_owned();
        let expected = Backfill { search_fields: tagged("ice").into(), generation: 2, ..made.clone() };
        assert_eq!(updated, expected, "{protocol:?}: generation and time of the client are ignored");
        assert_eq!(get_backfill(&client, &made.id).await.unwrap(), expected);

        let request = openmatch::DeleteBackfillRequest { backfill_id: made.id.clone(), ..Default::default() };
        client.delete_backfill(request).await.unwrap();
        let words = format!("Backfill id: {} not found", made.id);
        assert_eq!(refused(get_backfill(&client, &made.id).await), (ErrorCode::NotFound, words));
        let dated = Backfill { create_time: Some(Timestamp::default()).into(), ..Default::default() };
        let words = "backfills cannot be created with create time set".to_owned();
        assert_eq!(refused(create_backfill(&client, Some(dated)).await), (ErrorCode::InvalidArgument, words));
        assert_eq!(refused(create_backfill(&client, None).await).0, ErrorCode::InvalidArgument);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn game_server_gets_its_tickets_although_one_was_cancelled() {
    let served = Served::in_memory().await;
    for protocol in PROTOCOLS {
        let client = frontend(&served, protocol);
        let backfill = create_backfill(&client, Some(Backfill::default())).await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(create(&client, Some(Ticket::default())).await.unwrap().id);
        }
        // As a match function does that adds both.
        let proposed = ProposedBackfill::read(backfill.clone(), Moment::default(), LIMITS).unwrap();
        let tickets = ids.iter().map(|id| TicketId::parse(id).unwrap()).collect();
        let request = ClaimRequest {
            number: None,
            holder: Holder::default(),
            tickets,
            backfill: Some(proposed.change),
        };
        assert!(matches!(served.store.claim(&[request]).await.unwrap()[..], [ClaimOutcome::Claimed(_)]));
        delete(&client, &ids[0]).await.unwrap();

        let acknowledge = async |assignment: Option<Assignment>| {
            let request = openmatch::AcknowledgeBackfillRequest {
                backfill_id: backfill.id.clone(),
                assignment: assignment.into(),
                ..Default::default()
            };
            client.acknowledge_backfill(request).await.map(|answer| answer.into_owned())
        };
        assert_eq!(
            refused(acknowledge(None).await),
            (ErrorCode::InvalidArgument, ".Assignment is required".to_owned())
        );
        let server = Assignment { connection: "10.0.0.1:7777".to_owned(), ..Default::default() };
        let answer = acknowledge(Some(server)).await.unwrap();
        assert_eq!(answer.backfill.generation, 2, "{protocol:?}");
        let found: Vec<&str> = answer.tickets.iter().map(|ticket| ticket.id.as_str()).collect();
        assert_eq!(found, [ids[1].as_str()]);
        assert_eq!(get(&client, &ids[1]).await.unwrap().assignment.connection, "10.0.0.1:7777");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn backfills_and_tickets_are_queried_in_pages() {
    let served = Served::in_memory().await;
    let made = frontend(&served, Protocol::Grpc);
    let pool = |tag: &str| {
        let filter = openmatch::TagPresentFilter { tag: tag.to_owned(), ..Default::default() };
        Pool { tag_present_filters: vec![filter], ..Default::default() }
    };
    for number in 0..51 {
        let search_fields = tagged("many").into();
        create_backfill(&made, Some(Backfill { search_fields, ..Default::default() })).await.unwrap();
        let tag = if number < 12 { "many" } else { "other" };
        create(&made, Some(Ticket { search_fields: tagged(tag).into(), ..Default::default() }))
            .await
            .unwrap();
    }
    for protocol in PROTOCOLS {
        let client = QueryServiceClient::new(transport(protocol), config(&served, protocol));
        let backfills = async |pool: Option<Pool>| {
            let request = openmatch::QueryBackfillsRequest { pool: pool.into(), ..Default::default() };
            let (mut pages, mut sizes) = (client.query_backfills(request).await?, Vec::new());
            while let Some(page) = pages.message().await? {
                sizes.push(page.to_owned_message().backfills.len());
            }
            Ok(sizes)
        };
        let tickets = async |pool: Option<Pool>| {
            let request = openmatch::QueryTicketsRequest { pool: pool.into(), ..Default::default() };
            let (mut pages, mut sizes) = (client.query_tickets(request).await?, Vec::new());
            while let Some(page) = pages.message().await? {
                sizes.push(page.to_owned_message().tickets.len());
            }
            Ok(sizes)
        };
        let words = (ErrorCode::InvalidArgument, ".pool is required".to_owned());
        assert_eq!(refused::<Vec<usize>>(backfills(None).await), words);
        assert_eq!(refused::<Vec<usize>>(tickets(None).await), words);
        assert_eq!(backfills(Some(pool("none"))).await.unwrap(), [0; 0], "{protocol:?}");
        assert_eq!(tickets(Some(pool("none"))).await.unwrap(), [0; 0], "{protocol:?}");
        assert_eq!(backfills(Some(pool("many"))).await.unwrap(), [10, 10, 10, 10, 10, 1], "{protocol:?}");
        assert_eq!(tickets(Some(pool("many"))).await.unwrap(), [10, 2], "{protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directors_may_use_grpc_web_and_connect() {
    let served = Served::in_memory().await;
    for (protocol, format) in [
        (Protocol::GrpcWeb, CodecFormat::Proto),
        (Protocol::Connect, CodecFormat::Proto),
        (Protocol::Connect, CodecFormat::Json),
    ] {
        let made = create(&frontend(&served, Protocol::Grpc), Some(Ticket::default())).await.unwrap();
        let config = config(&served, protocol).with_codec_format(format);
        let client = BackendServiceClient::new(transport(protocol), config);
        let proposal = json!({ "match_id": "1", "tickets": [{ "id": made.id }] });
        let port = function(vec![json!({ "result": { "proposal": proposal } })]).await;
        let of = openmatch::FunctionConfig {
            host: "127.0.0.1".to_owned(),
            port: port.into(),
            r#type: openmatch::function_config::Type::REST.into(),
            ..Default::default()
        };
        let request = openmatch::FetchMatchesRequest {
            config: Some(of).into(),
            profile: Some(openmatch::MatchProfile::default()).into(),
            ..Default::default()
        };
        let mut matches = client.fetch_matches(request).await.unwrap();
        let fetched = matches.message().await.unwrap().unwrap().to_owned_message();
        assert_eq!(fetched.r#match.tickets[0].id, made.id, "{protocol:?}");
        assert!(matches.message().await.unwrap().is_none(), "{protocol:?}");
        let group = openmatch::AssignmentGroup {
            ticket_ids: vec![made.id, "gone".to_owned()],
            assignment: Some(Assignment::default()).into(),
            ..Default::default()
        };
        let assign = |assignments| openmatch::AssignTicketsRequest { assignments, ..Default::default() };
        let answer = client.assign_tickets(assign(vec![group.clone()])).await.unwrap().into_owned();
        let failed: Vec<&str> = answer.failures.iter().map(|failure| failure.ticket_id.as_str()).collect();
        assert_eq!(failed, ["gone"], "{protocol:?}");
        let bare = openmatch::AssignmentGroup { ticket_ids: Vec::new(), ..group };
        let words = "AssignmentGroupTicketIds is empty".to_owned();
        let answer = client.assign_tickets(assign(vec![bare])).await;
        assert_eq!(refused(answer), (ErrorCode::InvalidArgument, words), "{protocol:?}");
        // A stream that fails before its first message.
        let failed = match client.fetch_matches(openmatch::FetchMatchesRequest::default()).await {
            Ok(mut matches) => refused(matches.message().await),
            Err(error) => refused::<()>(Err(error)),
        };
        assert_eq!(failed, (ErrorCode::InvalidArgument, ".config is required".to_owned()), "{protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_methods_are_unimplemented() {
    let served = Served::in_memory().await;
    let http2 = Client::builder().http2_prior_knowledge().build().unwrap();
    for method in [
        "openmatch.FrontendService/Nothing",
        "openmatch.BackendService/Nothing",
        "openmatch.QueryService/Nothing",
        // Inside Open Match, and not here.
        "openmatch.internal.Synchronizer/Synchronize",
        // What others serve and we call.
        "openmatch.MatchFunction/Run",
        "openmatch.Evaluator/Evaluate",
    ] {
        let url = format!("http://{}/{method}", served.address);
        let call = http2.post(&url).header("content-type", "application/grpc").header("te", "trailers");
        let answer = call.body([0; 5].to_vec()).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["grpc-status"]),
            (200, &"12".parse().unwrap()),
            "{method}"
        );
        // Connect knows an unimplemented method by the status 404 or 501.
        let answer = Client::new().post(&url).json(&json!({})).send().await.unwrap();
        assert!([404, 501].contains(&answer.status().as_u16()), "{method}: {}", answer.status());
    }
}

/// Sends a request of reflection. Returns the response, undecoded.
async fn reflect(served: &Served, field: u8, text: &str) -> Vec<u8> {
    let http2 = Client::builder().http2_prior_knowledge().build().unwrap();
    let request = [&[field << 3 | 2, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let head = [0, 0, 0, 0, u8::try_from(request.len()).unwrap()];
    let url = format!("http://{}/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", served.address);
    let call = http2.post(url).header("content-type", "application/grpc").header("te", "trailers");
    call.body([&head[..], &request].concat()).send().await.unwrap().bytes().await.unwrap().to_vec()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_and_health_know_all_services() {
    let served = Served::in_memory().await;
    // ServerReflectionRequest { list_services = 7, file_containing_symbol = 4 }.
    let services = reflect(&served, 7, "*").await;
    for (service, method) in [
        ("openmatch.FrontendService", "WatchAssignments"),
        ("openmatch.BackendService", "FetchMatches"),
        ("openmatch.QueryService", "QueryBackfills"),
    ] {
        assert!(contains(&services, service), "{service} is not listed");
        let file = reflect(&served, 4, service).await;
        assert!(contains(&file, method), "{service} is not described");
        let health = served.connect("grpc.health.v1.Health/Check", json!({ "service": service })).await;
        assert_eq!(health, (200, json!({ "status": "SERVING" })), "{service}");
    }
    let (status, refused): (u16, Value) =
        served.connect("grpc.health.v1.Health/Check", json!({ "service": "openmatch.Evaluator" })).await;
    assert_eq!((status, &refused["code"]), (404, &json!("not_found")));
}
