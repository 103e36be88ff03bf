//! Faults that are planted on purpose. The simulator fails and names each.

use testkit::Seed;

use super::*;

/// Runs against a process with a planted fault. Fails unless this promise is reported as broken, with a text that has all `words`.
async fn assert_finds(plant: &str, promise: &str, words: &[&str]) {
    let (dev, folder) =
        (Dev::start(|program| program.env("TESTKIT_PLANT", plant)).await, Folder::fresh().unwrap());
    // SEED repeats a run.
    let seed = Seed::new().choices(0).u64(..).to_string();
    let args = [
        "--seed",
        &seed,
        "--players",
        "80",
        "--with",
        "arrival.over=2s",
        "--with",
        "drop.stock=20",
        "--with",
        "drop.opens_after=0.6",
    ];
    let (code, text, report) = dev.simulate(&folder, &args).await;
    assert_eq!(code, Some(1), "{plant} was not found with --seed {seed}: {text}");
    let check = &report["checks"][promise];
    assert_eq!(check["holds"], false, "{plant} with --seed {seed}: {text}");
    let found = check["violations"].to_string();
    assert!(words.iter().all(|word| found.contains(word)), "{words:?} with --seed {seed} in {found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn oversold_unit_is_found() {
    let words = ["players own 21 of the 20 units", "players paid for 21", "the audit of the drop"];
    assert_finds("drops.oversell@3", "no_oversell", &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_notification_is_found() {
    assert_finds(
        "notification_intake.lost@7",
        "notifications_once_in_order",
        &["was not notified", "is missing"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doubled_match_is_found() {
    assert_finds("matchmaking.double_match@5", "no_double_match", &["the ticket ", " is in the matches "])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inverted_line_is_found() {
    assert_finds("drops.inverted_line@9", "line_in_order", &[" is ahead of ", "with join 9 against"]).await;
}
