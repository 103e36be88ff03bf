//! The part of `/v1/home`: where a client that comes back stands.

use ::service::{Provided, SignedInPlayer};
use base::Code;
use futures::future::try_join_all;
use http_server::Problem;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answer::{DropAnswer, PlaceAnswer, ReservationAnswer};
use super::{PlayerApi, opened, user_of};
use crate::problem::problem;
use crate::{Error, PlayerPlace, Standing};

/// How many reservations are listed. A player holds few: each drop has a limit per player.
const RESERVATIONS: u32 = 100;

/// What a player has to do with drops now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DropsHome {
    /// Where the player waits or is admitted, the latest join first.
    places: Vec<PlaceInDrop>,
    /// What is held for the player, the oldest first.
    reservations: Vec<ReservationAnswer>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PlaceInDrop {
    drop: DropAnswer,
    place: PlaceAnswer,
}

pub(super) async fn read(provided: Provided, player: SignedInPlayer) -> Result<Value, Problem> {
    let api = opened(&provided)?;
    let user = user_of(&player);
    let (found, held) =
        futures::try_join!(api.room.of_player(user), api.stock.held(user, RESERVATIONS)).map_err(problem)?;
    let places = try_join_all(found.iter().map(|place| api.place_in_drop(place, &player))).await;
    let home = DropsHome {
        places: places.map_err(problem)?,
        reservations: held.iter().map(ReservationAnswer::of).collect(),
    };
    serde_json::to_value(home).map_err(|_| Problem::new(Code::Internal))
}

impl PlayerApi {
    /// Describes a place that was found. Who waits is looked up in the line: the rows do not count positions.
    async fn place_in_drop(
        &self,
        found: &PlayerPlace,
        player: &SignedInPlayer,
    ) -> Result<PlaceInDrop, Error> {
        let drop = self.room.record(found.drop).await?;
        let place = match &found.standing {
            Standing::Waiting(_) => self.read_place(&drop, player).await?,
            standing => self.place_of(&drop, standing),
        };
        Ok(PlaceInDrop { drop: DropAnswer::of(&drop, self.clock.now()), place })
    }
}
