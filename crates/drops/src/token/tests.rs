use std::io::Write;
use std::process::{Command, Stdio};

use account::AccountId;
use aws_lc_rs::hmac;
use base::id::Uuid;

use super::*;

const OLD: &[u8] = b"the secret of last month, of enough length";
const NEW: &[u8] = b"the secret of this month, of enough length";
const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_500);

fn tokens(secrets: &[&'static [u8]]) -> AdmissionTokens {
    AdmissionTokens::new(secrets.iter().copied()).unwrap()
}

fn admission() -> Admission {
    Admission {
        id: AdmissionId::from_uuid(Uuid::from_u128(1)),
        drop: DropId::from_uuid(Uuid::from_u128(2)),
        user: UserId::from_uuid(Uuid::from_u128(3)),
        account: AccountId::from_uuid(Uuid::from_u128(4)),
        expires_at: Timestamp::from_millis(NOW.as_millis() + 60_000),
        arrived_at: None,
    }
}

fn verify(tokens: &AdmissionTokens, token: &str) -> Result<VerifiedAdmission, TokenError> {
    let Admission { drop, user, .. } = admission();
    tokens.verify(token, drop, user, NOW)
}

/// Builds a token from these parts with a valid signature of the key.
fn signed(key: &Key, header: &Value, claims: &Value) -> String {
    let message = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    format!("{message}.{}", key.sign(&message))
}

fn part(token: &str, at: usize) -> Value {
    serde_json::from_slice(&BASE64.decode(token.split('.').nth(at).unwrap()).unwrap()).unwrap()
}

#[test]
fn token_names_drop_user_and_admission_until_it_expires() {
    let (tokens, admission) = (tokens(&[NEW]), admission());
    let token = tokens.sign(&admission, NOW);
    let Admission { id, drop, user, .. } = admission;
    assert_eq!(verify(&tokens, &token), Ok(VerifiedAdmission { drop, user, admission: id }));
    assert_eq!(
        part(&token, 1),
        json!({
            "iss": ISSUER, "aud": drop.to_string(), "sub": user.to_string(), "jti": id.to_string(),
            "iat": 1_772_366_400, "exp": 1_772_366_461,
        })
    );
    // The gateway's clock may be five seconds ahead of the database's, which `exp` comes from.
    let last = Timestamp::from_millis(1_772_366_465_999);
    assert!(tokens.verify(&token, drop, user, last).is_ok(), "a token never expires before its admission");
    let end = Timestamp::from_millis(1_772_366_466_000);
    assert_eq!(tokens.verify(&token, drop, user, end), Err(TokenError::Expired));
}

#[test]
fn token_is_accepted_whichever_clock_is_behind() {
    let (tokens, admission) = (tokens(&[NEW]), admission());
    let token = tokens.sign(&admission, NOW);
    // Signed by a gateway whose clock is a minute ahead of the one that verifies.
    let earlier = Timestamp::from_millis(NOW.as_millis() - 60_000);
    assert!(tokens.verify(&token, admission.drop, admission.user, earlier).is_ok());
    let mut claims = part(&token, 1);
    claims["exp"] = json!(i64::MAX);
    let endless = signed(&tokens.0[0], &part(&token, 0), &claims);
    assert!(verify(&tokens, &endless).is_ok(), "the largest expiry does not overflow");
    claims["exp"] = json!(i64::MIN);
    assert_eq!(verify(&tokens, &signed(&tokens.0[0], &part(&token, 0), &claims)), Err(TokenError::Expired));
}

#[test]
fn token_is_valid_only_for_its_player_and_drop() {
    let (tokens, admission) = (tokens(&[NEW]), admission());
    let token = tokens.sign(&admission, NOW);
    let (other_drop, other_user) = (DropId::generate(), UserId::generate());
    assert_eq!(tokens.verify(&token, admission.drop, other_user, NOW), Err(TokenError::OtherPlayer));
    assert_eq!(tokens.verify(&token, other_drop, admission.user, NOW), Err(TokenError::OtherDrop));
}

#[test]
fn secrets_can_be_rotated() {
    let (old, both, new) = (tokens(&[OLD]), tokens(&[NEW, OLD]), tokens(&[NEW]));
    let before = old.sign(&admission(), NOW);
    assert!(verify(&both, &before).is_ok(), "a token of the previous secret is accepted");
    let after = both.sign(&admission(), NOW);
    assert!(verify(&new, &after).is_ok(), "the first secret signs");
    assert_eq!(verify(&old, &after), Err(TokenError::Signature));
    assert_eq!(verify(&new, &before), Err(TokenError::Signature), "removing a secret invalidates its tokens");
    let published: Vec<String> = both.public_keys().keys.into_iter().map(|key| key.kid).collect();
    assert_eq!(published, [new.0[0].id.clone(), old.0[0].id.clone()]);
}

#[test]
fn modified_token_is_refused() {
    let tokens = tokens(&[NEW]);
    let token = tokens.sign(&admission(), NOW);
    for (at, letter) in token.char_indices() {
        let mut changed = token.clone();
        changed.replace_range(at..=at, if letter == 'A' { "B" } else { "A" });
        assert!(verify(&tokens, &changed).is_err(), "{at}: {changed}");
    }
    for wrong in ["", ".", "..", "...", "a.b.c", "no token", &token[..token.len() - 1], &"a".repeat(5_000)] {
        assert!(verify(&tokens, wrong).is_err(), "{wrong}");
    }
}

#[test]
fn other_algorithms_types_and_issuers_are_refused() {
    let tokens = tokens(&[NEW]);
    let token = tokens.sign(&admission(), NOW);
    let (key, header, claims) = (&tokens.0[0], part(&token, 0), part(&token, 1));
    assert!(verify(&tokens, &signed(key, &header, &claims)).is_ok(), "the helper produces valid tokens");
    let with = |name: &str, value: Value| {
        let mut header = header.clone();
        header[name] = value;
        header
    };
    let wrong = [
        with("alg", json!("none")),
        with("alg", json!("HS256")),
        with("alg", json!("eddsa")),
        with("typ", json!("JWT")),
        with("typ", json!("at+jwt")),
        with("crit", json!(["exp"])),
        with("kid", json!("another")),
        with("kid", Value::Null),
    ];
    for header in wrong {
        assert!(verify(&tokens, &signed(key, &header, &claims)).is_err(), "{header}");
    }
    // Known attacks: no signature at all, and a MAC whose key is the public key.
    for (algorithm, signature) in [("none", String::new()), ("HS256", mac(key, &token))] {
        let header = BASE64.encode(with("alg", json!(algorithm)).to_string());
        let payload = token.split('.').nth(1).unwrap();
        assert!(verify(&tokens, &format!("{header}.{payload}.{signature}")).is_err(), "{algorithm}");
    }
    let mut foreign = claims;
    foreign["iss"] = json!("another issuer");
    assert_eq!(verify(&tokens, &signed(key, &header, &foreign)), Err(TokenError::Malformed));
}

fn mac(key: &Key, token: &str) -> String {
    let (message, _) = token.rsplit_once('.').unwrap();
    BASE64.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.public()), message.as_bytes()))
}

/// Verifies tokens with the JWKS and Node's own crypto, as a game's shop would. It shares no code with us.
const SHOP: &str = r#"
    const { createPublicKey, verify } = require("node:crypto");
    const { jwks, tokens } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
    const verified = (token) => {
        const [header, payload, signature] = token.split(".");
        const { alg, kid } = JSON.parse(Buffer.from(header, "base64url"));
        const jwk = jwks.keys.find((key) => key.kid === kid && key.alg === alg);
        if (!jwk) return null;
        const key = createPublicKey({ key: jwk, format: "jwk" });
        const isOurs = verify(null, Buffer.from(`${header}.${payload}`), key, Buffer.from(signature, "base64url"));
        return isOurs ? JSON.parse(Buffer.from(payload, "base64url")) : null;
    };
    console.log(JSON.stringify(tokens.map(verified)));
"#;

#[test]
fn shop_verifies_tokens_with_the_published_keys_alone() {
    let (both, foreign) = (tokens(&[NEW, OLD]), tokens(&[b"a secret that is not ours at all, really"]));
    let (new, old) = (both.sign(&admission(), NOW), tokens(&[OLD]).sign(&admission(), NOW));
    let forged = foreign.sign(&admission(), NOW);
    let request = json!({ "jwks": both.public_keys(), "tokens": [new, old, forged] });
    let node = testkit::need!(testkit::node());
    let node = Command::new(node).args(["-e", SHOP]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut node = node.unwrap();
    node.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    let output = node.wait_with_output().unwrap();
    let claims: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(claims[0]["jti"], admission().id.to_string());
    assert_eq!(claims[1], claims[0], "both keys are published");
    assert_eq!(claims[2], Value::Null, "a forged token is refused");
}

/// Signs random payloads, so that the code after the signature check is fuzzed, too.
#[test]
fn verification_survives_any_token() {
    let tokens = tokens(&[NEW, OLD]);
    let good = tokens.sign(&admission(), NOW);
    let payload = BASE64.decode(good.split('.').nth(1).unwrap()).unwrap();
    testkit::fuzz("admission-tokens", &[good.into_bytes(), payload], |input| {
        let message = {
            let header = json!({ "alg": ALGORITHM, "kid": tokens.0[0].id, "typ": TYPE });
            format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(input))
        };
        let signature = tokens.0[0].sign(&message);
        let signed = verify(&tokens, &format!("{message}.{signature}"));
        let plain = verify(&tokens, &String::from_utf8_lossy(input));
        signed.is_ok() || plain.is_ok()
    });
}
