//! Verification of signatures by an independent receiver.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use axum::http::StatusCode;
use base::Clock;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use testkit::{SignedRequest, StandardWebhooks, need};
use webhook::{Config, Message, Secrets, SendOutcome};

use crate::fixture::{Fixture, SECRET, config};
use crate::receiver::Receiver;

#[tokio::test]
async fn receiver_verifies_with_any_of_the_secrets() {
    let verifier = need!(StandardWebhooks::find());
    let new = format!("whsec_{}", STANDARD.encode([7; 64]));
    let unknown = format!("whsec_{}", STANDARD.encode([8; 32]));
    let public = |seed: [u8; 32]| {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        format!("whpk_{}", STANDARD.encode(pair.public_key()))
    };
    let private = format!("whsk_{}", STANDARD.encode([9; 32]));

    let receiver = Receiver::start(|| StatusCode::OK).await;
    let fixture = Fixture::at(Clock::system());
    let secrets = Secrets::new([SECRET, &new, &private]).unwrap();
    let shop = fixture.with(Config { secrets, ..config(&receiver.url()) });
    let id = "0198c0de-0000-7000-8000-000000000001".parse().unwrap();
    let body = "{\"name\":\"Zoë\", \"dots\": \"1.2.3\"}";
    let message = Message { id: &id, body: body.into(), traceparent: None };
    assert_eq!(shop.send(&message).await, SendOutcome::Delivered);

    let (headers, body) = receiver.received().remove(0);
    let named = headers.iter().filter(|(name, _)| name.as_str().starts_with("webhook-"));
    let headers: BTreeMap<String, String> =
        named.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let body = String::from_utf8(body.to_vec()).unwrap();
    let request =
        |key: &str| SignedRequest { key: key.to_owned(), headers: headers.clone(), body: body.clone() };
    let forged = |key: &str| SignedRequest { body: body.replace("Zoë", "Zoe"), ..request(key) };
    let requests = [
        request(SECRET),
        request(&new),
        request(&public([9; 32])),
        request(&unknown),
        request(&public([8; 32])),
        forged(SECRET),
        forged(&public([9; 32])),
    ];
    let refused = || Some("No matching signature found".to_owned());
    assert_eq!(
        verifier.verify(&requests).await,
        [None, None, None, refused(), refused(), refused(), refused()]
    );
}
