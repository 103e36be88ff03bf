//! Friends form a party, are asked whether they are ready, and play each other. And what the page says while players wait.

use testkit::{Axe, need};

use super::*;

impl Player {
    async fn click(&self, css: &str) {
        self.browser.wait_for(&format!("{css}:not([disabled])"), LONG).await;
        self.browser.click(css).await;
    }

    /// Returns the member's row in the party.
    fn member(user_id: &Value) -> String {
        format!("#members [data-user='{}']", user_id.as_str().unwrap())
    }

    async fn user_id(&self) -> Value {
        let (status, me) = fetch(&self.browser, "GET", "/v1/me", "{}").await;
        assert_eq!(status, 200, "{me}");
        me["user_id"].clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn friends_form_a_party_accept_and_play_each_other() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let looks = Looks::new(need!(Axe::find()), "lobby-screenshots");
    for browser in [&browser, &other] {
        browser.run_before_pages(VIOLATIONS).await;
    }
    let (_running, at) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", at["gateway"]);
    let ada = Player::sign_in(browser, &gateway, "ada", "Ada Lovelace").await;
    let grace = Player::sign_in(other, &gateway, "grace", "Grace Hopper").await;
    let (ada_id, grace_id) = (ada.user_id().await, grace.user_id().await);
    let mut faults = looks.faults(&ada.browser, "no party").await;

    // A friend joins by the code, and the leader sees it without a reload.
    ada.click("#create-party").await;
    ada.sees("#party-note", "Waiting for a friend.").await;
    assert!(ada.browser.has("#play-party:disabled").await);
    let code = ada.browser.text("#code").await;
    faults.extend(looks.faults(&ada.browser, "party of one").await);
    grace.browser.fill("#party-code", "NOSUCH").await;
    grace.click("#join-party button").await;
    grace.sees("#error", "No party has this code.").await;
    grace.browser.fill("#party-code", &code.to_lowercase()).await;
    grace.click("#join-party button").await;
    ada.sees(&Player::member(&grace_id), "Grace Hopper").await;
    grace.sees(&Player::member(&ada_id), "Leader").await;
    grace.sees("#party-note", "Ada Lovelace starts the match.").await;
    assert!(grace.browser.has("#play-party:disabled").await);
    faults.extend(looks.faults(&ada.browser, "party of two").await);

    // Who is removed can be invited again, by id.
    ada.click(&format!("{} button", Player::member(&grace_id))).await;
    grace.browser.wait_for("#no-party:not([hidden])", LONG).await;
    ada.browser.fill("#invited-player", grace_id.as_str().unwrap()).await;
    ada.click("#invite-player button").await;
    ada.sees("#party-note", "Invited. Waiting for an answer.").await;
    grace.sees("#invitations", "Ada Lovelace invites you").await;
    grace.click("#invitations button").await;
    ada.sees("#party-note", "Everybody is here.").await;

    // One of them declines: the party loses its ticket, and both learn why.
    ada.click("#play-party").await;
    grace.sees("#asked", "Match found! Are you ready?").await;
    ada.sees("#accepted", "0 of 2 players accepted").await;
    faults.extend(looks.faults(&grace.browser, "ready check").await);
    ada.click("#accept").await;
    grace.sees("#accepted", "1 of 2 players accepted").await;
    // A reload does not ask again for an answer that was given.
    ada.browser.reload().await;
    ada.sees("#asked", "Waiting for the others").await;
    grace.click("#decline").await;
    for player in [&ada, &grace] {
        player.sees("#match-note", "The match was declined").await;
    }

    // Both accept, and each has a seat of their own.
    ada.click("#play-party").await;
    grace.click("#accept").await;
    ada.click("#accept").await;
    for (player, opponent) in [(&ada, "Grace Hopper"), (&grace, "Ada Lovelace")] {
        player.phase("gathering").await;
        player.sees("#arena-note", &format!("You play against {opponent}")).await;
    }
    ada.browser.click("#pad").await;
    ada.sees("#arena-note", "Waiting until Grace Hopper is ready").await;
    grace.browser.click("#pad").await;
    // Early presses: the other player wins three rounds without doing anything.
    loop {
        ada.browser.wait_for("#stage[data-phase=steady], #stage[data-phase=over]", LONG).await;
        if ada.browser.has("#stage[data-phase=over]").await {
            break;
        }
        ada.browser.script(&key("Space")).await;
        ada.sees("#pad", "Too").await;
    }
    grace.sees("#items [data-resource=trophy]", "Trophy").await;

    // The leader asks for a rematch, and the friend, who is still at the result, is asked too.
    ada.click("#again").await;
    grace.click("#accept").await;
    ada.click("#accept").await;
    for player in [&ada, &grace] {
        player.phase("gathering").await;
    }

    for player in [&ada, &grace] {
        let violations = player.browser.script("return window.violations").await;
        assert_eq!(violations, json!([]), "{}", player.name);
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_says_why_a_player_waits() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let (_running, at) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", at["gateway"]);
    let ada = Player::sign_in(browser, &gateway, "ada", "Ada Lovelace").await;
    let grace = Player::sign_in(other, &gateway, "grace", "Grace Hopper").await;

    ada.click("#find").await;
    ada.sees("#why", "How long it takes is not known").await;
    ada.click("#cancel").await;
    ada.sees("#match-note", "You are no longer waiting.").await;

    // Two who wait alone and are asked: one declines, and the other keeps the place.
    let join = "
        const { Playhouse } = await import('/assets/client/index.js');
        return (await new Playhouse().tickets.create({ queue: 'friends' })).state;
    ";
    for player in [&ada, &grace] {
        assert_eq!(player.browser.script_async(join).await, "WAITING", "{}", player.name);
    }
    ada.click("#accept").await;
    grace.click("#decline").await;
    grace.sees("#match-note", "The match was declined").await;
    ada.sees("#why", "The other player was not ready. You keep your place.").await;
}
