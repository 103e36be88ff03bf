//! The inbox over HTTP: listing and marking notifications, and who may send them.

use reqwest::Method;
use serde_json::json;
use testkit::need;
use uuid::Uuid;

use super::setup::Setup;
use crate::*;

#[tokio::test(flavor = "multi_thread")]
async fn player_lists_reads_and_archives_notifications() {
    let setup = need!(Setup::start().await);
    let apis = [setup.process("gateway,service-api").await, setup.process("gateway,service-api").await];
    let [one, two] = [apis[0].gateway(), apis[1].gateway()];
    let (ada, bob) = (setup.player(&apis[0], "ada").await, setup.player(&apis[0], "bob").await);
    let unread = async |at: &str| {
        let (_, home) = ada.get(at, "/v1/home").await;
        let data = &home["notifications"]["data"];
        (data["unread"].as_i64().unwrap(), data["unseen"].as_i64().unwrap())
    };
    assert_eq!(unread(one).await, (0, 0));
    for n in 1..=5 {
        apis[n % 2].service().notify(ada.user, &format!("number {n}")).await;
    }
    assert_eq!(unread(two).await, (5, 5));
    let (_, home) = ada.get(one, "/v1/home").await;
    assert_eq!(home["notifications"]["data"]["notifications"][0]["title"], "number 5", "{home}");

    // Pages, the newest notification first.
    let (status, first) = ada.get(one, "/v1/notifications?limit=2").await;
    assert_eq!((status, &first["next"], &first["last_event_id"]), (200, &json!(4), &json!("5")), "{first}");
    let (_, second) = ada.get(two, "/v1/notifications?limit=3&before=4").await;
    let positions: Vec<i64> = [&first, &second]
        .iter()
        .flat_map(|page| page["notifications"].as_array().unwrap())
        .map(|notification| notification["position"].as_i64().unwrap())
        .collect();
    assert_eq!(positions, [5, 4, 3, 2, 1]);

    let mark = async |body: Value| {
        let (status, counts) = ada.post(two, "/v1/notifications/mark", &body).await;
        assert_eq!(status, 200, "{counts}");
        (counts["unread"].as_i64().unwrap(), counts["unseen"].as_i64().unwrap())
    };
    assert_eq!(mark(json!({ "mark": "seen", "up_to": 5 })).await, (5, 0));
    assert_eq!(mark(json!({ "mark": "read", "up_to": 2 })).await, (3, 0));
    let newest = first["notifications"][0]["notification_id"].clone();
    assert_eq!(mark(json!({ "mark": "archived", "ids": [newest] })).await, (2, 0));
    assert_eq!(mark(json!({ "mark": "unread", "up_to": 1 })).await, (3, 0));
    assert_eq!(unread(one).await, (3, 0));
    let listed = async |show: &str| {
        let (_, page) = ada.get(one, &format!("/v1/notifications?show={show}")).await;
        let positions = page["notifications"].as_array().unwrap().iter();
        positions.map(|notification| notification["position"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(listed("inbox").await, [4, 3, 2, 1]);
    assert_eq!(listed("unread").await, [4, 3, 1]);
    assert_eq!(listed("archived").await, [5]);
    assert_eq!(ada.get(one, "/v1/notifications?show=all").await.0, 400);

    // Other players' notifications look missing and cannot be changed.
    let path = format!("/v1/notifications/{}", newest.as_str().unwrap());
    let (status, shown) = ada.get(two, &path).await;
    assert_eq!((status, shown["archived_at"].is_string()), (200, true), "{shown}");
    assert_eq!(bob.get(one, &path).await.0, 404);
    assert_eq!(
        bob.post(one, "/v1/notifications/mark", &json!({ "mark": "unarchived", "ids": [newest] })).await.0,
        200
    );
    assert_eq!(listed("archived").await, [5]);
    assert_eq!(bob.inbox(two).await.len(), 0);
    for wrong in [
        json!({ "mark": "read" }),
        json!({ "mark": "read", "ids": ["x"] }),
        json!({ "mark": "burnt", "up_to": 1 }),
    ] {
        assert_eq!(ada.post(one, "/v1/notifications/mark", &wrong).await.0, 400, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_services_with_the_right_send_notifications() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api").await;
    let ada = setup.player(&api, "ada").await;
    let body = json!({ "to": { "user_id": ada.user }, "texts": { "en": { "title": "hello" } } });
    let status = async |token: &str| {
        api.service().request(token, "key-1", &body).send().await.unwrap().status().as_u16()
    };
    assert_eq!(status("nobody").await, 401);
    assert_eq!(status(shop::POOR_TOKEN).await, 403);
    // Players cannot send either, at the service API or at the gateway.
    assert_eq!(status(&ada.token).await, 401);
    let request = ada.request(Method::POST, api.gateway(), "/internal/v1/notifications").json(&body);
    assert_eq!(request.send().await.unwrap().status(), 404);
    assert_eq!(ada.inbox(api.gateway()).await.len(), 0);

    assert_eq!(status(shop::TOKEN).await, 200);
    assert_eq!(status(shop::TOKEN).await, 200, "a repeated request");
    assert_eq!(ada.inbox(api.gateway()).await.len(), 1);
    let mut other = body.clone();
    other["texts"]["en"]["title"] = json!("goodbye");
    assert_eq!(api.service().send("key-1", &other).await.0, 422);
    let unknown = json!({ "to": { "user_id": Uuid::now_v7() }, "texts": { "en": { "title": "hello" } } });
    assert_eq!(api.service().send("key-2", &unknown).await.0, 404);
    let some =
        json!({ "to": { "user_ids": [ada.user, Uuid::now_v7()] }, "texts": { "en": { "title": "hello" } } });
    let (status, sent) = api.service().send("key-3", &some).await;
    assert_eq!(
        (status, &sent["notified"], sent["unknown_user_ids"].as_array().unwrap().len()),
        (200, &json!(1), 1),
        "{sent}"
    );
}
