//! The scenarios of the program, at a small size.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn flash_sale_sells_out() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    let args = [
        "--scenario",
        "flash-sale",
        "--players",
        "150",
        "--with",
        "drop.stock=20",
        "--with",
        "drop.batch=50",
    ];
    let (code, text, report) = dev.simulate(&folder, &args).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("flash-sale: 150 players"), "{text}");
    assert_eq!(report["outcomes"]["bought"], 20, "{text}");
    assert_eq!(report["outcomes"]["tickets matched"], Value::Null, "nobody plays: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ladder_evening_plays_three_matches_each() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    let args = ["--scenario", "ladder-evening", "--players", "60", "--with", "arrival.over=6s"];
    let (code, text, report) = dev.simulate(&folder, &args).await;
    assert_eq!(code, Some(0), "{text}");
    let outcomes = &report["outcomes"];
    let count = |name: &str| outcomes[name].as_u64().unwrap_or_default();
    assert_eq!(count("tickets matched") + count("tickets cancelled"), 180, "{text}");
    assert!(count("tickets matched") > 120, "{text}");
    assert_eq!(outcomes["bought"], Value::Null, "there is no sale: {text}");
}

/// Admissions expire after ten seconds. The players go on, since the last one of an odd number waits for somebody to play with.
#[tokio::test(flavor = "multi_thread")]
async fn admissions_that_expire_are_checked() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    let mut args = vec!["--players", "41"];
    let with = ["arrival.over=1s", "drop.share=1.0", "drop.no_show=0.5", "drop.opens_after=0.2"];
    args.extend(with.iter().flat_map(|with| ["--with", with]));
    args.extend(["--with", "matchmaking.share=1.0", "--with", "matchmaking.patience=18s"]);
    let (code, text, report) = dev.simulate(&folder, &args).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(report["owed_notifications"]["drop-admission-expired"].as_u64() >= Some(5), "{report}");
}

/// A duel that asks its players. Some decline, and some are away.
#[tokio::test(flavor = "multi_thread")]
async fn queue_with_a_ready_check_keeps_every_promise() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    dev.ask_players("3s").await;
    let mut args = vec!["--scenario", "ladder-evening", "--players", "40"];
    let with = [
        "arrival.over=4s",
        "matchmaking.declines=0.2",
        "players_are.away=0.4",
        "players_are.away_times=2",
        "players_are.on_more_devices=0.5",
        "players_are.devices=3",
    ];
    args.extend(with.iter().flat_map(|with| ["--with", with]));
    let (code, text, report) = dev.simulate(&folder, &args).await;
    assert_eq!(code, Some(0), "{text}");
    let count = |name: &str| report["outcomes"][name].as_u64().unwrap_or_default();
    let [matched, declined] = ["tickets matched", "ready checks declined"].map(count);
    assert!(matched >= 40 && declined >= 2, "{text}");
    assert_eq!(matched + declined + count("tickets cancelled") + count("ready checks missed"), 120, "{text}");
    assert!(report["calls"]["accept"]["count"].as_u64() >= Some(matched), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_scenario_runs_as_the_scenario() {
    let folder = Folder::fresh().unwrap();
    let running = playhouse(&["simulate", "--print", "flash-sale"]).start().unwrap();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    let text = running.text(OutputStream::Stdout);
    assert!(text.contains("\nstock = 100\n") && text.contains("\ncurve = \"burst\"\n"), "{text}");
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, text).unwrap();
    let dev = Dev::start(|program| program).await;
    let args = ["--scenario", file.to_str().unwrap(), "--players", "120", "--with", "drop.stock=20"];
    let (code, text, report) = dev.simulate(&folder, &args).await;
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(
        (&report["scenario"], &report["outcomes"]["bought"]),
        (&file.to_str().unwrap().into(), &20.into())
    );
}
