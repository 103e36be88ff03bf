//! Open Match's FrontendService.

use std::sync::Arc;

use buffa_types::google::protobuf::Empty;
use connectrpc::{
    ConnectError, Encodable, PreEncoded, RequestContext, Response, ServiceRequest, ServiceResult,
    ServiceStream,
};
use futures::StreamExt;
use http_server::Connection;
use proto::openmatch::{self, FRONTEND_SERVICE_SERVICE_NAME, FrontendService, FrontendServiceExt};

use super::Frontend;
use crate::open_match::{OpenMatchService, RestRoute};

const REST: [RestRoute; 9] = [
    RestRoute::post("/v1/frontendservice/tickets", "CreateTicket"),
    RestRoute::get("/v1/frontendservice/tickets/{ticket_id}", "GetTicket"),
    RestRoute::delete("/v1/frontendservice/tickets/{ticket_id}", "DeleteTicket"),
    RestRoute::get("/v1/frontendservice/tickets/{ticket_id}/assignments", "WatchAssignments"),
    RestRoute::post("/v1/frontendservice/backfills", "CreateBackfill"),
    RestRoute::patch("/v1/frontendservice/backfills", "UpdateBackfill"),
    RestRoute::get("/v1/frontendservice/backfills/{backfill_id}", "GetBackfill"),
    RestRoute::delete("/v1/frontendservice/backfills/{backfill_id}", "DeleteBackfill"),
    RestRoute::post("/v1/frontendservice/backfills/{backfill_id}/acknowledge", "AcknowledgeBackfill"),
];

pub(super) fn service(frontend: Frontend) -> OpenMatchService {
    // A request is little larger than its ticket, but its JSON may be: the ticket's own limit has the better error.
    let size = 2 * frontend.config.max_ticket_size + 1024;
    OpenMatchService::new(FRONTEND_SERVICE_SERVICE_NAME, size, &REST, move |router| {
        Arc::new(Grpc(frontend)).register(router)
    })
}

struct Grpc(Frontend);

impl FrontendService for Grpc {
    async fn create_ticket<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::CreateTicketRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Ticket> + Send + use<'a>> {
        let ticket = request.to_owned_message().ticket.into_option();
        let data = self.0.create(ticket).await?;
        Response::ok(PreEncoded::<openmatch::Ticket>::from_bytes_unchecked(data))
    }

    async fn delete_ticket<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::DeleteTicketRequest>,
    ) -> ServiceResult<impl Encodable<Empty> + Send + use<'a>> {
        self.0.delete(request.ticket_id).await?;
        Response::ok(Empty::default())
    }

    async fn get_ticket<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::GetTicketRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Ticket> + Send + use<'a>> {
        Response::ok(self.0.get(request.ticket_id).await?)
    }

    async fn watch_assignments(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, openmatch::WatchAssignmentsRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<openmatch::WatchAssignmentsResponse> + Send + use<>>>
    {
        let unknown = || ConnectError::internal("the request has no connection");
        let connection = context.extensions().get::<Connection>().ok_or_else(unknown)?;
        let assignments = self.0.watch(request.ticket_id, connection).await?;
        Ok(Response::stream(assignments.map(|assignment| {
            let assignment = assignment?;
            Ok(PreEncoded::<openmatch::WatchAssignmentsResponse>::from_bytes_unchecked(assignment))
        })))
    }

    async fn deindex_ticket<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::DeindexTicketRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::DeindexTicketResponse> + Send + use<'a>> {
        self.0.deindex(request.ticket_id).await?;
        Response::ok(openmatch::DeindexTicketResponse::default())
    }

    async fn acknowledge_backfill<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::AcknowledgeBackfillRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::AcknowledgeBackfillResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let assignment = request.assignment.into_option();
        Response::ok(self.0.backfills.acknowledge(&request.backfill_id, assignment).await?)
    }

    async fn create_backfill<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::CreateBackfillRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Backfill> + Send + use<'a>> {
        let backfill = request.to_owned_message().backfill.into_option();
        Response::ok(self.0.backfills.create(backfill).await?)
    }

    async fn delete_backfill<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::DeleteBackfillRequest>,
    ) -> ServiceResult<impl Encodable<Empty> + Send + use<'a>> {
        self.0.backfills.delete(request.backfill_id).await?;
        Response::ok(Empty::default())
    }

    async fn get_backfill<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::GetBackfillRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Backfill> + Send + use<'a>> {
        Response::ok(self.0.backfills.get(request.backfill_id).await?)
    }

    async fn update_backfill<'a>(
        &'a self,
        _: RequestContext,
        request: ServiceRequest<'_, openmatch::UpdateBackfillRequest>,
    ) -> ServiceResult<impl Encodable<openmatch::Backfill> + Send + use<'a>> {
        let backfill = request.to_owned_message().backfill.into_option();
        Response::ok(self.0.backfills.update(backfill).await?)
    }
}
