//! Every cell of the readiness table, on real processes whose servers are killed.

use runtime::lifecycle::{Impact, RoleNeeds};
use serde_json::json;
use testkit::issuer::{Issuer, Signer};
use testkit::{Folder, eventually, need};

use super::fleet::Fleet;
use super::shop::{self, Customer, Shop};
use super::*;

const CONFIG: &str = r#"
[outbox]
poll = "50ms"
[bus]
timeout = "2s"
[matchmaking.profiles.duel]
players = 2
assigner = "one_each"
[matchmaking.assigners.one_each]
addresses = ["{match_id}.test:7777"]
"#;

/// A process of one role.
struct OfRole {
    needs: RoleNeeds,
    at: HashMap<String, String>,
    _running: Running,
}

impl OfRole {
    async fn readyz(&self) -> (u16, Value) {
        get(format!("http://{}/readyz", self.at["admin"])).await
    }

    /// Waits until the process reports what the table says of its role without this part.
    async fn reports(&self, away: Option<&str>) {
        let RoleNeeds { role, needs, .. } = &self.needs;
        let need = needs.iter().find(|need| Some(need.part) == away);
        let impact = need.map_or(Impact::Unaffected, |need| need.impact);
        let lacks = match need {
            Some(need) if impact > Impact::Unaffected => json!({ need.part: need.effect }),
            _ => json!({}),
        };
        let ready = impact < Impact::NotReady;
        let expected = json!({ "ready": ready, "degraded": impact > Impact::Unaffected, "lacks": lacks });
        eventually(&format!("{role} without {away:?} is {impact:?}"), PATIENCE, async || {
            let (status, body) = self.readyz().await;
            // It has noticed: else "unaffected" would be true of a process that has not looked yet.
            let mut parts = body["parts"].as_object().unwrap().iter();
            let noticed = parts.all(|(name, part)| (part["ready"] == true) != (Some(name.as_str()) == away));
            let fits = body["roles"] == json!({ *role: expected.clone() })
                && status == if ready { 200 } else { 503 }
                && body["ready"] == ready
                && body["degraded"] == expected["degraded"];
            if noticed && fits { Ok(()) } else { Err(format!("{status} {body}")) }
        })
        .await;
        let (_, metrics) = get(format!("http://{}/metrics", self.at["admin"])).await;
        let metrics = metrics.as_str().unwrap().to_owned();
        let counted = format!("playhouse_role_ready{{role=\"{role}\"}} {}\n", i32::from(ready));
        assert!(metrics.contains(&counted), "{counted} {metrics}");
        for need in needs.iter().filter(|need| need.impact > Impact::Unaffected) {
            let degraded = i32::from(Some(need.part) == away);
            let counted =
                format!("playhouse_role_degraded{{role=\"{role}\",part=\"{}\"}} {degraded}\n", need.part);
            assert!(metrics.contains(&counted), "{counted} {metrics}");
        }
    }
}

/// A process of each role, on servers that the test kills.
struct Scene {
    fleet: Fleet,
    issuer: Issuer,
    signer: Signer,
    folder: Folder,
    roles: Vec<OfRole>,
}

impl Scene {
    async fn start() -> Result<Self, testkit::Error> {
        let (fleet, signer) = (Fleet::start().await?, Signer::ec("one"));
        let issuer = Issuer::start(&[&signer]).await;
        let folder = Folder::fresh().unwrap();
        let settings = format!("{}{CONFIG}{}", super::gateway::soon(), shop::services());
        std::fs::write(folder.path().join("play.toml"), settings).unwrap();
        let mut scene = Self { fleet, issuer, signer, folder, roles: Vec::new() };
        for needs in playhouse::role_needs() {
            let of_role = scene.process(needs).await;
            scene.roles.push(of_role);
        }
        Ok(scene)
    }

    async fn process(&self, needs: RoleNeeds) -> OfRole {
        let (running, at) = self.serve(needs.role).await;
        OfRole { needs, at, _running: running }
    }

    async fn serve(&self, roles: &str) -> (Running, HashMap<String, String>) {
        let config = self.folder.path().join("play.toml");
        let program = self.fleet.serve(&["--config", config.to_str().unwrap(), "--roles", roles]);
        let running = program.env("PLAYHOUSE_IDENTITY_ISSUER", &self.issuer.url).start().unwrap();
        let at = addresses(&running).await;
        (running, at)
    }

    /// Waits until every process reports its cell, and every process is as before when nothing is away.
    async fn report(&self, away: Option<&str>) {
        for of_role in &self.roles {
            of_role.reports(away).await;
        }
    }

    /// Where a listener is, whichever role has it.
    fn at(&self, listener: &str) -> &str {
        self.roles.iter().find_map(|of_role| of_role.at.get(listener)).unwrap()
    }

    /// The answer to somebody with a new access token.
    async fn me(&self, name: &str) -> u16 {
        let token = self.signer.sign(&self.issuer.claims(name));
        let client = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        let request = client.get(format!("http://{}/v1/me", self.at("gateway"))).bearer_auth(token);
        request.send().await.unwrap().status().as_u16()
    }

    fn shop(&self) -> Shop {
        Shop::at(self.at("internal"))
    }

    async fn outbox_empties(&self) {
        eventually("all events are published", PATIENCE, async || {
            shop::in_outbox(self.at("admin"), "open").await.is_empty()
        })
        .await;
    }

    /// Notifies a player, who finds it in the inbox.
    async fn notify(&self, ada: &Customer, key: &str) {
        let body = json!({ "to": { "user_id": ada.user }, "texts": { "en": { "title": key } } });
        let (status, sent) = self.shop().post("/notifications", Some(key), &body).await;
        assert!(status < 300, "{status} {sent}");
    }

    /// Two tickets become a match.
    async fn match_is_made(&self) {
        let tickets = format!("http://{}/v1/frontendservice/tickets", self.at("open_match"));
        let client = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        let mut ids = Vec::new();
        for _ in 0..2 {
            let made = client.post(&tickets).json(&json!({ "ticket": {} })).send().await.unwrap();
            let made: Value = made.json().await.unwrap();
            ids.push(made["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned());
        }
        eventually("both are assigned", PATIENCE, async || {
            for id in &ids {
                let (_, ticket) = get(format!("{tickets}/{id}")).await;
                if !ticket["assignment"]["connection"].is_string() {
                    return Err(ticket.to_string());
                }
            }
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_reports_what_it_can_do_without_each_server() {
    let mut scene = need!(Scene::start().await);
    scene.report(None).await;
    let (_running, all) = scene.serve("all").await;
    let shop = scene.shop();
    let ada = shop.customer("ada").await;
    scene.match_is_made().await;

    scene.fleet.nats.kill().await.unwrap();
    scene.report(Some("bus")).await;
    shop.buy(&ada, "gems", "order-1").await;
    scene.notify(&ada, "nats-away").await;
    scene.match_is_made().await;
    assert_eq!(scene.me("bea").await, 200);
    // A process of all roles keeps its players, and says which role waits.
    eventually("the relay is not ready, its process is", PATIENCE, async || {
        let (status, body) = get(format!("http://{}/readyz", all["admin"])).await;
        let relay = &body["roles"]["outbox-relay"]["ready"];
        let gateway = &body["roles"]["gateway"]["ready"];
        let fits = (status, relay, gateway) == (200, &json!(false), &json!(true));
        if fits { Ok(()) } else { Err(format!("{status} {body}")) }
    })
    .await;
    scene.fleet.nats.start_again().await.unwrap();
    scene.report(None).await;
    scene.outbox_empties().await;

    scene.fleet.redis.kill().await.unwrap();
    scene.report(Some("redis")).await;
    assert_eq!(scene.me("cid").await, 200);
    shop.buy(&ada, "gems", "order-2").await;
    scene.notify(&ada, "redis-away").await;
    scene.outbox_empties().await;
    scene.fleet.redis.start_again().await.unwrap();
    scene.report(None).await;
    scene.match_is_made().await;

    scene.issuer.network.cut().await;
    scene.report(Some("issuer")).await;
    assert_eq!(scene.me("dan").await, 200);
    // One that starts now cannot check a token.
    for needs in playhouse::role_needs() {
        let late = scene.process(needs).await;
        let has_issuer = ["gateway", "internal"].iter().any(|listener| late.at.contains_key(*listener));
        let (status, body) = late.readyz().await;
        let identity = late.needs.needs.iter().find(|need| need.part == "identity").unwrap();
        let is_affected = identity.impact > Impact::Unaffected;
        let ready = identity.impact < Impact::NotReady;
        assert_eq!(status, if ready { 200 } else { 503 }, "{body}");
        assert_eq!(body["parts"]["identity"]["ready"] == false, has_issuer, "{body}");
        assert_eq!(body["roles"][late.needs.role]["lacks"]["identity"].is_string(), is_affected, "{body}");
    }
    scene.issuer.network.pass().await;
    scene.report(None).await;

    scene.fleet.sql.kill().await.unwrap();
    scene.report(Some("db")).await;
    scene.match_is_made().await;
    assert_eq!(scene.me("eve").await, 503);
    scene.fleet.sql.start_again().await.unwrap();
    scene.report(None).await;
    assert_eq!(scene.me("eve").await, 200);
}
