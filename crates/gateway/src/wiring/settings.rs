//! Checks of the gateway's settings against those of others.

use ::config::Reader;
use oidc::IssuerUrl;
use service::{Role, Services, Settings};

use crate::config::Config;
use crate::{clients, rows};

/// Finds hidden fields of routes that nobody has.
pub(super) fn check_hidden_fields(reader: &mut Reader<'_>, config: &Config, services: Services) {
    let mut rows = rows();
    rows.extend(services.player_routes().into_iter().map(|route| route.row));
    for (name, platform) in &config.platforms {
        for field in &platform.hidden {
            let key = format!("gateway.platforms.{name}.hidden");
            let is_route = rows.iter().any(|row| clients::word(row.path) == field.route());
            reader.check(&[&key], is_route, || format!("{field}: no route ends with {:?}", field.route()));
        }
    }
}

/// Keeps the issuer for development out of fleets, and asks for what a fleet needs to sign players in.
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
        "builtin: signs anybody in under any name, which is for development; name the URL of an issuer, such as a \
         realm of Keycloak, or \"none:\" where nobody signs in"
            .to_owned()
    });
    reader.check(&["identity.issuer", "listen.gateway"], is_fleet || !is_builtin || is_local, || {
        "builtin: signs anybody in under any name, so the gateway must listen on a loopback address, such as \
         127.0.0.1:8080; or name the URL of an issuer"
            .to_owned()
    });
    let is_public = config.public_url.as_ref().is_some_and(|url| !oidc::is_loopback(&url.0));
    reader.check(&["identity.issuer", "gateway.public_url"], !(is_builtin && is_public), || {
        "builtin: signs anybody in under any name, and players come to this URL from elsewhere: name the URL of an issuer"
            .to_owned()
    });
    reader.check(&["gateway.public_url"], is_local || is_builtin || config.public_url.is_some(), || {
        "players come from elsewhere, so the issuer has to know where to send them back to: give the URL by which they \
         find the gateway"
            .to_owned()
    });
    let has_keys = stores.redis_store.url.is_embedded() || !is_fleet || !config.session.keys.is_empty();
    reader.check(&["gateway.session.keys"], has_keys, || {
        "several processes share the sessions, so they need the same key: give one, such as `openssl rand -base64 32` \
         makes, to all of them"
            .to_owned()
    });
}
