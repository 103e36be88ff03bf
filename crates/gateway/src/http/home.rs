//! The home screen of a player in one response. All parts are read concurrently, each with its own deadline. A part that fails does
//! not affect the others.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use entitlement::ListOptions;
use futures::future::join_all;
use http_server::Problem;
use notification::Filter;
use serde::Serialize;
use serde_json::Value;
use sessions::Caller;
use utoipa::ToSchema;

use super::DEFAULT_LIMIT;
use super::me::{Me, PlayerEntitlements};
use super::notifications::{Languages, NotificationList};
use super::parties::PartiesAnswer;
use super::tickets::{TicketAnswer, TicketList, problem};
use crate::Gateway;
use crate::guard::signed_in_player;

/// The number of notifications on the home screen.
const NOTIFICATIONS: u32 = 20;

/// The home screen of a player.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Home {
    account: Part<Me>,
    entitlements: Part<PlayerEntitlements>,
    matchmaking: Part<TicketList>,
    party: Part<PartiesAnswer>,
    notifications: Part<NotificationList>,
    /// The parts that services add. The OpenAPI document describes each under its name.
    #[serde(flatten)]
    #[schema(ignore)]
    service_parts: BTreeMap<&'static str, Part<Value>>,
}

/// A part of the home screen, if it is available.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub(crate) enum Part<T> {
    Ok {
        data: T,
    },
    /// The part failed or took too long. Request it again later, from its own route or with the whole home screen.
    Unavailable,
}

/// Get the home screen
///
/// A part that is not available in time is marked as unavailable. The other parts are complete.
#[utoipa::path(
    get, path = "/v1/home", tag = "player",
    responses(
        (status = 200, description = "All available parts", body = Home),
        (status = 400, description = "The version of the client is not valid"),
    )
)]
pub(super) async fn home(State(gateway): State<Gateway>, languages: Languages, caller: Caller) -> Json<Home> {
    let entitlements = async {
        // Every user is created with an account.
        let account = caller.known.accounts.first().ok_or_else(|| Problem::new(base::Code::Internal))?;
        let options = ListOptions { in_force: true, after: String::new(), limit: DEFAULT_LIMIT };
        PlayerEntitlements::list(&gateway, &caller, account, &options).await
    };
    let matchmaking = async {
        let found = gateway.players.tickets(*caller.user().as_uuid()).await;
        let tickets = found.map_err(|error| problem(&error))?;
        Ok(TicketList { tickets: tickets.into_iter().map(TicketAnswer::of).collect() })
    };
    let party = async {
        let found = PartiesAnswer::read(&gateway, *caller.user().as_uuid()).await;
        found.map_err(|error| problem(&error))
    };
    let notifications =
        NotificationList::read(&gateway, &caller, &languages, Filter::Inbox, None, NOTIFICATIONS);
    let service_parts = gateway.home_parts.iter().map(|part| async {
        let read = part.read(gateway.provided.clone(), signed_in_player(&caller));
        (part.name, gateway.part(part.name, read).await)
    });
    let (entitlements, matchmaking, party, notifications, service_parts) = futures::join!(
        gateway.part("entitlements", entitlements),
        gateway.part("matchmaking", matchmaking),
        gateway.part("party", party),
        gateway.part("notifications", notifications),
        join_all(service_parts),
    );
    let account = Part::Ok { data: Me::of(&caller) };
    let service_parts = service_parts.into_iter().collect();
    Json(Home { account, entitlements, matchmaking, party, notifications, service_parts })
}

impl Gateway {
    /// Waits for a part until its deadline. Counts a missing part; `fetch` logs why it failed.
    async fn part<T>(&self, name: &'static str, fetch: impl Future<Output = Result<T, Problem>>) -> Part<T> {
        match tokio::time::timeout(self.config.part_timeout, fetch).await {
            Ok(Ok(data)) => Part::Ok { data },
            failed => {
                if failed.is_err() {
                    tracing::warn!(outage = name, part = name, "a part of the home screen took too long");
                }
                self.metrics.part_unavailable(name);
                Part::Unavailable
            }
        }
    }
}
