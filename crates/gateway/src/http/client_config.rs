//! The configuration that a client reads before anything else.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Extension, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Gateway;
use crate::clients::Client;
use crate::guard::CSRF_NAME;

/// The configuration of a client.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClientConfig {
    /// The platform that the client reported.
    platform: Option<String>,
    /// The version that the client reported.
    version: Option<String>,
    /// The oldest version that may play.
    min_version: Option<String>,
    /// Where players find a newer version.
    update_url: Option<String>,
    /// The features, and whether this client has them.
    features: BTreeMap<String, bool>,
    /// Fields that are removed from responses to this client.
    hidden: Vec<String>,
    /// The queues that players can join.
    queues: Vec<String>,
    /// The header that browsers send with every request that changes something.
    csrf_header: &'static str,
}

/// Get the configuration of this client
///
/// Depends on `X-Client-Platform` and `X-Client-Version`. Clients that are too old for any other route may call it.
#[utoipa::path(
    get, path = "/v1/client-config", tag = "client",
    params(
        ("x-client-platform" = Option<String>, Header, description = "The platform of the client"),
        ("x-client-version" = Option<String>, Header, description = "The version of the client: numbers separated by dots",
            example = "1.4.0"),
    ),
    responses(
        (status = 200, description = "The configuration", body = ClientConfig),
        (status = 400, description = "The version of the client is not valid"),
    ),
    security(())
)]
pub(super) async fn client_config(
    State(gateway): State<Gateway>,
    Extension(client): Extension<Client>,
) -> Json<ClientConfig> {
    let platform = gateway.clients.platform_of(&client);
    let features = gateway.clients.features(&client);
    Json(ClientConfig {
        min_version: platform.and_then(|platform| platform.min_version.as_ref()).map(ToString::to_string),
        update_url: platform.and_then(|platform| platform.update_url.as_ref()).map(ToString::to_string),
        hidden: platform
            .map(|platform| platform.hidden.iter().map(ToString::to_string).collect())
            .unwrap_or_default(),
        features: features.into_iter().map(|(name, on)| (name.to_owned(), on)).collect(),
        queues: gateway.players.queues().keys().cloned().collect(),
        csrf_header: CSRF_NAME,
        version: client.version.as_ref().map(ToString::to_string),
        platform: client.platform,
    })
}
