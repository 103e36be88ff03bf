//! The part of `/v1/home` about drops: what a returning client needs to continue.

use ::service::{Provided, SignedInPlayer};
use base::Code;
use futures::future::try_join_all;
use http_server::Problem;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answer::{DropAnswer, PlaceAnswer, ReservationAnswer};
use super::{PlayerApi, player_api, user_of};
use crate::problem::problem;
use crate::{Error, PlayerDrop, PlayerStatus};

/// How many reservations are listed. A player holds few: each drop has a limit per player.
const RESERVATIONS: u32 = 100;

/// A player's places and reservations in drops.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DropsHome {
    /// Where the player waits or is admitted, the latest join first.
    places: Vec<PlaceInDrop>,
    /// The player's held reservations, the oldest first.
    reservations: Vec<ReservationAnswer>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PlaceInDrop {
    drop: DropAnswer,
    place: PlaceAnswer,
}

pub(super) async fn read(provided: Provided, player: SignedInPlayer) -> Result<Value, Problem> {
    let api = player_api(&provided)?;
    let user = user_of(&player);
    let (found, held) =
        futures::try_join!(api.room.drops_of_player(user), api.stock.held(user, RESERVATIONS))
            .map_err(problem)?;
    let places = try_join_all(found.iter().map(|place| api.place_in_drop(place, &player))).await;
    let home = DropsHome {
        places: places.map_err(problem)?,
        reservations: held.iter().map(ReservationAnswer::new).collect(),
    };
    serde_json::to_value(home).map_err(|_| Problem::new(Code::Internal))
}

impl PlayerApi {
    /// Builds the response for a drop of the player. The position of a waiting player is looked up in the line, since SQL does not have it.
    async fn place_in_drop(&self, found: &PlayerDrop, player: &SignedInPlayer) -> Result<PlaceInDrop, Error> {
        let drop = self.room.record(found.drop).await?;
        let place = match &found.status {
            PlayerStatus::Waiting(_) => self.read_place(&drop, player).await?,
            status => self.place_of(&drop, status),
        };
        Ok(PlaceInDrop { drop: DropAnswer::new(&drop, self.clock.now()), place })
    }
}
