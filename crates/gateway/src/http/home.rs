//! Everything a player sees first, in one answer. Parts are fetched together, each with its own deadline; one that fails is
//! missing beside those that work.

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

use super::me::{Me, PlayerEntitlements};
use super::notifications::{Languages, NotificationList};
use super::tickets::{TicketAnswer, TicketList};
use super::{DEFAULT_LIMIT, failed};
use crate::Gateway;
use crate::guard::signed_in_player;

/// How many notifications are seen first.
const NEWEST: u32 = 20;

/// What a player sees first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Home {
    account: Part<Me>,
    entitlements: Part<PlayerEntitlements>,
    matchmaking: Part<TicketList>,
    notifications: Part<NotificationList>,
    /// The parts that services bring. The document of the API describes each under its name.
    #[serde(flatten)]
    #[schema(ignore)]
    brought: BTreeMap<&'static str, Part<Value>>,
}

/// A part of an answer, or the word that it cannot be had now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub(crate) enum Part<T> {
    Ok {
        data: T,
    },
    /// It failed, or took too long: ask again later, for this part or for all.
    Unavailable,
}

/// Everything a player sees first
///
/// A part that cannot be had in time is marked as unavailable; the others are there.
#[utoipa::path(
    get, path = "/v1/home", tag = "player",
    responses(
        (status = 200, description = "All parts that can be had", body = Home),
        (status = 400, description = "The version of the client cannot be read"),
    )
)]
pub(super) async fn home(State(gateway): State<Gateway>, languages: Languages, caller: Caller) -> Json<Home> {
    let entitlements = async {
        // Everybody has one from the start.
        let account = caller.known.accounts.first().ok_or_else(|| Problem::new(base::Code::Internal))?;
        let options = ListOptions { in_force: true, after: String::new(), limit: DEFAULT_LIMIT };
        PlayerEntitlements::list(&gateway, &caller, account, &options).await
    };
    let matchmaking = async {
        let found = gateway.players.tickets(*caller.user().as_uuid()).await;
        let tickets = found.map_err(|error| failed("matchmaking", &error))?;
        Ok(TicketList { tickets: tickets.into_iter().map(TicketAnswer::of).collect() })
    };
    let notifications = NotificationList::read(&gateway, &caller, &languages, Filter::Inbox, None, NEWEST);
    let brought = gateway.home_parts.iter().map(|part| async {
        let read = part.read(gateway.provided.clone(), signed_in_player(&caller));
        (part.name, gateway.part(part.name, read).await)
    });
    let (entitlements, matchmaking, notifications, brought) = futures::join!(
        gateway.part("entitlements", entitlements),
        gateway.part("matchmaking", matchmaking),
        gateway.part("notifications", notifications),
        join_all(brought),
    );
    let account = Part::Ok { data: Me::of(&caller) };
    let brought = brought.into_iter().collect();
    Json(Home { account, entitlements, matchmaking, notifications, brought })
}

impl Gateway {
    /// Waits for a part until its deadline. Why it is missing is in the log; here it is counted.
    async fn part<T>(&self, name: &'static str, fetch: impl Future<Output = Result<T, Problem>>) -> Part<T> {
        match tokio::time::timeout(self.config.part_timeout, fetch).await {
            Ok(Ok(data)) => Part::Ok { data },
            failed => {
                if failed.is_err() {
                    tracing::warn!(outage = name, part = name, "a part took too long");
                }
                self.metrics.part_unavailable(name);
                Part::Unavailable
            }
        }
    }
}
