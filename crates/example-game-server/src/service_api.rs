//! The calls of the service API that a game server needs. It has a right for each: `read`, `entitlements`, `notifications`.

use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use crate::duel::Seat;
use crate::results::{GameResult, TROPHY};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a player waits for their name.
const NAME_TIMEOUT: Duration = Duration::from_secs(1);

/// The service API of Playhouse. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct ServiceApi {
    client: Client,
    url: Url,
    token: String,
}

/// Why a result was not reported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("no final answer: {0}")]
    Failed(String),
    /// A repetition would be refused too.
    #[error("refused: {0}")]
    Refused(String),
}

impl std::fmt::Debug for ServiceApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceApi").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

impl ServiceApi {
    /// Creates a client. `url` is the address of the service API, without a path.
    pub fn new(url: Url, token: String) -> Result<Self, reqwest::Error> {
        let client = Client::builder().timeout(TIMEOUT).build()?;
        Ok(Self { client, url, token })
    }

    /// Returns a player's name. None if there is none, or Playhouse does not answer soon.
    pub async fn name(&self, user_id: Uuid) -> Option<String> {
        let request = self.request(Method::GET, &format!("users/{user_id}")).ok()?;
        let user: Value = request.timeout(NAME_TIMEOUT).send().await.ok()?.json().await.ok()?;
        user["display_name"].as_str().map(str::to_owned)
    }

    /// Grants the winner a trophy and notifies both players. A repetition changes nothing: the keys are made of the match id.
    pub(crate) async fn report(&self, result: &GameResult) -> Result<(), ReportError> {
        let match_id = result.match_id;
        if let Some(user_id) = result.winner.and_then(|winner| result.players[winner.index()].user_id) {
            let accounts = self.request(Method::GET, &format!("users/{user_id}/accounts"))?;
            let accounts = send(accounts).await?;
            let account = &accounts["accounts"][0]["account_id"];
            let grant = json!({
                "user_id": user_id, "account_id": account, "resource": TROPHY, "quantity": 1,
                "occurred_at": result.ended_at, "reference": match_id,
            });
            self.change("entitlements/grant", &format!("duel-{match_id}"), &grant).await?;
        }
        for seat in Seat::BOTH {
            let Some(user_id) = result.players[seat.index()].user_id else { continue };
            let (title, body) = texts(result, seat);
            let text = json!({
                "to": { "user_id": user_id },
                "texts": { "en": { "title": title, "body": body } },
                "data": { "match_id": match_id },
            });
            let key = format!("duel-{match_id}-{}", seat.index());
            self.change("notifications", &key, &text).await?;
        }
        Ok(())
    }

    async fn change(&self, path: &str, key: &str, body: &Value) -> Result<Value, ReportError> {
        send(self.request(Method::POST, path)?.header("idempotency-key", key).json(body)).await
    }

    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, ReportError> {
        let url = self.url.join("/internal/v1/").and_then(|url| url.join(path));
        let url = url.map_err(|error| ReportError::Refused(error.to_string()))?;
        Ok(self.client.request(method, url).bearer_auth(&self.token))
    }
}

/// Sends a request. A client error that a retry cannot fix is a refusal.
async fn send(request: RequestBuilder) -> Result<Value, ReportError> {
    let failed = |error: reqwest::Error| ReportError::Failed(base::error::chain(&error).to_string());
    let response = request.send().await.map_err(failed)?;
    let status = response.status();
    let body: Value = response.json().await.unwrap_or_default();
    if status.is_success() {
        return Ok(body);
    }
    let cause = format!("{status}: {}", body["detail"].as_str().unwrap_or_default());
    // 409 is the same request, still in flight. A wrong token is a mistake of the configuration, which a person corrects.
    let may_pass = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::CONFLICT,
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
    ];
    Err(if status.is_client_error() && !may_pass.contains(&status) {
        ReportError::Refused(cause)
    } else {
        ReportError::Failed(cause)
    })
}

/// Returns title and body of the notification for one player.
fn texts(result: &GameResult, seat: Seat) -> (String, String) {
    let [you, other] = [seat, seat.other()].map(|seat| &result.players[seat.index()]);
    let opponent = other.name.as_deref().unwrap_or("your opponent");
    let score = format!("{} : {}", you.points, other.points);
    match result.winner {
        Some(winner) if winner == seat => {
            (format!("You won against {opponent}"), format!("{score}. A trophy is in your inventory."))
        }
        Some(_) => (format!("You lost against {opponent}"), format!("{score}. Ask for a rematch.")),
        None => (format!("A draw against {opponent}"), format!("{score}. Nobody gets the trophy.")),
    }
}
