//! Administration over Keycloak's own API.

use reqwest::Method;
use serde_json::{Value, json};

use super::distribution::ADMIN;
use super::{Keycloak, token};
use crate::http;
use crate::unique::unique;

const KEYS: &str = "components?type=org.keycloak.keys.KeyProvider";

/// All methods panic if Keycloak refuses.
impl Keycloak {
    /// Creates a user with a password and realm roles. Returns its id, which is the `sub` of its tokens.
    pub async fn create_user(&self, name: &str, password: &str, roles: &[&str]) -> String {
        let user = json!({
            "username": name,
            "enabled": true,
            "email": format!("{name}@example.com"),
            "emailVerified": true,
            "firstName": name,
            "lastName": "Example",
            "credentials": [{ "type": "password", "value": password, "temporary": false }],
        });
        self.admin(Method::POST, "users", Some(user)).await;
        for role in roles {
            self.assign_role(name, role).await;
        }
        self.user_id(name).await
    }

    /// Adds a role to a user.
    pub async fn assign_role(&self, user: &str, role: &str) {
        let id = self.user_id(user).await;
        let role = self.admin(Method::GET, &format!("roles/{role}"), None).await;
        self.admin(Method::POST, &format!("users/{id}/role-mappings/realm"), Some(json!([role]))).await;
    }

    /// Ends all sessions of a user. Keycloak notifies the clients by back-channel logout.
    pub async fn log_out(&self, user: &str) {
        let id = self.user_id(user).await;
        self.admin(Method::POST, &format!("users/{id}/logout"), None).await;
    }

    /// Returns the number of a user's sessions.
    pub async fn sessions_of(&self, user: &str) -> usize {
        let id = self.user_id(user).await;
        let sessions = self.admin(Method::GET, &format!("users/{id}/sessions"), None).await;
        sessions.as_array().map_or(0, Vec::len)
    }

    /// Adds a key that signs from now on. The old keys stay published.
    pub async fn rotate_keys(&self) {
        let highest = self.signing_keys().await.iter().map(priority).max().unwrap_or_default();
        let realm = self.admin(Method::GET, "", None).await;
        let key = json!({
            "name": unique(),
            "parentId": realm["id"],
            "providerId": "rsa-generated",
            "providerType": "org.keycloak.keys.KeyProvider",
            "config": {
                "priority": [(highest + 1).to_string()],
                "enabled": ["true"],
                "active": ["true"],
                "algorithm": ["RS256"],
                "keySize": ["2048"],
            },
        });
        self.admin(Method::POST, "components", Some(key)).await;
    }

    /// Removes all keys but the newest.
    pub async fn retire_keys(&self) {
        let keys = self.signing_keys().await;
        let highest = keys.iter().map(priority).max().unwrap_or_default();
        for key in keys.iter().filter(|key| priority(key) < highest) {
            self.admin(Method::DELETE, &format!("components/{}", text(&key["id"])), None).await;
        }
    }

    /// Changes the URL of the gateway.
    pub async fn set_gateway_url(&self, url: &str) {
        let url = url.trim_end_matches('/');
        let found = self.admin(Method::GET, "clients?clientId=playhouse", None).await;
        let mut client = found[0].clone();
        client["rootUrl"] = json!(url);
        client["redirectUris"] = json!([format!("{url}/login/callback")]);
        client["attributes"]["post.logout.redirect.uris"] = json!(format!("{url}/"));
        client["attributes"]["backchannel.logout.url"] = json!(format!("{url}/logout/backchannel"));
        let path = format!("clients/{}", text(&client["id"]));
        self.admin(Method::PUT, &path, Some(client)).await;
    }

    /// Calls Keycloak's admin API. `path` is relative to the realm.
    pub async fn admin(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let base = format!("http://{}", self.addr());
        let form = [
            ("grant_type", "password"),
            ("client_id", "admin-cli"),
            ("username", ADMIN),
            ("password", ADMIN),
        ];
        // A new token for each call, because they expire after a minute.
        let tokens = token(&format!("{base}/realms/master"), &form).await;
        let tokens = tokens.unwrap_or_else(|why| panic!("Keycloak refuses its administrator: {why}"));
        let url = format!("{base}/admin/realms/playhouse/{path}");
        let request = http::client().request(method.clone(), url.trim_end_matches('/'));
        let request = request.bearer_auth(text(&tokens["access_token"]));
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let answer = http::request_ok(request).await;
        answer.unwrap_or_else(|why| panic!("Keycloak refuses {method} {path}: {why}"))
    }

    async fn user_id(&self, name: &str) -> String {
        let found = self.admin(Method::GET, &format!("users?exact=true&username={name}"), None).await;
        text(&found[0]["id"]).to_owned()
    }

    async fn signing_keys(&self) -> Vec<Value> {
        let keys = self.admin(Method::GET, KEYS, None).await;
        let keys = keys.as_array().cloned().unwrap_or_default();
        keys.into_iter().filter(|key| key["providerId"] == "rsa-generated").collect()
    }
}

fn priority(key: &Value) -> u64 {
    key["config"]["priority"][0].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
