//! Open Match's BackendService.

use std::sync::Arc;

use connectrpc::{
    ConnectError, Encodable, ErrorCode, RequestContext, Response, ServiceRequest, ServiceResult,
    ServiceStream,
};
use futures::StreamExt;
use http_server::Connection;
use proto::openmatch::{self, BACKEND_SERVICE_SERVICE_NAME, BackendService, BackendServiceExt};

use super::Backend;
use crate::error::Error;
use crate::open_match::{OpenMatchService, RestRoute};

const REST: [RestRoute; 4] = [
    RestRoute::post("/v1/backendservice/matches:fetch", "FetchMatches"),
    RestRoute::post("/v1/backendservice/tickets:assign", "AssignTickets"),
    RestRoute::post("/v1/backendservice/tickets:release", "ReleaseTickets"),
    RestRoute::post("/v1/backendservice/tickets:releaseall", "ReleaseAllTickets"),
];

/// The largest request: the assignments of many matches, or a profile with many pools.
const MAX_REQUEST: usize = 16 << 20;

impl Backend {
    /// Returns Open Match's BackendService.
    pub fn service(&self) -> OpenMatchService {
        let backend = self.clone();
        OpenMatchService::new(BACKEND_SERVICE_SERVICE_NAME, MAX_REQUEST, &REST, move |router| {
            Arc::new(Grpc(backend)).register(router)
        })
    }
}

struct Grpc(Backend);

impl BackendService for Grpc {
    async fn fetch_matches(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, openmatch::FetchMatchesRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<openmatch::FetchMatchesResponse> + Send + use<>>> {
        let unknown = || ConnectError::internal("the request has no connection");
        let drain = context.extensions().get::<Connection>().ok_or_else(unknown)?.drain().clone();
        let request = request.to_owned_message();
        let (config, profile) = (request.config.into_option(), request.profile.into_option());
        let matches = self.0.fetch_matches(config, profile, context.deadline(), drain).await?;
        Ok(Response::stream(matches.map(|match_| {
            let match_ = match_.map_err(status)?;
            Ok(openmatch::FetchMatchesResponse { r#match: match_.into(), ..Default::default() })
        })))
    }

    async fn assign_tickets<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::AssignTicketsRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::AssignTicketsResponse> + Send + use<'a>> {
        let failures = self.0.assign_tickets(request.to_owned_message().assignments).await?;
        Response::ok(openmatch::AssignTicketsResponse { failures, ..Default::default() })
    }

    async fn release_tickets<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::ReleaseTicketsRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::ReleaseTicketsResponse> + Send + use<'a>> {
        self.0.release_tickets(&request.to_owned_message().ticket_ids).await?;
        Response::ok(openmatch::ReleaseTicketsResponse::default())
    }

    async fn release_all_tickets<'a>(
        &'a self,
        _: RequestContext,
        _: ServiceRequest<'_, openmatch::ReleaseAllTicketsRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::ReleaseAllTicketsResponse> + Send + use<'a>> {
        self.0.release_all_tickets().await?;
        Response::ok(openmatch::ReleaseAllTicketsResponse::default())
    }
}

/// Converts the error of a stream. That of a match function has no code of its own, as in the original.
fn status(error: Error) -> ConnectError {
    match error {
        Error::Function(text) => ConnectError::new(ErrorCode::Unknown, text),
        error => error.into(),
    }
}
