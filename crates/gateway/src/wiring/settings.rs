//! Checks the gateway's settings against those of stores, listeners and services.

use ::config::Reader;
use oidc::IssuerUrl;
use service::{Role, Services, Settings};

use crate::config::Config;
use crate::{clients, rows};

/// Rejects hidden fields of routes that do not exist.
pub(super) fn check_hidden_fields(reader: &mut Reader<'_>, config: &Config, services: Services) {
    let mut rows = rows();
    rows.extend(services.player_routes().into_iter().map(|route| route.row));
    for (name, platform) in &config.platforms {
        for field in &platform.hidden {
            let key = format!("gateway.platforms.{name}.hidden");
            let is_route = rows.iter().any(|row| clients::route_name(row.path) == field.route());
            reader.check(&[&key], is_route, || format!("{field}: no route ends with {:?}", field.route()));
        }
    }
}

/// Rejects the builtin issuer in a fleet or on a public address, and requires the settings that sign-in needs.
pub(super) fn check_sign_in(reader: &mut Reader<'_>, settings: &Settings) {
    let (config, identity): (&Config, &oidc::Config) = (settings.get(), settings.get());
    if !settings.roles.contains(Role::Gateway) || identity.issuer == IssuerUrl::None {
        return;
    }
    let stores = &settings.stores;
    let is_fleet = !stores.db.url.is_embedded();
    let is_local = settings.listen.gateway.ip().is_loopback();
    let is_builtin = identity.issuer.is_builtin();
    reader.check(&["identity.issuer", "db.url"], !(is_builtin && is_fleet), || {
        "builtin: signs in anybody under any name and is only for development; set the URL of an issuer, such as a \
         Keycloak realm, or \"none:\" if nobody signs in"
            .to_owned()
    });
    reader.check(&["identity.issuer", "listen.gateway"], is_fleet || !is_builtin || is_local, || {
        "builtin: signs in anybody under any name, so the gateway must listen on a loopback address, such as \
         127.0.0.1:8080; or set the URL of an issuer"
            .to_owned()
    });
    let is_public = config.public_url.as_ref().is_some_and(|url| !oidc::is_loopback(&url.0));
    reader.check(&["identity.issuer", "gateway.public_url"], !(is_builtin && is_public), || {
        "builtin: signs in anybody under any name, and this URL is public: set the URL of an issuer"
            .to_owned()
    });
    reader.check(&["gateway.public_url"], is_local || is_builtin || config.public_url.is_some(), || {
        "the gateway is not on a loopback address, and the issuer redirects players to this URL: set the URL under which \
         players reach the gateway"
            .to_owned()
    });
    let has_keys = stores.redis_store.url.is_embedded() || !is_fleet || !config.session.keys.is_empty();
    reader.check(&["gateway.session.keys"], has_keys, || {
        "several processes share the sessions, so all of them need the same key: set one, created by \
         `openssl rand -base64 32`"
            .to_owned()
    });
}
