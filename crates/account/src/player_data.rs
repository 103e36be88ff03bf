//! Data of other services about users, for the console's screen of a user and for the export.

use std::sync::{Arc, PoisonError};

use futures::future::BoxFuture;
use http_server::Problem;
use screens::Section;
use serde_json::Value;

use crate::{Accounts, UserId};

/// A service that has data about users. It shows the data on the user's screen, and exports it.
pub trait PlayerData: Send + Sync {
    /// Returns the member of the export that has the data, such as `entitlements`.
    fn name(&self) -> &'static str;

    /// Returns sections of the user's screen. The id of each must be unique on that screen.
    fn sections(&self, user: UserId) -> BoxFuture<'_, Result<Vec<Section>, Problem>>;

    /// Returns all data about the user.
    fn export(&self, user: UserId) -> BoxFuture<'_, Result<Value, Problem>>;
}

impl Accounts {
    /// Returns the registered services, in the order of their registration.
    pub(crate) fn all_player_data(&self) -> Vec<Arc<dyn PlayerData>> {
        self.player_data.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
