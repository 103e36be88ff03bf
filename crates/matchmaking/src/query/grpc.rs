//! Open Match's QueryService.

use std::sync::Arc;

use connectrpc::{
    Encodable, PreEncoded, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use futures::TryStreamExt;
use proto::openmatch::{self, QUERY_SERVICE_SERVICE_NAME, QueryService, QueryServiceExt};

use super::{Queries, QueryKind};
use crate::open_match::{OpenMatchService, RestRoute};

/// A pool has a few filters; this is enough for thousands.
const MAX_REQUEST: usize = 256 << 10;

const REST: [RestRoute; 3] = [
    RestRoute::post("/v1/queryservice/tickets:query", "QueryTickets"),
    RestRoute::post("/v1/queryservice/ticketids:query", "QueryTicketIds"),
    RestRoute::post("/v1/queryservice/backfills:query", "QueryBackfills"),
];

impl Queries {
    /// Returns Open Match's QueryService.
    pub fn service(&self) -> OpenMatchService {
        let implementation = Arc::new(Grpc(self.clone()));
        OpenMatchService::new(QUERY_SERVICE_SERVICE_NAME, MAX_REQUEST, &REST, move |router| {
            implementation.register(router)
        })
    }
}

struct Grpc(Queries);

impl QueryService for Grpc {
    async fn query_tickets(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::QueryTicketsRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<openmatch::QueryTicketsResponse> + Send + use<>>> {
        let pool = request.to_owned_message().pool.into_option();
        let pages = self.0.query(pool, QueryKind::Tickets).await?;
        Ok(Response::stream(
            pages
                .map_ok(PreEncoded::<openmatch::QueryTicketsResponse>::from_bytes_unchecked)
                .map_err(Into::into),
        ))
    }

    async fn query_ticket_ids(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::QueryTicketIdsRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<openmatch::QueryTicketIdsResponse> + Send + use<>>> {
        let pool = request.to_owned_message().pool.into_option();
        let pages = self.0.query(pool, QueryKind::Ids).await?;
        Ok(Response::stream(
            pages
                .map_ok(PreEncoded::<openmatch::QueryTicketIdsResponse>::from_bytes_unchecked)
                .map_err(Into::into),
        ))
    }

    async fn query_backfills(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::QueryBackfillsRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<openmatch::QueryBackfillsResponse> + Send + use<>>> {
        let pool = request.to_owned_message().pool.into_option();
        let pages = self.0.query(pool, QueryKind::Backfills).await?;
        Ok(Response::stream(
            pages
                .map_ok(PreEncoded::<openmatch::QueryBackfillsResponse>::from_bytes_unchecked)
                .map_err(Into::into),
        ))
    }
}
