//! Checks every cell of the readiness table on real processes whose servers are killed.

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

/// A process with one role.
struct RoleProcess {
    needs: RoleNeeds,
    at: HashMap<String, String>,
    _running: RunningProgram,
}

impl RoleProcess {
    async fn readyz(&self) -> (u16, Value) {
        get(format!("http://{}/readyz", self.at["admin"])).await
    }

    /// Waits until the process reports the table's cell for its role without this part.
    async fn wait_for_report(&self, away: Option<&str>) {
        let RoleNeeds { role, needs, .. } = &self.needs;
        let need = needs.iter().find(|need| Some(need.part) == away);
        let impact = need.map_or(Impact::Unaffected, |need| need.impact);
        let lacks = match need {
            Some(need) if impact > Impact::Unaffected => json!({ need.part: need.effect }),
            _ => json!({}),
        };
        let ready = impact < Impact::NotReady;
        let expected = json!({ "ready": ready, "degraded": impact > Impact::Unaffected, "lacks": lacks });
        let degraded = needs.iter().filter(|need| need.impact > Impact::Unaffected).map(|need| {
            let degraded = i32::from(Some(need.part) == away);
            format!("playhouse_role_degraded{{role=\"{role}\",part=\"{}\"}} {degraded}\n", need.part)
        });
        let ready_metric = format!("playhouse_role_ready{{role=\"{role}\"}} {}\n", i32::from(ready));
        let samples: Vec<String> = std::iter::once(ready_metric).chain(degraded).collect();
        eventually(&format!("{role} without {away:?} is {impact:?}"), PATIENCE, async || {
            let (status, body) = self.readyz().await;
            // "Unaffected" counts only once the process has noticed the outage.
            let mut parts = body["parts"].as_object().unwrap().iter();
            let noticed = parts.all(|(name, part)| (part["ready"] == true) != (Some(name.as_str()) == away));
            let fits = body["roles"] == json!({ *role: expected.clone() })
                && status == if ready { 200 } else { 503 }
                && body["ready"] == ready
                && body["degraded"] == expected["degraded"];
            if !(noticed && fits) {
                return Err(format!("{status} {body}"));
            }
            // A part may change between the two requests, so both are read again until they agree.
            let (_, metrics) = get(format!("http://{}/metrics", self.at["admin"])).await;
            let metrics = metrics.as_str().unwrap();
            match samples.iter().find(|sample| !metrics.contains(*sample)) {
                Some(missing) => Err(format!("/readyz fits, but the metrics lack {missing}")),
                None => Ok(()),
            }
        })
        .await;
    }
}

/// One process per role, on servers that the test kills.
struct Setup {
    fleet: Fleet,
    issuer: Issuer,
    signer: Signer,
    folder: Folder,
    roles: Vec<RoleProcess>,
}

impl Setup {
    async fn start() -> Result<Self, testkit::Error> {
        let (fleet, signer) = (Fleet::start().await?, Signer::ec("one"));
        let issuer = Issuer::start(&[&signer]).await;
        let folder = Folder::fresh().unwrap();
        let settings = format!("{}{CONFIG}{}", super::gateway::fleet_settings(), shop::services());
        std::fs::write(folder.path().join("play.toml"), settings).unwrap();
        let mut setup = Self { fleet, issuer, signer, folder, roles: Vec::new() };
        for needs in playhouse::role_needs() {
            let role_process = setup.start_role(needs).await;
            setup.roles.push(role_process);
        }
        Ok(setup)
    }

    async fn start_role(&self, needs: RoleNeeds) -> RoleProcess {
        let (running, at) = self.serve(needs.role).await;
        RoleProcess { needs, at, _running: running }
    }

    async fn serve(&self, roles: &str) -> (RunningProgram, HashMap<String, String>) {
        let config = self.folder.path().join("play.toml");
        let program = self.fleet.serve(&["--config", config.to_str().unwrap(), "--roles", roles]);
        let running = program.env("PLAYHOUSE_IDENTITY_ISSUER", &self.issuer.url).start().unwrap();
        let at = addresses(&running).await;
        (running, at)
    }

    /// Waits until every process reports its cell for this missing part, or full readiness for `None`.
    async fn wait_for_reports(&self, away: Option<&str>) {
        for role_process in &self.roles {
            role_process.wait_for_report(away).await;
        }
    }

    /// Returns the address of a listener, whichever process has it.
    fn at(&self, listener: &str) -> &str {
        self.roles.iter().find_map(|role_process| role_process.at.get(listener)).unwrap()
    }

    /// Returns the status of `/v1/me` with a new access token.
    async fn me(&self, name: &str) -> u16 {
        let token = self.signer.sign(&self.issuer.claims(name));
        let client = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        let request = client.get(format!("http://{}/v1/me", self.at("gateway"))).bearer_auth(token);
        request.send().await.unwrap().status().as_u16()
    }

    fn shop(&self) -> Shop {
        Shop::at(self.at("service_api"))
    }

    async fn wait_for_empty_outbox(&self) {
        eventually("all events are published", PATIENCE, async || {
            shop::in_outbox(self.at("admin"), "open").await.is_empty()
        })
        .await;
    }

    /// Sends a notification to a player.
    async fn notify(&self, ada: &Customer, key: &str) {
        let body = json!({ "to": { "user_id": ada.user }, "texts": { "en": { "title": key } } });
        let (status, sent) = self.shop().post("/notifications", Some(key), &body).await;
        assert!(status < 300, "{status} {sent}");
    }

    /// Creates two tickets and waits until they are matched.
    async fn make_match(&self) {
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
async fn every_role_reports_its_readiness_without_each_server() {
    let mut setup = need!(Setup::start().await);
    setup.wait_for_reports(None).await;
    let (_running, all) = setup.serve("all").await;
    let shop = setup.shop();
    let ada = shop.customer("ada").await;
    setup.make_match().await;

    setup.fleet.nats.kill().await.unwrap();
    setup.wait_for_reports(Some("bus")).await;
    shop.buy(&ada, "gems", "order-1").await;
    setup.notify(&ada, "nats-away").await;
    setup.make_match().await;
    assert_eq!(setup.me("bea").await, 200);
    // A process with all roles stays ready for players and reports the role that is not.
    eventually("the process is ready without its relay", PATIENCE, async || {
        let (status, body) = get(format!("http://{}/readyz", all["admin"])).await;
        let relay = &body["roles"]["outbox-relay"]["ready"];
        let gateway = &body["roles"]["gateway"]["ready"];
        let fits = (status, relay, gateway) == (200, &json!(false), &json!(true));
        if fits { Ok(()) } else { Err(format!("{status} {body}")) }
    })
    .await;
    setup.fleet.nats.start_again().await.unwrap();
    setup.wait_for_reports(None).await;
    setup.wait_for_empty_outbox().await;

    setup.fleet.redis.kill().await.unwrap();
    setup.wait_for_reports(Some("redis")).await;
    assert_eq!(setup.me("cid").await, 200);
    shop.buy(&ada, "gems", "order-2").await;
    setup.notify(&ada, "redis-away").await;
    setup.wait_for_empty_outbox().await;
    setup.fleet.redis.start_again().await.unwrap();
    setup.wait_for_reports(None).await;
    setup.make_match().await;

    setup.issuer.network.cut().await;
    setup.wait_for_reports(Some("issuer")).await;
    assert_eq!(setup.me("dan").await, 200);
    // A process that starts now cannot check tokens.
    for needs in playhouse::role_needs() {
        let late = setup.start_role(needs).await;
        let has_issuer = ["gateway", "service_api"].iter().any(|listener| late.at.contains_key(*listener));
        let (status, body) = late.readyz().await;
        let identity = late.needs.needs.iter().find(|need| need.part == "identity").unwrap();
        let is_affected = identity.impact > Impact::Unaffected;
        let ready = identity.impact < Impact::NotReady;
        assert_eq!(status, if ready { 200 } else { 503 }, "{body}");
        assert_eq!(body["parts"]["identity"]["ready"] == false, has_issuer, "{body}");
        assert_eq!(body["roles"][late.needs.role]["lacks"]["identity"].is_string(), is_affected, "{body}");
    }
    setup.issuer.network.pass().await;
    setup.wait_for_reports(None).await;

    setup.fleet.sql.kill().await.unwrap();
    setup.wait_for_reports(Some("db")).await;
    setup.make_match().await;
    assert_eq!(setup.me("eve").await, 503);
    setup.fleet.sql.start_again().await.unwrap();
    setup.wait_for_reports(None).await;
    assert_eq!(setup.me("eve").await, 200);
}
