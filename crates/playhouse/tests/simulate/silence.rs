//! A network that loses all packets: devices notice, and receive what they missed.

use testkit::{FaultProxy, free_port};

use super::*;

/// How long nothing arrives: longer than the 2.5 heartbeats after which a device gives a stream up.
const SILENCE: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread")]
async fn devices_notice_silence_and_miss_nothing() {
    let port = free_port().unwrap();
    let network = FaultProxy::to(([127, 0, 0, 1], port).into()).await;
    let public = format!("gateway.public_url=http://{}", network.addr());
    let settings = ["--set", "gateway.stream_heartbeat=1s", "--set", &public];
    let change = |program: Program| program.args(settings);
    let (dev, folder) = (Dev::start_at(port, change).await, Folder::fresh().unwrap());
    let gateway = network.addr().to_string();
    let with = [
        "arrival.over=2s",
        "drop.share=1",
        "drop.stock=60",
        "drop.batch=5",
        "matchmaking.share=0",
        "players_are.away=0",
    ];
    let mut args = vec!["--gateway", &gateway, "--admin", &dev.addresses["admin"], "--players", "40"];
    args.extend(with.iter().flat_map(|with| ["--with", with]));
    let running = simulator(&folder, &args).start().unwrap();
    super::outages::sale_goes_on(&dev, &dev.addresses["operator_token"]).await;
    network.half_open().await;
    tokio::time::sleep(SILENCE).await;
    network.pass().await;
    let (code, text, report) = finished(&folder, &running).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(report["silences"].as_u64() >= Some(30), "{text}");
}
