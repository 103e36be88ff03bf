//! A run at log level `trace`: the log has no secrets and every security event.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ::config::{Secret, Setting, Value as ConfigValue};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use base::Clock;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oidc::builtin::Builtin;
use oidc::{Algorithm, Config, IssuerUrl};
use testkit::eventually;
use tokio::net::TcpListener;
use url::form_urlencoded;

use super::*;
use testkit::issuer::{Signer, now};

const CLIENT_SECRET: &str = "the-secret-of-the-client-0123456789";
const SESSION_KEY: &str = "a-key-for-sessions-0123456789abcdef";
/// The lifetime of access tokens. They are refreshed after half of it.
const ACCESS_TTL: Duration = Duration::from_secs(2);

/// An issuer that records every secret that it sends or receives.
#[derive(Clone)]
struct RecordingIssuer {
    builtin: Builtin,
    /// Signs logout tokens, which the builtin issuer does not send.
    signer: Arc<Signer>,
    recorded: Arc<Mutex<Vec<(String, String)>>>,
}

impl RecordingIssuer {
    /// Serves as the issuer on this listener.
    fn serve(listener: TcpListener, issuer: &Url, gateway: &str) -> Self {
        let config = Config {
            issuer: IssuerUrl::Url(issuer.clone()),
            client_id: "playhouse".to_owned(),
            client_secret: Some(Secret::parse(&ConfigValue::Text(CLIENT_SECRET.to_owned())).unwrap()),
            scopes: vec!["openid".to_owned(), "profile".to_owned()],
            audiences: vec!["playhouse".to_owned()],
            algorithms: vec![Algorithm::Es256],
            clock_skew: Duration::from_secs(30),
            timeout: Duration::from_secs(5),
            keys_cooldown: Duration::from_secs(10),
            keys_max_age: Duration::from_secs(3600),
            roles_claim: "realm_access.roles".to_owned(),
            operator_role: "playhouse-operator".to_owned(),
            readonly_operator_role: "playhouse-operator-readonly".to_owned(),
            service_role: "playhouse-service".to_owned(),
            right_prefix: "playhouse-may-".to_owned(),
            name_claim: "name".to_owned(),
        };
        let under = Url::parse(&format!("http://{gateway}")).unwrap();
        let builtin =
            Builtin::with_access_ttl(&config, issuer.clone(), vec![under], Clock::system(), ACCESS_TTL)
                .unwrap();
        let this = Self { builtin, signer: Arc::new(Signer::ec("logout")), recorded: Arc::default() };
        let routes = Router::new().nest("/issuer", this.builtin.routes());
        let routes = routes.layer(from_fn_with_state(this.clone(), record));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    /// Returns all recorded values of a name, the latest last.
    fn recorded(&self, name: &str) -> Vec<String> {
        let recorded = self.recorded.lock().unwrap();
        recorded.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    }
}

async fn record(State(recorder): State<RecordingIssuer>, request: Request, next: Next) -> Response {
    const MAX_BODY: usize = 1 << 20;
    let is_keys = request.uri().path().ends_with("/jwks");
    let (head, body) = request.into_parts();
    let sent = to_bytes(body, MAX_BODY).await.unwrap();
    for (name, value) in form_urlencoded::parse(&sent) {
        recorder.recorded.lock().unwrap().push((name.into_owned(), value.into_owned()));
    }
    let (mut head, body) = next.run(Request::from_parts(head, Body::from(sent))).await.into_parts();
    let mut returned = to_bytes(body, MAX_BODY).await.unwrap();
    if let Ok(mut json) = serde_json::from_slice::<Value>(&returned) {
        for name in ["access_token", "refresh_token", "id_token"] {
            if let Some(token) = json[name].as_str() {
                recorder.recorded.lock().unwrap().push((name.to_owned(), token.to_owned()));
            }
        }
        if is_keys {
            json["keys"].as_array_mut().unwrap().push(recorder.signer.jwk());
            returned = json.to_string().into();
            head.headers.remove("content-length");
        }
    }
    Response::from_parts(head, Body::from(returned))
}

/// Returns the value of a cookie.
fn value(pair: &str) -> String {
    pair.split_once('=').unwrap().1.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_logged_and_every_security_event_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = Url::parse(&format!("http://{}/issuer", listener.local_addr().unwrap())).unwrap();
    let settings = format!(
        "[identity]\nissuer = \"{issuer}\"\nclient_secret = \"{CLIENT_SECRET}\"\n\
         [gateway.session]\nkeys = [\"{SESSION_KEY}\"]\n[gateway.limits]\nstream = \"1/m burst 1\"\n\
         [telemetry]\nlog = \"trace,hyper=trace,hyper_util=trace,reqwest=trace,rustls=trace,sqlx=trace,h2=trace,\
         tower=trace\"\nlog_format = \"json\"\n"
    );
    let gateway = Gateway::start_with(&settings, |program| program).await;
    let address = &gateway.at["gateway"];
    let recorder = RecordingIssuer::serve(listener, &issuer, address);
    let mut secrets = BTreeSet::from([CLIENT_SECRET.to_owned(), SESSION_KEY.to_owned()]);
    secrets.insert(STANDARD.encode(format!("playhouse:{CLIENT_SECRET}")));
    let with = |session: &str| gateway.get("/v1/me").header("cookie", session);
    let mut keep = |sign_in: &SignIn| {
        let SignIn { session, attempt, .. } = sign_in;
        secrets.extend([
            value(session),
            value(attempt),
            sign_in.parameter("code"),
            sign_in.parameter("state"),
        ]);
    };

    // A player signs in, has the session refreshed, and signs out.
    let ada = sign_in(address, "ada").await;
    keep(&ada);
    let me = send(with(&ada.session)).await.json();
    let user = me["user_id"].as_str().unwrap().to_owned();
    eventually("the session is refreshed", PATIENCE, async || {
        assert_eq!(send(with(&ada.session)).await.status, 200);
        recorder.recorded("refresh_token").len() >= 3
    })
    .await;
    let token = recorder.recorded("access_token").last().unwrap().clone();
    assert_eq!(send(gateway.get("/v1/home").bearer_auth(&token)).await.status, 200);
    let ticket =
        gateway.post("/v1/matchmaking/tickets", &json!({ "queue": "duel" })).header("cookie", &ada.session);
    assert_problem(&send(ticket).await, 403);
    let out = gateway.url(me["session"]["logout_url"].as_str().unwrap());
    let signed_out = send(gateway.client.get(out).header("cookie", &ada.session)).await;
    assert_eq!(signed_out.status, 303, "{signed_out:?}");
    assert!(signed_out.header("location").contains("id_token_hint="), "{signed_out:?}");
    assert_problem(&send(with(&ada.session)).await, 401);

    // Sign-ins that fail: started in another browser, cancelled, with a used code.
    let mut cancelled = ada.callback.clone();
    let (state, iss) = (ada.parameter("state"), ada.parameter("iss"));
    cancelled.query_pairs_mut().clear().extend_pairs([("state", &state), ("iss", &iss)]);
    cancelled.query_pairs_mut().append_pair("error", "access_denied");
    let other_browser =
        gateway.url("/login/callback?state=made-up-state-0123456789&code=made-up-code-0123456789");
    let failures = [
        (Url::parse(&other_browser).unwrap(), String::new()),
        (cancelled, ada.attempt.clone()),
        (ada.callback.clone(), ada.attempt.clone()),
    ];
    for (url, cookie) in failures {
        let request = gateway.client.get(url).header("cookie", cookie);
        let failed = send(request).await;
        assert!((400..500).contains(&failed.status), "{failed:?}");
    }
    // The issuer revokes a refresh token, and the next refresh ends the session.
    let grace = sign_in(address, "grace").await;
    keep(&grace);
    let revoke = gateway.client.post(format!("{issuer}/revoke")).basic_auth("playhouse", Some(CLIENT_SECRET));
    let revoke = revoke.header("content-type", "application/x-www-form-urlencoded");
    let refresh_token = recorder.recorded("refresh_token").last().unwrap().clone();
    assert_eq!(send(revoke.body(format!("token={refresh_token}"))).await.status, 200);
    eventually("the session has ended", PATIENCE, async || send(with(&grace.session)).await.status == 401)
        .await;
    // A back-channel logout, an invalid one and a repeated one.
    let alan = sign_in(address, "alan").await;
    keep(&alan);
    let logout = recorder.signer.sign(&json!({
        "iss": issuer.as_str(), "aud": "playhouse", "iat": now(), "exp": now() + 100, "jti": "one", "sub": "alan",
        "events": { "http://schemas.openid.net/event/backchannel-logout": {} },
    }));
    let junk = "bWFkZSB1cA.bWFkZSB1cA.bWFkZSB1cA".to_owned();
    for (token, status) in [(&junk, 400), (&logout, 200), (&logout, 400)] {
        let request = gateway.client.post(gateway.url("/logout/backchannel"));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let response = send(request.body(format!("logout_token={token}"))).await;
        assert_eq!(response.status, status, "{response:?}");
    }
    assert_problem(&send(with(&alan.session)).await, 401);
    // An invalid token, a caller without the right, and a caller over the limit.
    let service = recorder.builtin.token("shop", Some("service")).unwrap();
    let player = recorder.builtin.token("ada", None).unwrap();
    assert_problem(&send(gateway.get("/v1/me").bearer_auth(&junk)).await, 401);
    assert_problem(&send(gateway.get("/v1/home").bearer_auth(&service)).await, 403);
    for status in [404, 429] {
        let stream = gateway.get("/v1/matchmaking/tickets/0000/stream").bearer_auth(&player);
        assert_problem(&send(stream).await, status);
    }
    secrets.extend([logout, junk, service, player]);
    for name in ["access_token", "refresh_token", "id_token", "code", "code_verifier"] {
        let recorded = recorder.recorded(name);
        assert!(recorded.len() >= 3, "{name}");
        secrets.extend(recorded);
    }

    gateway.running.sigterm();
    assert_eq!(gateway.running.wait(PATIENCE).await.code(), Some(0));
    let lines: Vec<String> = gateway.running.lines().into_iter().map(|line| line.text).collect();
    assert!(lines.iter().any(|line| line.contains("\"TRACE\"")), "trace lines are missing");
    for secret in &secrets {
        assert!(secret.len() >= 16, "{secret} is too short to search for");
        let found = lines.iter().find(|line| line.contains(secret));
        assert!(found.is_none(), "{secret} is in the log: {found:?}");
        // The signature alone is secret, too.
        if let Some((_, signature)) = secret.rsplit_once('.') {
            assert!(!lines.iter().any(|line| line.contains(signature)), "{signature} is in the log");
        }
    }

    let events: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let events: Vec<&Value> = events.iter().filter(|line: &&Value| line["target"] == "audit").collect();
    let of = |word: &str| events.iter().filter(|line| line["event"] == word).collect::<Vec<_>>();
    for (word, count, names_user) in [
        ("signed_in", 3, true),
        ("sign_in_failed", 3, false),
        ("signed_out", 1, true),
        ("back_channel_logout", 1, false),
        ("back_channel_refused", 2, false),
        ("token_refused", 1, false),
        ("role_refused", 1, true),
        ("csrf_refused", 1, true),
        ("rate_limited", 1, true),
    ] {
        let found = of(word);
        assert_eq!(found.len(), count, "{word}: {events:?}");
        for line in found {
            assert_eq!((&line["level"], &line["address"]), (&json!("INFO"), &json!("127.0.0.1")), "{line}");
            assert_eq!(line["user"].is_string(), names_user, "{line}");
            assert!(line["why"].is_string(), "{line}");
        }
    }
    for word in ["signed_in", "signed_out", "csrf_refused", "rate_limited"] {
        assert_eq!(of(word)[0]["user"], user, "{word}");
    }
    assert_eq!(of("session_ended_by_issuer").len(), 1, "{events:?}");
}
