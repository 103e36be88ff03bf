//! The instance restarts or ends meanwhile: access tokens are renewed, and every player is in the report.

use testkit::eventually;

use super::*;

const OPERATOR_TOKEN: &str = "ph_operator-for-tests-only";
const PORTS: [&str; 4] = ["gateway", "service_api", "admin", "open_match"];

/// Starts `playhouse dev` with its data in `data`. `like` gives the ports of an earlier process.
async fn dev(data: &Folder, like: Option<&Dev>) -> Dev {
    let mut program = playhouse(&["dev", "--print-addresses", "--data"]).arg(data.path());
    for name in PORTS {
        let port = like.map_or("0", |like| like.addresses[name].rsplit(':').next().unwrap());
        program = program.arg(format!("--{}-port", name.replace('_', "-"))).arg(port);
    }
    Dev::new(program.env("PLAYHOUSE_OPERATOR_TOKEN", OPERATOR_TOKEN).start().unwrap()).await
}

/// Waits until the drop of the simulation is open, and units were sold.
pub(super) async fn sale_goes_on(dev: &Dev, token: &str) {
    let client = reqwest::Client::new();
    let get = async |path: &str| -> Value {
        let url = format!("http://{}{path}", dev.addresses["admin"]);
        let response = client.get(url).bearer_auth(token).send().await.unwrap();
        response.json().await.unwrap()
    };
    eventually("units are sold", PATIENCE, async || {
        let drops = get("/drops").await;
        // `playhouse dev` has a drop of its own.
        let is_ours =
            |drop: &&Value| drop["name"].as_str().is_some_and(|name| name.starts_with("simulation"));
        let ours = drops["drops"].as_array().into_iter().flatten().find(is_ours);
        let Some(drop) = ours.and_then(|drop| drop["drop_id"].as_str()) else { return Err(drops) };
        let drop = get(&format!("/drops/{drop}")).await;
        if drop["stock"]["sold"].as_u64() > Some(0) { Ok(()) } else { Err(drop) }
    })
    .await;
}

/// Returns the arguments of a sale that takes at least eight seconds. Tickets are in memory only.
fn slow_sale<'a>(dev: &'a Dev, more: &[&'a str]) -> Vec<&'a str> {
    let mut args: Vec<&str> = dev.own_args().to_vec();
    let with = ["arrival.over=2s", "drop.share=1", "drop.stock=60", "drop.batch=5", "matchmaking.share=0"];
    args.extend(["--players", "40"].into_iter().chain(with.iter().flat_map(|with| ["--with", with])));
    args.extend(more);
    args
}

/// The builtin issuer has other keys after a restart, so it refuses all tokens.
#[tokio::test(flavor = "multi_thread")]
async fn refused_tokens_are_renewed() {
    let (data, folder) = (Folder::fresh().unwrap(), Folder::fresh().unwrap());
    let first = dev(&data, None).await;
    let program = simulator(&folder, &slow_sale(&first, &[]));
    let running = program.env("PLAYHOUSE_OPERATOR_TOKEN", OPERATOR_TOKEN).start().unwrap();
    sale_goes_on(&first, OPERATOR_TOKEN).await;
    first.running.sigterm();
    first.running.wait(PATIENCE).await;
    let _second = dev(&data, Some(&first)).await;
    let (code, text, report) = finished(&folder, &running).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(report["renewals"].as_u64() >= Some(30), "{text}");
    assert_eq!(report["players"], 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn players_of_an_instance_that_ended_are_in_the_report() {
    let (data, folder) = (Folder::fresh().unwrap(), Folder::fresh().unwrap());
    let dev = dev(&data, None).await;
    let program = simulator(&folder, &slow_sale(&dev, &["--with", "give_up=10s"]));
    let running = program.env("PLAYHOUSE_OPERATOR_TOKEN", OPERATOR_TOKEN).start().unwrap();
    sale_goes_on(&dev, OPERATOR_TOKEN).await;
    dev.running.kill();
    let (code, text, report) = finished(&folder, &running).await;
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(report["players"], 40, "{text}");
    assert!(report["seconds"].as_f64() < Some(90.0), "all players wait for the instance at once: {text}");
    let lost = report["checks"]["nobody_lost"]["violations"].to_string();
    for what in
        ["cannot be closed at the end", "so its line and stock are not checked", "cannot be read at the end"]
    {
        assert!(lost.contains(what), "{what:?} in {lost}");
    }
}

/// Players who give up have their orders in the report, so that the sale adds up.
#[tokio::test(flavor = "multi_thread")]
async fn players_who_give_up_are_lost_and_nothing_else_is_wrong() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    let mut args = slow_sale(&dev, &["--with", "give_up=6s"]);
    args.drain(..4);
    let (code, text, report) = dev.simulate(&folder, &args).await;
    assert_eq!(code, Some(1), "{text}");
    let lost = report["checks"]["nobody_lost"]["violations"].as_array().unwrap();
    assert!(!lost.is_empty() && lost.len() < 40, "{text}");
    for what in lost {
        assert!(
            what.as_str().unwrap().ends_with("nothing happened until the end of the simulation"),
            "{what}"
        );
    }
    for promise in ["no_oversell", "notifications_once_in_order", "line_in_order"] {
        assert_eq!(report["checks"][promise]["holds"], true, "{promise}: {text}");
    }
}
