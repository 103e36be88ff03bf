//! Operators find players, purchases and tickets with the same result at every process.

use serde_json::json;
use testkit::{RunningProgram, eventually, need};

use super::fleet::Fleet;
use super::shop::{Shop, with_credentials};
use super::*;

async fn start(fleet: &Fleet, roles: &str) -> (RunningProgram, HashMap<String, String>) {
    let program = fleet.serve(&["--roles", roles, "--set", "db.migrate=true"]);
    let running = with_credentials(program).start().unwrap();
    let addresses = addresses(&running).await;
    (running, addresses)
}

/// Runs a command against both processes, which must give the same result.
async fn run_at_both(fleet: &Fleet, admins: &[&str; 2], args: &[&str]) -> (i32, String) {
    let mut results = Vec::new();
    for admin in admins {
        let (code, shown, errors) = run(with_credentials(fleet.run(args)).args(["--admin", admin])).await;
        results.push((code, shown + &errors));
    }
    assert_eq!(results[0], results[1], "{args:?}");
    results.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_finds_a_player_and_their_purchases() {
    let fleet = need!(Fleet::start().await);
    let (_gateway, gateway) = start(&fleet, "gateway,service-api").await;
    let (_engine, engine) = start(&fleet, "matchmaking-engine").await;
    let admins = [gateway["admin"].as_str(), engine["admin"].as_str()];
    let shop = Shop::at(&gateway["service_api"]);
    let sign_in = json!({ "issuer": "https://id.example.com", "subject": "ada-1", "display_name": "Ada L" });
    let (_, user) = shop.try_post("/sign-ins", None, &sign_in).await.unwrap();
    let user = user["user"]["user_id"].as_str().unwrap().to_owned();

    for text in ["Ada L", "ada-1", &user] {
        let (code, found) = run_at_both(&fleet, &admins, &["users", "find", text]).await;
        assert!(code == 0 && found.contains(&user) && found.contains("Ada L"), "{text}: {found}");
    }
    let (code, shown) = run_at_both(&fleet, &admins, &["users", "show", &user]).await;
    assert!(code == 0 && shown.contains("signs in as ada-1 at https://id.example.com"), "{shown}");
    let account = shown.lines().find_map(|line| line.trim().strip_prefix("account ")).unwrap();
    let account = account.split_whitespace().next().unwrap().to_owned();
    let (code, found) = run_at_both(&fleet, &admins, &["users", "find", &account]).await;
    assert!(code == 0 && found.contains(&user), "{found}");
    let (code, found) = run_at_both(&fleet, &admins, &["users", "find", "an unknown name"]).await;
    assert!(code == 1 && found.contains("No user found."), "{found}");

    let grant = |resource: &str, reference: &str| {
        json!({
            "user_id": user, "account_id": account, "resource": resource,
            "occurred_at": "2026-03-01T12:00:00Z", "reference": reference,
        })
    };
    for (resource, reference) in [("skin:a", "order-1"), ("skin:b", "order-2"), ("skin:c", "order-2")] {
        let key = format!("key-{resource}");
        let (status, _) =
            shop.try_post("/entitlements/grant", Some(&key), &grant(resource, reference)).await.unwrap();
        assert_eq!(status, 200);
    }
    let (code, listed) = run_at_both(&fleet, &admins, &["entitlements", "list", "--user", &user]).await;
    assert!(code == 0 && ["skin:a", "skin:b", "skin:c"].iter().all(|name| listed.contains(name)), "{listed}");
    let args = ["entitlements", "list", "--user", &user, "--limit", "2", "--json"];
    let (_, page) = run_at_both(&fleet, &admins, &args).await;
    let page: Value = serde_json::from_str(&page).unwrap();
    let next = page["next"].as_str().unwrap();
    let args = ["entitlements", "list", "--user", &user, "--limit", "2", "--after", next];
    let (_, rest) = run_at_both(&fleet, &admins, &args).await;
    assert!(rest.contains("skin:c") && !rest.contains("skin:b"), "{rest}");

    let (code, found) =
        run_at_both(&fleet, &admins, &["entitlements", "history", "--reference", "order-2"]).await;
    let fits = found.contains("skin:b") && found.contains("skin:c") && !found.contains("skin:a");
    assert!(
        code == 0 && fits && found.contains(&user) && found.contains("sent by shop as order-2"),
        "{found}"
    );
    let (_, found) =
        run_at_both(&fleet, &admins, &["entitlements", "history", "--user", &user, "--account", &account])
            .await;
    assert_eq!(found.matches("grant skin:").count(), 3, "{found}");
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let mut args = vec!["entitlements", "history", "--user", &user, "--limit", "1", "--json"];
        args.extend(after.iter().flat_map(|next: &String| ["--after", next.as_str()]));
        let (_, page) = run_at_both(&fleet, &admins, &args).await;
        let page: Value = serde_json::from_str(&page).unwrap();
        let entries = page["entries"].as_array().unwrap();
        seen.extend(entries.iter().map(|entry| entry["resource"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = Some(next.to_owned());
    }
    seen.sort();
    assert_eq!(seen, ["skin:a", "skin:b", "skin:c"], "each record is on one page");

    // Also by idempotency key, with or without the name of the service.
    for args in
        [&["--idempotency-key", "key-skin:a"][..], &["--idempotency-key", "key-skin:a", "--caller", "shop"]]
    {
        let (code, found) =
            run_at_both(&fleet, &admins, &[&["entitlements", "history"], args].concat()).await;
        assert!(code == 0 && found.contains("applied: skin:a") && found.contains(&user), "{found}");
    }
    let (code, found) =
        run_at_both(&fleet, &admins, &["entitlements", "history", "--idempotency-key", "key-lost"]).await;
    assert!(code == 1 && found.contains("it never arrived, was refused"), "{found}");
    let (code, found) =
        run_at_both(&fleet, &admins, &["entitlements", "history", "--reference", "order-9"]).await;
    assert!(code == 0 && found.contains("No changes found:"), "{found}");
}

/// The player's id is text, also at a process without a frontend.
#[tokio::test(flavor = "multi_thread")]
async fn every_process_shows_the_player_of_a_ticket() {
    let fleet = need!(Fleet::start().await);
    let (_frontend, frontend) = start(&fleet, "matchmaking-frontend").await;
    let (_relay, relay) = start(&fleet, "outbox-relay").await;
    let user = "0198c0de-0000-7000-8000-000000000001";
    let owner = json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": user });
    let ticket = json!({ "ticket": { "persistentField": { "user_id": owner } } });
    let url = format!("http://{}/v1/frontendservice/tickets", frontend["open_match"]);
    let made: Value =
        reqwest::Client::new().post(url).json(&ticket).send().await.unwrap().json().await.unwrap();
    let id = made["id"].as_str().unwrap();
    for admin in [&frontend["admin"], &relay["admin"]] {
        let (code, shown, errors) =
            run(fleet.run(&["tickets", "--json", "show", id, "--admin", admin])).await;
        assert_eq!(code, 0, "{errors}");
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["ticket"]["persistentField"]["user_id"]["value"], user, "at {admin}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_of_a_player_are_listed() {
    let running = dev(&["--ephemeral"]).start().unwrap();
    let addresses = addresses(&running).await;
    let admin = addresses["admin"].as_str();
    let (_, token, _) = run(playhouse(&["token", "--user", "ada", "--admin", admin])).await;
    let client = reqwest::Client::new();
    let url = format!("http://{}/v1/matchmaking/tickets", addresses["gateway"]);
    let request = client.post(url).bearer_auth(token.trim()).json(&json!({ "queue": "duel" }));
    let ticket: Value = request.send().await.unwrap().json().await.unwrap();
    let id = ticket["ticket_id"].as_str().unwrap_or_else(|| panic!("{ticket}")).to_owned();
    let (_, found, _) = run(playhouse(&["users", "find", "ada", "--json", "--admin", admin])).await;
    let found: Value = serde_json::from_str(&found).unwrap();
    let user = found["users"][0]["user_id"].as_str().unwrap();
    eventually("the ticket is listed", PATIENCE, async || {
        let (_, listed, _) = run(playhouse(&["tickets", "list", "--user", user, "--admin", admin])).await;
        (listed.contains(&id) && listed.contains("1 of 1 ticket of the player")).then_some(()).ok_or(listed)
    })
    .await;
    let unknown = "0198c0de-0000-7000-8000-000000000001";
    let (code, listed, _) = run(playhouse(&["tickets", "list", "--user", unknown, "--admin", admin])).await;
    assert!(code == 0 && listed.contains("0 of 0 tickets of the player"), "{listed}");
    let (code, _, errors) = run(playhouse(&["tickets", "list", "--user", "ada", "--admin", admin])).await;
    assert!(code == 1 && errors.contains("user_id must be a UUID"), "{errors}");
}
