//! x
#[derive(Debug)]
pub struct Keycloak;
#[derive(Debug)]
pub struct KeycloakKind;
#[derive(Debug)]
pub struct RealmSettings;
