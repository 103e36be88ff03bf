//! Open Match's FrontendService over gRPC, gRPC-Web and Connect.

use std::sync::Arc;

use axum::body::Body;
use base::error::Coded;
use buffa_types::google::protobuf::Empty;
use connectrpc::{
    ConnectError, ConnectRpcBody, Encodable, ErrorCode, PreEncoded, RequestContext, Response, ServiceRequest,
    ServiceResult, ServiceStream,
};
use connectrpc_reflection::Reflector;
use futures::{FutureExt, StreamExt};
use http_body_util::{BodyStream, StreamBody};
use http_server::{Connection, Routes};
use proto::openmatch::{self, FrontendService, FrontendServiceExt};
use runtime::Drain;
use tower::Service;

use super::Frontend;
use crate::error::Error;
use crate::wire;

const SERVICE: &str = "openmatch.FrontendService";
const METHODS: [&str; 10] = [
    "CreateTicket",
    "DeleteTicket",
    "GetTicket",
    "WatchAssignments",
    "DeindexTicket",
    "AcknowledgeBackfill",
    "CreateBackfill",
    "DeleteBackfill",
    "GetBackfill",
    "UpdateBackfill",
];
/// The services that gRPC tools expect from every server.
const TOOLS: [&str; 4] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

pub(super) const BACKFILL: Error = Error::Unimplemented("backfills are not available in this version");

pub(super) fn routes(frontend: Frontend) -> Routes {
    wire::register_types();
    // A request is little larger than its ticket.
    let size = frontend.config.max_ticket_size + 1024;
    let limits = connectrpc::Limits::default().with_max_message_size(size).with_max_request_body_size(size);
    let router = Arc::new(Grpc(frontend)).register(connectrpc::Router::new());
    let (router, _) = connectrpc_health::install_static(router, [SERVICE]);
    #[expect(clippy::expect_used, reason = "the descriptors are compiled in, and a test reads them")]
    let reflector = Reflector::from_descriptor_set_bytes(proto::DESCRIPTORS).expect("sound descriptors");
    let router =
        connectrpc_reflection::install(router, reflector.with_services([SERVICE, "grpc.health.v1.Health"]));
    let service = connectrpc::ConnectRpcService::new(router).with_limits(limits);
    let methods = METHODS.map(|method| format!("/{SERVICE}/{method}"));
    methods.into_iter().chain(TOOLS.map(ToOwned::to_owned)).fold(Routes::default(), |routes, path| {
        let (service, is_tool) = (service.clone(), TOOLS.contains(&path.as_str()));
        routes.direct(path, move |request| {
            let drain = request.extensions().get::<Connection>().map(|connection| connection.drain().clone());
            let response = service.clone().call(request);
            async move {
                match (response.await, drain) {
                    // Health watches may stay open forever, so end them here. Watches of players end themselves, with
                    // an error.
                    (Ok(response), Some(drain)) if is_tool => response.map(|body| end_on_drain(drain, body)),
                    (Ok(response), _) => response.map(Body::new),
                    (Err(never), _) => match never {},
                }
            }
            .boxed()
        })
    })
}

/// Ends a response body when the listener drains.
fn end_on_drain(drain: Drain, body: ConnectRpcBody) -> Body {
    let ended = async move { drain.requested().await };
    Body::new(StreamBody::new(BodyStream::new(body).take_until(Box::pin(ended))))
}

struct Grpc(Frontend);

impl FrontendService for Grpc {
    async fn create_ticket<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::CreateTicketRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Ticket> + Send + use<'a>> {
        let ticket = request.to_owned_message().ticket.into_option();
        let data = self.0.create(ticket).await.map_err(status)?;
        Response::ok(PreEncoded::<openmatch::Ticket>::from_bytes_unchecked(data))
    }

    async fn delete_ticket<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::DeleteTicketRequest>,
    ) -> ServiceResult<impl Encodable<Empty> + Send + use<'a>> {
        self.0.delete(request.ticket_id).await.map_err(status)?;
        Response::ok(Empty::default())
    }

    async fn get_ticket<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::GetTicketRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Ticket> + Send + use<'a>> {
        Response::ok(self.0.get(request.ticket_id).await.map_err(status)?)
    }

    async fn watch_assignments(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, openmatch::WatchAssignmentsRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<openmatch::WatchAssignmentsResponse> + Send + use<>>>
    {
        let unknown = || ConnectError::internal("the request has no connection");
        let connection = context.extensions().get::<Connection>().ok_or_else(unknown)?;
        let assignments = self.0.watch(request.ticket_id, connection).await.map_err(status)?;
        Ok(Response::stream(assignments.map(|assignment| {
            let assignment = assignment.map_err(status)?;
            Ok(PreEncoded::<openmatch::WatchAssignmentsResponse>::from_bytes_unchecked(assignment))
        })))
    }

    async fn deindex_ticket<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::DeindexTicketRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::DeindexTicketResponse> + Send + use<'a>> {
        self.0.deindex(request.ticket_id).await.map_err(status)?;
        Response::ok(openmatch::DeindexTicketResponse::default())
    }

    async fn acknowledge_backfill<'a>(
        &'a self,
        _: RequestContext,
        _: ServiceRequest<'_, openmatch::AcknowledgeBackfillRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::AcknowledgeBackfillResponse> + Send + use<'a>> {
        Err::<Response<openmatch::AcknowledgeBackfillResponse>, _>(status(BACKFILL))
    }

    async fn create_backfill<'a>(
        &'a self,
        _: RequestContext,
        _: ServiceRequest<'_, openmatch::CreateBackfillRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Backfill> + Send + use<'a>> {
        Err::<Response<openmatch::Backfill>, _>(status(BACKFILL))
    }

    async fn delete_backfill<'a>(
        &'a self,
        _: RequestContext,
        _: ServiceRequest<'_, openmatch::DeleteBackfillRequest>,
    ) -> ServiceResult<impl Encodable<Empty> + Send + use<'a>> {
        Err::<Response<Empty>, _>(status(BACKFILL))
    }

    async fn get_backfill<'a>(
        &'a self,
        _: RequestContext,
        _: ServiceRequest<'_, openmatch::GetBackfillRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Backfill> + Send + use<'a>> {
        Err::<Response<openmatch::Backfill>, _>(status(BACKFILL))
    }

    async fn update_backfill<'a>(
        &'a self,
        _: RequestContext,
        _: ServiceRequest<'_, openmatch::UpdateBackfillRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Backfill> + Send + use<'a>> {
        Err::<Response<openmatch::Backfill>, _>(status(BACKFILL))
    }
}

/// Converts an error for the caller, and logs its cause.
fn status(error: Error) -> ConnectError {
    error.log();
    let code = ErrorCode::from_grpc_code(error.code().grpc_status().into()).unwrap_or(ErrorCode::Unknown);
    ConnectError::new(code, error.to_string())
}
