//! A player's session: an access token, which is renewed when the instance refuses it. A simulation can outlast a token.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::api::{Call, Credentials, GaveUp, Response};
use crate::world::World;

/// The status of a refused token.
pub(crate) const UNAUTHORIZED: u16 = 401;

/// A signed-in player's access to the instance. All devices of a player share it.
#[derive(Debug)]
pub(crate) struct Session {
    world: Arc<World>,
    name: String,
    number: usize,
    /// The address that the player seems to come from.
    address: String,
    token: Mutex<Arc<str>>,
}

impl Session {
    pub(crate) async fn open(world: Arc<World>, name: &str, number: usize) -> Result<Self, GaveUp> {
        let token = world.target.token(&world.api, name, number).await?;
        // Players come from many networks. An instance believes it if it trusts the simulator's address as a proxy.
        let [high, middle, low] = [number >> 16 & 255, number >> 8 & 255, number & 255];
        let address = format!("10.{high}.{middle}.{low}");
        Ok(Self { world, name: name.to_owned(), number, address, token: Mutex::new(token.into()) })
    }

    pub(crate) async fn credentials(&self) -> Credentials {
        Credentials { token: self.token.lock().await.clone(), address: self.address.clone() }
    }

    /// Calls the gateway as the player. If the token is refused, renews it and calls once more.
    pub(crate) async fn call(&self, call: &Call) -> Result<Response, GaveUp> {
        let from = self.credentials().await;
        let response = self.world.api.player(&from, call).await?;
        if response.status != UNAUTHORIZED {
            return Ok(response);
        }
        self.renew(&from).await?;
        self.world.api.player(&self.credentials().await, call).await
    }

    /// Replaces a refused token, unless another device has done so.
    pub(crate) async fn renew(&self, refused: &Credentials) -> Result<(), GaveUp> {
        let mut token = self.token.lock().await;
        if *token != refused.token {
            return Ok(());
        }
        if !self.world.target.can_renew() {
            let what = "the instance refuses the access token, and tokens of --tokens cannot be renewed";
            return Err(GaveUp(what.to_owned()));
        }
        *token = self.world.target.token(&self.world.api, &self.name, self.number).await?.into();
        self.world.api.meter.count(|counts| counts.renewals += 1);
        Ok(())
    }
}
