//! Sign-in of operators: at the issuer, or with a configured token.
//!
//! A sign-in at the issuer is the code flow with PKCE. What it has to remember is in a cookie of the browser that began it. No other
//! browser can finish it, and any process can.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::response::{IntoResponse, Redirect, Response};
use base::error::{Coded, chain};
use http::header::{HOST, LOCATION, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_server::cookie;
use oidc::{AuthorizationRequest, Pkce, Provider, random_token};
use operators::{COOKIE, ConsoleSessions, NewSession};
use service::{IssuerOperators, Open, OperatorRoute, RouteMethod, TokenHolder};
use url::{Url, form_urlencoded};

use crate::pages::html;
use crate::registry::Console;
use crate::render::{SignIn, sign_in_page};

const PAGE: &str = "/console/sign-in";
const TOKEN: &str = "/console/sign-in/token";
const ISSUER: &str = "/console/sign-in/issuer";
const CALLBACK: &str = "/console/sign-in/callback";
pub(crate) const SIGN_OUT: &str = "/console/sign-out";

/// The cookie of a sign-in that was begun at the issuer.
const ATTEMPT: &str = "playhouse_console_sign_in";
/// How long an operator may take to sign in at the issuer.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(600);
/// The largest form.
const MAX_BODY: usize = 1 << 14;

pub(crate) fn routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::public_page(RouteMethod::Get, PAGE, page),
        OperatorRoute::public_page(RouteMethod::Get, ISSUER, begin),
        OperatorRoute::public_page(RouteMethod::Get, CALLBACK, finish),
        OperatorRoute::public_page(RouteMethod::Post, TOKEN, with_token),
        OperatorRoute::form(SIGN_OUT, sign_out),
    ]
}

/// Why a sign-in failed, as the operator reads it.
struct Refused {
    status: StatusCode,
    text: String,
}

impl Refused {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// The issuer or the database does not answer.
    fn unavailable(error: &(dyn std::error::Error + 'static), what: &str) -> Self {
        tracing::warn!(cause = chain(error), "cannot sign an operator in");
        let text = format!("{what} does not answer. Try again in a moment, or run `playhouse doctor`.");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

/// `GET /console/sign-in`: offers the ways to sign in.
async fn page(Open(console): Open<Console>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let back = parameter(query.as_bytes(), "return_to");
    offer(&console, StatusCode::OK, back.as_deref(), None)
}

/// `POST /console/sign-in/token`: signs the operator of a configured token in.
async fn with_token(
    Open(console): Open<Console>,
    Open(sessions): Open<ConsoleSessions>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let form = to_bytes(body, MAX_BODY).await.unwrap_or_default();
    let (token, back) = (parameter(&form, "token").unwrap_or_default(), parameter(&form, "return_to"));
    let secret = random_token();
    let new = NewSession { secret: &secret, lifetime: console.config().session_lifetime, request: &head };
    let refused = match sessions.begin_with_token(new, token.trim()).await {
        Ok(Some(_)) => return signed_in(&console, &secret, back.as_deref()),
        Ok(None) => {
            tracing::warn!("refused a sign-in at the console: no operator has this token");
            let text = "No operator has this token. Check that you copied all of it.";
            Refused::new(StatusCode::UNAUTHORIZED, text)
        }
        Err(error) => Refused::unavailable(&error, "The database"),
    };
    offer(&console, refused.status, back.as_deref(), Some(&refused.text))
}

/// `GET /console/sign-in/issuer`: sends the browser to the issuer.
async fn begin(Open(console): Open<Console>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let back = parameter(query.as_bytes(), "return_to");
    match authorize(&console, request.headers(), back.as_deref()).await {
        Ok(response) => response,
        Err(refused) => offer(&console, refused.status, back.as_deref(), Some(&refused.text)),
    }
}

async fn authorize(console: &Console, headers: &HeaderMap, back: Option<&str>) -> Result<Response, Refused> {
    let provider = issuer(console)?;
    let attempt = Attempt {
        state: random_token(),
        nonce: random_token(),
        back: own_path(back).to_owned(),
        pkce: Pkce::generate(),
    };
    let redirect_uri = callback_url(console, headers)?;
    let authorization = AuthorizationRequest {
        redirect_uri: &redirect_uri,
        state: &attempt.state,
        nonce: &attempt.nonce,
        challenge: &attempt.pkce.challenge,
    };
    let url = provider
        .authorize_url(&authorization)
        .await
        .map_err(|error| Refused::unavailable(&error, "The issuer"))?;
    let mut response = Redirect::to(url.as_str()).into_response();
    set_cookie(console, &mut response, ATTEMPT, &attempt.to_cookie(), SIGN_IN_TIMEOUT);
    Ok(response)
}

/// `GET /console/sign-in/callback`: the issuer sent the browser back.
async fn finish(
    Open(console): Open<Console>,
    Open(sessions): Open<ConsoleSessions>,
    request: Request,
) -> Response {
    let (head, _) = request.into_parts();
    let attempt = cookie(&head.headers, ATTEMPT).and_then(Attempt::from_cookie);
    let back = attempt.as_ref().map(|attempt| attempt.back.clone());
    let mut response = match redeem(&console, &sessions, &head, attempt).await {
        Ok(secret) => signed_in(&console, &secret, back.as_deref()),
        Err(refused) => offer(&console, refused.status, back.as_deref(), Some(&refused.text)),
    };
    set_cookie(&console, &mut response, ATTEMPT, "", Duration::ZERO);
    response
}

/// Checks the issuer's response and begins a session. Returns its secret.
async fn redeem(
    console: &Console,
    sessions: &ConsoleSessions,
    head: &Parts,
    attempt: Option<Attempt>,
) -> Result<String, Refused> {
    let refused = |text: &str| Refused::new(StatusCode::BAD_REQUEST, text);
    let unavailable = |error: oidc::Error| Refused::unavailable(&error, "The issuer");
    let query = head.uri.query().unwrap_or_default().as_bytes();
    let attempt =
        attempt.filter(|attempt| parameter(query, "state").as_deref() == Some(&attempt.state)).ok_or_else(
            || refused("This sign-in was not begun in this browser, or it took too long. Sign in again."),
        )?;
    let provider = issuer(console)?;
    // Before the code is redeemed: another issuer may have sent the browser here to obtain it (mix-up, RFC 9207).
    let iss = parameter(query, "iss");
    if !provider.is_response_of_issuer(iss.as_deref()).await.map_err(unavailable)? {
        return Err(refused("The response is not from the configured issuer. Sign in again."));
    }
    let code = match (parameter(query, "error"), parameter(query, "code")) {
        (Some(_), _) | (None, None) => return Err(refused("The issuer did not sign you in. Sign in again.")),
        (None, Some(code)) => code,
    };
    let redirect_uri = callback_url(console, &head.headers)?;
    let tokens = match provider.redeem(&code, &attempt.pkce.verifier, &redirect_uri).await {
        Ok(tokens) => tokens,
        Err(error) if error.is_transient() => return Err(unavailable(error)),
        Err(error) => {
            tracing::warn!(
                cause = chain(&error),
                "the issuer did not accept the code of an operator's sign-in"
            );
            return Err(refused("The issuer did not accept this sign-in. Sign in again."));
        }
    };
    let id_token = tokens.id_token.as_ref().ok_or_else(|| refused("The issuer sent no ID token."))?;
    let claims =
        provider.verify_id_token(id_token.expose(), Some(&attempt.nonce)).await.map_err(|error| {
            tracing::warn!(cause = chain(&error), "the ID token of an operator's sign-in is not valid");
            refused("The issuer's response is not valid. Sign in again.")
        })?;
    let Some(IssuerOperators(Some(verifier))) = console.provided().find() else {
        return Err(refused("No issuer is configured."));
    };
    let holder = verifier.holder(tokens.access_token.expose()).await;
    let holder = holder.map_err(|problem| Refused::new(StatusCode::SERVICE_UNAVAILABLE, problem.text()))?;
    let operator = match holder {
        Some(TokenHolder::Operator(operator)) if operator.subject() == Some(claims.subject.as_str()) => {
            operator
        }
        Some(TokenHolder::OtherUser(user)) => {
            if let Err(error) = sessions.record_refusal(&user, head).await {
                tracing::warn!(cause = chain(&error), actor = user.name, "cannot record a refused sign-in");
            }
            let text = format!(
                "{} is not an operator. Ask an administrator of the issuer for the role that `identity.operator_role` names.",
                user.name
            );
            return Err(Refused::new(StatusCode::FORBIDDEN, text));
        }
        Some(TokenHolder::Operator(_)) | None => {
            return Err(refused("The issuer's access token is not valid for Playhouse."));
        }
    };
    let secret = random_token();
    let new = NewSession { secret: &secret, lifetime: console.config().session_lifetime, request: head };
    let begun = sessions.begin(new, &operator).await;
    begun.map_err(|error| Refused::unavailable(&error, "The database"))?;
    Ok(secret)
}

/// `POST /console/sign-out`: ends the session.
async fn sign_out(
    Open(console): Open<Console>,
    Open(sessions): Open<ConsoleSessions>,
    request: Request,
) -> Response {
    if let Some(secret) = cookie(request.headers(), COOKIE)
        && let Err(error) = sessions.end(secret).await
    {
        let refused = Refused::unavailable(&error, "The database");
        return offer(&console, refused.status, None, Some(&refused.text));
    }
    let mut response = see_other(PAGE);
    set_cookie(&console, &mut response, COOKIE, "", Duration::ZERO);
    response
}

/// A sign-in that was begun at the issuer.
struct Attempt {
    state: String,
    nonce: String,
    pkce: Pkce,
    /// The page to show afterwards.
    back: String,
}

impl Attempt {
    fn to_cookie(&self) -> String {
        let pairs = [
            ("state", &self.state),
            ("nonce", &self.nonce),
            ("verifier", &self.pkce.verifier),
            ("back", &self.back),
        ];
        form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
    }

    fn from_cookie(value: &str) -> Option<Self> {
        let part = |name| parameter(value.as_bytes(), name);
        Some(Self {
            state: part("state")?,
            nonce: part("nonce")?,
            pkce: Pkce::from_verifier(part("verifier")?),
            back: own_path(part("back").as_deref()).to_owned(),
        })
    }
}

fn issuer(console: &Console) -> Result<Provider, Refused> {
    let text = "No issuer is configured in this process. Sign in with an operator's token.";
    console.provided().find().ok_or_else(|| Refused::new(StatusCode::NOT_FOUND, text))
}

/// Returns the URL that the issuer sends the browser back to: below `console.url`, or at the host that the browser asked for. The
/// listener refuses foreign hosts, and the issuer refuses URLs that it does not know.
fn callback_url(console: &Console, headers: &HeaderMap) -> Result<Url, Refused> {
    let base = match &console.config().url {
        Some(url) => Ok(url.clone()),
        None => {
            let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
            Url::parse(&format!("http://{host}"))
        }
    };
    let url = base.and_then(|base| base.join(CALLBACK));
    url.map_err(|_| Refused::new(StatusCode::BAD_REQUEST, "Set `console.url` to the URL of this console."))
}

/// Shows the sign-in page.
fn offer(console: &Console, status: StatusCode, back: Option<&str>, error: Option<&str>) -> Response {
    let back = own_path(back);
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("return_to", back).finish();
    let issuer_href = format!("{ISSUER}?{query}");
    let has_issuer = console.provided().find::<Provider>().is_some();
    let sign_in = SignIn {
        issuer_href: has_issuer.then_some(&issuer_href),
        token_action: Some(TOKEN),
        hidden: &[("return_to", back)],
        error,
    };
    html(status, sign_in_page(&sign_in))
}

/// Gives the browser its session and leads it to the page that it asked for.
fn signed_in(console: &Console, secret: &str, back: Option<&str>) -> Response {
    let mut response = see_other(own_path(back));
    set_cookie(console, &mut response, COOKIE, secret, console.config().session_lifetime);
    response
}

fn see_other(target: &str) -> Response {
    let location = HeaderValue::from_str(target).unwrap_or(HeaderValue::from_static("/console"));
    (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response()
}

/// Returns a path of the console, so that a link to the sign-in cannot lead anywhere else.
pub(crate) fn own_path(path: Option<&str>) -> &str {
    let is_own = |path: &&str| {
        (*path == "/console" || path.starts_with("/console/") || path.starts_with("/console?"))
            && !path.starts_with(PAGE)
            && path.chars().all(|c| c.is_ascii_graphic() && c != '\\')
    };
    path.filter(is_own).unwrap_or("/console")
}

/// Sets a cookie that only the pages of the console get. `Lax`: the issuer's redirect back is a navigation from another site.
fn set_cookie(console: &Console, response: &mut Response, name: &str, value: &str, life: Duration) {
    let is_https = console.config().url.as_ref().is_some_and(|url| url.scheme() == "https");
    let secure = if is_https { "; Secure" } else { "" };
    let life = life.as_secs();
    let line = format!("{name}={value}; Path=/console; Max-Age={life}; HttpOnly; SameSite=Lax{secure}");
    if let Ok(mut line) = HeaderValue::from_str(&line) {
        line.set_sensitive(true);
        response.headers_mut().append(SET_COOKIE, line);
    }
}

/// Returns a parameter of a query or form.
fn parameter(encoded: &[u8], name: &str) -> Option<String> {
    form_urlencoded::parse(encoded).find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_in_leads_only_to_pages_of_the_console() {
        for own in ["/console", "/console/drops?state=open&page=2", "/console?x=1"] {
            assert_eq!(own_path(Some(own)), own);
        }
        for other in [
            "//evil.example",
            "https://evil.example/console/",
            "/consoles",
            "/console/\\x",
            "/console/a b",
            PAGE,
        ] {
            assert_eq!(own_path(Some(other)), "/console", "{other}");
        }
        assert_eq!(own_path(None), "/console");
    }

    #[test]
    fn attempt_survives_its_cookie() {
        let attempt = Attempt {
            state: "s".to_owned(),
            nonce: "n".to_owned(),
            pkce: Pkce::generate(),
            back: "/console/players?search=ada+l&x=%2F".to_owned(),
        };
        let read = Attempt::from_cookie(&attempt.to_cookie()).unwrap();
        assert_eq!((&read.state, &read.nonce, &read.back), (&attempt.state, &attempt.nonce, &attempt.back));
        assert_eq!(read.pkce.verifier, attempt.pkce.verifier);
        assert!(Attempt::from_cookie("state=s&nonce=n").is_none());
    }
}
