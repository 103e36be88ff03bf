//! Redis goes back in time: what has ended stays ended, and nothing that was used works again.

use reqwest::header::LOCATION;
use reqwest::{Client, Method};
use serde_json::json;
use sqlx::{ConnectOptions, Executor};
use testkit::{eventually, need};
use url::Url;

use super::flows::{Browser, Door, Player, Scene};
use super::flows_back_channel::{Listener, tell};
use crate::*;

const TOKEN: &str = "token-of-support";

/// An operator's settings, and users that are looked up anew at once.
fn operator() -> String {
    format!(
        "[services.support]\ntoken_hash = \"{}\"\nmay = [\"operator\"]\n",
        http_server::TokenHash::of(TOKEN)
    )
}

/// Has Redis write down what it holds, as a replica or a backup has it.
async fn save(scene: &Scene) {
    let mut redis = scene.fleet.redis.keyspace().connect().await;
    redis::cmd("SAVE").exec_async(&mut redis).await.unwrap();
}

/// Redis is back with what it had when it was [saved](save).
async fn go_back(scene: &mut Scene, doors: &[Door]) {
    scene.fleet.redis.kill().await.unwrap();
    scene.fleet.redis.start_again().await.unwrap();
    for door in doors {
        // Readiness may not have noticed yet that Redis was away: what counts is that sessions are read.
        let stranger = Player::with("cookie", "playhouse=nobody".to_owned());
        eventually("sessions are read again", PATIENCE, async || {
            let (status, answer) = stranger.me(&door.at).await;
            if status == 401 { Ok(()) } else { Err(format!("{status} {answer}")) }
        })
        .await;
        door.is_ready().await;
    }
}

/// An operator does something to a user.
async fn act(door: &Door, user: &str, what: &str) {
    let url = format!("http://{}/internal/v1/users/{user}/{what}", door.internal);
    let request = Client::new().post(url).bearer_auth(TOKEN).json(&json!({ "reason": "cheats" }));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 204, "{what}");
}

/// Waits until every process answers a player with this status.
async fn is_answered(player: &Player, doors: &[Door], expected: u16) {
    for door in doors {
        eventually("the session is over", PATIENCE, async || {
            let (status, answer) = player.me(&door.at).await;
            if status == expected { Ok(()) } else { Err(format!("{status} {answer}")) }
        })
        .await;
    }
}

async fn users(scene: &Scene) -> i64 {
    let server: sqlx::mysql::MySqlConnectOptions = scene.fleet.database.url().parse().unwrap();
    let mut connection = server.connect().await.unwrap();
    sqlx::query_scalar("SELECT COUNT(*) FROM users").fetch_one(&mut connection).await.unwrap()
}

async fn is_in_redis(scene: &Scene, player: &Player) -> bool {
    scene.sessions().await.read(&player.session()).await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_ended_stay_ended() {
    let mut scene = need!(Scene::start().await);
    scene.configure(&operator());
    let doors = scene.gateways(2).await;
    let listener = Listener::before(&scene, &doors[1].at).await;
    let names = ["signs-out", "is-banned", "is-logged-out", "is-ended", "is-erased", "stays"];
    let mut players = Vec::new();
    for name in names {
        let player = scene.sign_in(name).await;
        let (status, me) = player.me(&doors[1].at).await;
        assert_eq!((status, player.me(&doors[0].at).await.0), (200, 200), "{me}");
        players.push((player, me));
    }
    let [signs_out, is_banned, is_logged_out, is_ended, is_erased, stays] =
        <[_; 6]>::try_from(players).map_err(|_| ()).unwrap();
    save(&scene).await;

    let user = |(_, me): &(Player, Value)| me["user_id"].as_str().unwrap().to_owned();
    let logout = signs_out.1["session"]["logout_url"].as_str().unwrap();
    let done = signs_out.0.request(Method::GET, &doors[0].at, logout).send().await.unwrap();
    assert_eq!(done.status(), 303);
    assert_eq!(scene.provider.end_sessions_of("is-logged-out").await, 1);
    act(&doors[0], &user(&is_banned), "ban").await;
    is_answered(&is_banned.0, &doors, 403).await;
    act(&doors[0], &user(&is_banned), "unban").await;
    act(&doors[0], &user(&is_ended), "end-sessions").await;
    act(&doors[0], &user(&is_erased), "erase").await;
    let over = [&signs_out, &is_logged_out, &is_banned, &is_ended, &is_erased];
    for (player, _) in over {
        is_answered(player, &doors, 401).await;
    }
    is_answered(&stays.0, &doors, 200).await;

    go_back(&mut scene, &doors).await;
    for (player, _) in over {
        assert!(is_in_redis(&scene, player).await, "Redis has gone back");
    }
    let again = scene.sign_in("is-banned").await;
    let users = users(&scene).await;
    for door in &doors {
        for (player, me) in over {
            let (status, problem) = player.me(&door.at).await;
            assert_eq!(status, 401, "{me}: {problem}");
        }
        assert_eq!(stays.0.me(&door.at).await.0, 200);
        assert_eq!(again.me(&door.at).await.0, 200, "signing in again is signing in");
    }
    assert_eq!(self::users(&scene).await, users, "a session of an erased user registers nobody");
    // A logout token that was used stays used.
    let heard = listener.heard();
    let (status, answer) = tell(&doors[0].at, &heard[0]).await;
    assert_eq!((status.as_u16(), &answer["error"]), (400, &json!("invalid_request")));
}

/// The issuer takes a refresh token that comes twice for stolen, and revokes everything that came of the sign-in.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_refresh_token_is_not_presented() {
    let mut scene = need!(Scene::start().await);
    let doors = scene.gateways(2).await;
    let ada = scene.sign_in("ada").await;
    save(&scene).await;
    for round in 1..=2 {
        scene.is_due(&ada).await;
        assert_eq!(ada.me(&doors[round % 2].at).await.0, 200);
        assert_eq!(scene.provider.refreshes().await, round as u64);
    }
    go_back(&mut scene, &doors).await;
    assert_eq!(ada.me(&doors[0].at).await.0, 200, "it has not ended, and need not be refreshed yet");
    scene.is_due(&ada).await;
    for door in &doors {
        assert_eq!(ada.me(&door.at).await.0, 401, "sign in again");
    }
    assert_eq!((scene.provider.refreshes().await, scene.provider.refused_refreshes().await), (2, 0));
    assert_eq!(scene.provider.people().await, ["ada"], "the issuer has revoked nothing");
    assert_eq!(scene.sign_in("ada").await.me(&doors[1].at).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_is_finished_once() {
    let mut scene = need!(Scene::start().await);
    let doors = scene.gateways(2).await;
    let callback = format!("http://{}/login/callback", scene.public());
    let mut browser = Browser::stopping_at(&callback);
    let back = browser.sign_in(&format!("http://{}/login?return_to=/", scene.public()), "ada").await;
    let mut second = browser.clone();
    save(&scene).await;
    let first = browser.visit(&back, None).await;
    assert_eq!(first.headers()[LOCATION], "/");
    go_back(&mut scene, &doors).await;
    for door in &doors {
        let mut elsewhere = back.clone();
        elsewhere.set_port(Url::parse(&format!("http://{}", door.at)).unwrap().port()).unwrap();
        let answer = second.clone().visit(&elsewhere, None).await;
        assert_eq!(answer.status(), 400);
        assert!(answer.text().await.unwrap().contains("That sign-in is done already"));
    }
    second.visit(&back, None).await;
    assert_eq!(second.cookie("playhouse"), None);
}

/// The logout finds no session to end: it is about to begin.
#[tokio::test(flavor = "multi_thread")]
async fn a_logout_between_the_code_and_the_session_ends_the_session() {
    let scene = need!(Scene::start().await);
    let patient = |program: Program| program.env("PLAYHOUSE_DB_ACQUIRE_TIMEOUT", "20s");
    let doors = [
        Door::open(&patient(scene.first())).await,
        Door::open(&patient(scene.program("gateway,service-api"))).await,
    ];
    let listener = Listener::before(&scene, &doors[1].at).await;
    scene.sign_in("ada").await;
    // With another role, so that the sign-in has to change the user, whose row is held for now.
    scene.provider.set_roles("ada", &["playhouse-operator"]).await;
    let callback = format!("http://{}/login/callback", scene.public());
    let mut browser = Browser::stopping_at(&callback);
    let back = browser.sign_in(&format!("http://{}/login?return_to=/", scene.public()), "ada").await;
    let server: sqlx::mysql::MySqlConnectOptions = scene.fleet.database.url().parse().unwrap();
    let (mut held, mut other) = (server.connect().await.unwrap(), server.connect().await.unwrap());
    held.execute("START TRANSACTION").await.unwrap();
    held.execute("SELECT * FROM users FOR UPDATE").await.unwrap();
    let finishing = tokio::spawn(async move {
        let answer = browser.visit(&back, None).await;
        (answer.status().as_u16(), browser.cookie("playhouse").map(str::to_owned))
    });
    let other = tokio::sync::Mutex::new(&mut other);
    eventually("the code is redeemed and the sign-in waits for the user", PATIENCE, async || {
        const WAITING: &str =
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'UPDATE users%'";
        let waiting: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut **other.lock().await).await.unwrap();
        waiting == 1
    })
    .await;
    assert_eq!(scene.provider.end_sessions_of("ada").await, 2);
    assert_eq!(listener.heard().len(), 2);
    held.execute("ROLLBACK").await.unwrap();
    assert_eq!(finishing.await.unwrap(), (403, None));
    let mut redis = scene.fleet.redis.keyspace().connect().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("session:*").query_async(&mut redis).await.unwrap();
    assert_eq!(keys, Vec::<String>::new());
}
