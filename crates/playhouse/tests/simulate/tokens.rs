//! An instance of the user's own: its issuer gives the access tokens, and players pay by signed webhooks.

use http_server::TokenHash;
use serde_json::json;
use testkit::issuer::{Issuer, Signer};

use super::*;

const OPERATOR_TOKEN: &str = "ph_operator-for-tests-only";
const PAYMENT_SECRET: &str = "whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCB0aGF0IHNpZ25z";

/// A process with an issuer of its own.
struct Own {
    process: Dev,
    issuer: Issuer,
    signer: Signer,
    folder: Folder,
}

impl Own {
    async fn start() -> Self {
        let (folder, signer) = (Folder::fresh().unwrap(), Signer::ec("key"));
        let issuer = Issuer::start(&[&signer]).await;
        let config = folder.path().join("own.toml");
        let text = format!(
            "[identity]\nissuer = \"{}\"\n[db]\nurl = \"sqlite:{}\"\nmigrate = true\n[locks]\nbuckets = 1000\n\
             [listen]\ngateway = \"127.0.0.1:0\"\nservice_api = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
             open_match = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.0/8\"]\n\
             [operators.sim]\ntoken_hash = \"{}\"\n[drops.payments]\nsecrets = [\"{PAYMENT_SECRET}\"]\n\
             [gateway.session]\nkeys = [\"a-key-for-tests-that-nobody-guesses\"]\n",
            issuer.url,
            folder.path().join("playhouse.db").display(),
            TokenHash::of(OPERATOR_TOKEN),
        );
        std::fs::write(&config, text).unwrap();
        let program = playhouse(&["serve", "--print-addresses", "--config"]).arg(config);
        Self { process: Dev::new(program.start().unwrap()).await, issuer, signer, folder }
    }

    fn token(&self, user: &str) -> String {
        self.signer.sign(&self.issuer.claims(user))
    }

    /// Writes a file and returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }

    async fn simulate(&self, tokens: &str, secret: &str, args: &[&str]) -> (Option<i32>, String, Value) {
        let (tokens, secret) = (self.write("tokens", tokens), self.write("secret", secret));
        let program = simulator(&self.folder, &self.process.own_args()).args(args.iter().copied());
        let program = program.args(["--tokens", &tokens, "--payment-secret-file", &secret]);
        let program = program.args([
            "--with",
            "matchmaking.share=0",
            "--with",
            "drop.share=1",
            "--with",
            "arrival.over=2s",
        ]);
        let running = program.env("PLAYHOUSE_OPERATOR_TOKEN", OPERATOR_TOKEN).start().unwrap();
        finished(&self.folder, &running).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn players_with_given_tokens_pay_by_webhook() {
    let own = Own::start().await;
    let mut tokens: Vec<String> = (0..20).map(|number| own.token(&format!("player-{number}"))).collect();
    let stock = ["--players", "20", "--with", "drop.stock=12"];
    let (code, text, report) = own.simulate(&tokens.join("\n"), PAYMENT_SECRET, &stock).await;
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(report["outcomes"]["bought"], 12, "{text}");

    // The provider's secret is another one: no payment arrives.
    let other = "whsec_YW5vdGhlciBzZWNyZXQgdGhhdCBzaWducyBub3RoaW5n";
    let stock = ["--players", "20", "--with", "drop.stock=12", "--with", "drop.reservation=2s"];
    let (code, text, report) = own.simulate(&tokens.join("\n"), other, &stock).await;
    assert_eq!(code, Some(1), "{text}");
    let lost = report["checks"]["nobody_lost"]["violations"].to_string();
    assert!(lost.contains("the payment of ") && lost.contains("was answered with 401"), "{lost}");

    // Two tokens of one user, which differ.
    let mut claims = own.issuer.claims("player-0");
    claims["iat"] = json!(claims["iat"].as_u64().unwrap() - 1);
    tokens[19] = own.signer.sign(&claims);
    let (code, text, report) = own.simulate(&tokens.join("\n"), PAYMENT_SECRET, &stock).await;
    assert_eq!(code, Some(1), "{text}");
    let lost = report["checks"]["nobody_lost"]["violations"].to_string();
    assert!(lost.contains("belong to the same user"), "{lost}");
    for promise in ["no_oversell", "notifications_once_in_order", "line_in_order"] {
        assert_eq!(report["checks"][promise]["holds"], true, "{promise}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_file_needs_a_token_for_each_player() {
    let folder = Folder::fresh().unwrap();
    let file = folder.path().join("tokens");
    let args = ["--players", "30", "--tokens", file.to_str().unwrap()];
    for (text, expected) in [
        (
            "a\nb\nc\n",
            "tokens has 3 access tokens for 30 players: write one per line and player, or run fewer players with --players 3",
        ),
        ("", "tokens has 0 access tokens for 30 players"),
        ("a\nb\na\n", "tokens repeats 1 token: each line must have the token of a different player"),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, text, _) = simulate(&folder, &args).await;
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
    std::fs::write(&file, "a").unwrap();
    let missing = folder.path().join("no-secret");
    let secret = [
        "--players",
        "1",
        "--tokens",
        file.to_str().unwrap(),
        "--payment-secret-file",
        missing.to_str().unwrap(),
    ];
    let dev = Dev::start(|program| program).await;
    let (code, text, _) = dev.simulate(&folder, &secret).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot read") && text.contains("no-secret"), "{text}");
    std::fs::write(&missing, "not a secret").unwrap();
    let (code, text, _) = dev.simulate(&folder, &secret).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no-secret has no webhook secret"), "{text}");
}
