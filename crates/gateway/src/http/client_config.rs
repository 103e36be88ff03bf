//! What a client has to know before it does anything else.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Extension, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Gateway;
use crate::clients::Client;
use crate::guard::CSRF_NAME;

/// What is configured for a client.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClientConfig {
    /// What the client said it is.
    platform: Option<String>,
    version: Option<String>,
    /// The oldest version that may still play.
    min_version: Option<String>,
    /// Where there is a newer one.
    update_url: Option<String>,
    /// Which features are on for this client.
    features: BTreeMap<String, bool>,
    /// Fields of answers that this client does not get.
    hidden: Vec<String>,
    /// What players can queue for.
    queues: Vec<String>,
    /// The header that browsers send with every request that changes something.
    csrf_header: &'static str,
}

/// What is configured for this client
///
/// By `X-Client-Platform` and `X-Client-Version`. Answers also clients that are too old to do anything else.
#[utoipa::path(
    get, path = "/v1/client-config", tag = "client",
    params(
        ("x-client-platform" = Option<String>, Header, description = "What kind of client this is"),
        ("x-client-version" = Option<String>, Header, description = "Its version: numbers with dots between them",
            example = "1.4.0"),
    ),
    responses(
        (status = 200, description = "The configuration", body = ClientConfig),
        (status = 400, description = "The version cannot be read"),
    ),
    security(())
)]
pub(super) async fn client_config(
    State(gateway): State<Gateway>,
    Extension(client): Extension<Client>,
) -> Json<ClientConfig> {
    let platform = gateway.clients.of(&client);
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
