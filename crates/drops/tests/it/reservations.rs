//! Reservations: reserve, release, expiry. Adjustments of the stock.

use drops::Admission;
use drops::stock::{Adjustment, LedgerEntry, LedgerKind, ReservationState};
use drops::token::{AdmissionTokens, LEEWAY};
use testkit::eventually;

use super::*;

testkit::on_all_stores!(
    a_reserve_holds_units_until_it_is_released,
    a_key_reserves_once,
    only_admitted_players_reserve,
    a_player_has_no_more_than_the_limit,
    reserves_do_not_exceed_the_stock,
    a_drop_that_is_not_open_sells_nothing,
    reservations_expire_once_by_the_clock_of_the_database,
    operators_adjust_the_stock,
    concurrent_reserves_are_decided_in_order_of_arrival,
    the_audit_finds_wrong_counts,
    listeners_are_notified_only_of_commits,
    the_first_reserve_counts_as_arrival,
    ledger_pages_have_every_entry,
    only_current_reservations_are_listed_as_held,
    the_limit_of_an_expiry_is_clamped,
);

const TERMS: Terms = Terms { units: 5, limit: 2, hold_ms: MINUTE };

async fn a_reserve_holds_units_until_it_is_released(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let held = shop.reserve(ada, 2).await.unwrap();
    assert_eq!((held.quantity, held.state), (2, ReservationState::Held));
    assert_eq!(held.reserved_at.distance(held.expires_at), Duration::from_millis(MINUTE));
    assert_eq!(counts(shop.assert_sound(drop).await), (3, 2, 0));
    assert_eq!(shop.stock.held(ada.user, 10).await.unwrap(), [held]);
    let eve = shop.admitted(drop, "eve").await;
    assert!(matches!(shop.stock.release(eve.user, held.id).await, Err(Error::UnknownReservation(_))));
    for _ in 0..2 {
        let released = shop.stock.release(ada.user, held.id).await.unwrap();
        assert_eq!(released.state, ReservationState::Released);
    }
    assert_eq!(counts(shop.assert_sound(drop).await), (5, 0, 0));
    let ledger = shop.stock.ledger(drop, None, 10).await.unwrap();
    let kinds: Vec<_> = ledger.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [LedgerKind::Released, LedgerKind::Reserved, LedgerKind::Created]);
    assert_eq!(ledger[0].reservation, Some(held.id));
}

async fn a_key_reserves_once(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let tries = (0..20).map(|n| {
        let shop = if n % 2 == 0 { shop.clone() } else { another.clone() };
        tokio::spawn(async move { shop.stock.reserve(ada, 1, "click").await.unwrap() })
    });
    let answers = futures::future::join_all(tries).await;
    let first = answers[0].as_ref().unwrap().id;
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().id == first), "{answers:?}");
    assert_eq!(counts(shop.assert_sound(drop).await), (4, 1, 0));
    // A different request with the same key is refused.
    assert!(matches!(shop.stock.reserve(ada, 2, "click").await, Err(Error::KeyReused)));
    // Keys of different players are independent.
    let eve = shop.admitted(drop, "eve").await;
    assert_ne!(shop.stock.reserve(eve, 1, "click").await.unwrap().id, first);
    // A retry gets the recorded response even after the drop closed.
    shop.set_state(drop, 4).await;
    assert_eq!(shop.stock.reserve(ada, 1, "click").await.unwrap().id, first);
}

async fn only_admitted_players_reserve(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let eve = shop.customer("eve").await;
    let stranger = VerifiedAdmission { user: eve.0, ..ada };
    assert!(matches!(shop.reserve(stranger, 1).await, Err(Error::NotAdmitted)));
    let anothers = VerifiedAdmission { admission: AdmissionId::generate(), ..ada };
    assert!(matches!(shop.reserve(anothers, 1).await, Err(Error::NotAdmitted)));
    let past = shop.db.now().await.unwrap().as_millis();
    let late = shop.admit_until(drop, eve, past).await;
    assert!(matches!(shop.reserve(late, 1).await, Err(Error::AdmissionEnded)));
    // The token check allows for clock skew, so it passes shortly after the expiry. The row decides.
    let tokens = AdmissionTokens::new([&b"a secret of enough length for a test"[..]]).unwrap();
    let (id, account, expires_at) = (late.admission, eve.1, Timestamp::from_millis(past));
    let admission = Admission { id, drop, user: late.user, account, expires_at, arrived_at: None };
    let token = tokens.sign(&admission, expires_at);
    let verified = tokens.verify(&token, drop, late.user, expires_at.after(LEEWAY)).unwrap();
    assert!(matches!(shop.reserve(verified, 1).await, Err(Error::AdmissionEnded)));
    for state in [0, 2, 3] {
        shop.execute("UPDATE drop_entries SET state = ? WHERE drop_id = ?", state, drop).await;
        assert!(matches!(shop.reserve(ada, 1).await, Err(Error::NotAdmitted)), "{state}");
    }
    let nowhere = VerifiedAdmission { drop: DropId::generate(), ..ada };
    assert!(matches!(shop.reserve(nowhere, 1).await, Err(Error::NoSuchDrop(_))));
    assert_eq!(counts(shop.assert_sound(drop).await), (5, 0, 0));
}

async fn a_player_has_no_more_than_the_limit(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    for quantity in [0, -1, i64::MIN] {
        assert!(matches!(shop.reserve(ada, quantity).await, Err(Error::Invalid { .. })), "{quantity}");
    }
    for quantity in [3, i64::MAX] {
        assert!(matches!(shop.reserve(ada, quantity).await, Err(Error::OverLimit { limit: 2, taken: 0 })));
    }
    // Concurrent reserves count against the limit, too.
    let tries = futures::future::join_all((0..5).map(|_| shop.reserve(ada, 1))).await;
    assert_eq!(tries.iter().filter(|tried| tried.is_ok()).count(), 2, "{tries:?}");
    // Bought units count as long as they are owned.
    let held = shop.stock.held(ada.user, 10).await.unwrap();
    let order = shop.orders.pay(ada.user, held[0].id, None).await.unwrap();
    shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    shop.stock.release(ada.user, held[1].id).await.unwrap();
    assert!(matches!(shop.reserve(ada, 2).await, Err(Error::OverLimit { taken: 1, .. })));
    shop.orders.record(&webhook(&order, WebhookKind::Refunded)).await.unwrap();
    shop.reserve(ada, 2).await.unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (3, 2, 0));
}

async fn reserves_do_not_exceed_the_stock(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { units: 3, ..TERMS }).await;
    let (ada, eve) = (shop.admitted(drop, "ada").await, shop.admitted(drop, "eve").await);
    shop.reserve(ada, 2).await.unwrap();
    assert!(matches!(shop.reserve(eve, 2).await, Err(Error::SoldOut { available: 1 })));
    shop.reserve(eve, 1).await.unwrap();
    assert!(matches!(shop.reserve(eve, 1).await, Err(Error::SoldOut { available: 0 })));
    assert_eq!(counts(shop.assert_sound(drop).await), (0, 3, 0));
}

async fn a_drop_that_is_not_open_sells_nothing(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 1).await;
    for state in [0, 1, 3, 4, 5] {
        shop.set_state(drop, state).await;
        assert!(matches!(shop.reserve(ada, 1).await, Err(Error::NotOpen(_))), "{state}");
    }
    // After the drop closes, open reservations can still be paid.
    shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (4, 0, 1));
}

async fn reservations_expire_once_by_the_clock_of_the_database(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let another = shop.another(place).await;
    let short = shop.drop_of(Terms { units: 40, limit: 40, hold_ms: 1 }).await;
    let long = shop.drop_of(Terms { units: 5, limit: 5, hold_ms: MINUTE }).await;
    let ada = shop.customer("ada").await;
    let (short_ada, long_ada) = (shop.admit(short, ada).await, shop.admit(long, ada).await);
    for _ in 0..20 {
        shop.reserve(short_ada, 2).await.unwrap();
    }
    shop.reserve(long_ada, 3).await.unwrap();
    // Two processes expire reservations concurrently: each reservation expires once.
    let mut expired = 0;
    while expired < 20 {
        let batch = eventually("reservations expire", PATIENCE, || async {
            let (one, other) = tokio::join!(shop.stock.expire(3), another.stock.expire(4));
            Some(one.unwrap() + other.unwrap()).filter(|expired| *expired > 0)
        });
        expired += batch.await;
    }
    assert_eq!(expired, 20);
    assert_eq!(counts(shop.assert_sound(short).await), (40, 0, 0));
    assert_eq!(counts(shop.assert_sound(long).await), (2, 3, 0));
    assert_eq!(shop.stock.expire(100).await.unwrap(), 0);
}

async fn operators_adjust_the_stock(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let order = shop.ordered(ada, 1).await;
    shop.orders.record(&webhook(&order, WebhookKind::Succeeded)).await.unwrap();
    shop.reserve(ada, 1).await.unwrap();
    let adjustment = |by: i64, key: &str| Adjustment {
        by,
        actor: "olga".to_owned(),
        reason: "found a box".to_owned(),
        key: key.to_owned(),
    };
    for _ in 0..2 {
        let levels = shop.stock.adjust(drop, &adjustment(4, "box")).await.unwrap();
        assert_eq!((counts(levels), levels.adjusted), ((7, 1, 1), 4));
    }
    assert!(matches!(shop.stock.adjust(drop, &adjustment(5, "box")).await, Err(Error::KeyReused)));
    // Reserved and sold units cannot be removed.
    let refused = shop.stock.adjust(drop, &adjustment(-8, "a")).await;
    assert!(matches!(refused, Err(Error::StockInUse { available: 7 })), "{refused:?}");
    let levels = shop.stock.adjust(drop, &adjustment(-7, "b")).await.unwrap();
    assert_eq!((counts(levels), levels.adjusted), ((0, 1, 1), -3));
    for wrong in [adjustment(0, "c"), adjustment(i64::MIN, "c"), adjustment(i64::MAX, "c")] {
        assert!(matches!(shop.stock.adjust(drop, &wrong).await, Err(Error::Invalid { .. })), "{wrong:?}");
    }
    let nameless = Adjustment { actor: String::new(), ..adjustment(1, "c") };
    assert!(matches!(shop.stock.adjust(drop, &nameless).await, Err(Error::Invalid { field: "actor", .. })));
    let unknown = shop.stock.adjust(DropId::generate(), &adjustment(1, "d")).await;
    assert!(matches!(unknown, Err(Error::NoSuchDrop(_))));
    let ledger = shop.stock.ledger(drop, None, 1).await.unwrap();
    assert_eq!((ledger[0].kind, ledger[0].by.adjusted), (LedgerKind::Adjusted, -7));
    assert_eq!(
        (ledger[0].actor.as_deref(), ledger[0].reason.as_deref()),
        (Some("olga"), Some("found a box"))
    );
    shop.assert_sound(drop).await;
}

async fn concurrent_reserves_are_decided_in_order_of_arrival(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { units: 10, limit: 1, hold_ms: MINUTE }).await;
    let mut players = Vec::new();
    for n in 0..30 {
        players.push(shop.admitted(drop, &format!("player-{n}")).await);
    }
    let tries = players.iter().map(|player| shop.reserve(*player, 1));
    let answers = futures::future::join_all(tries).await;
    let served: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(served, (0..30).map(|n| n < 10).collect::<Vec<_>>(), "the first ones get the units");
    let levels = shop.assert_sound(drop).await;
    assert_eq!(counts(levels), (0, 10, 0));
    assert!(levels.version < 6, "the reserves share transactions: {levels:?}");
}

async fn the_audit_finds_wrong_counts(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    shop.reserve(ada, 1).await.unwrap();
    shop.assert_sound(drop).await;
    // Moves a unit without a ledger entry. The table's CHECK refuses counts that do not add up by themselves.
    shop.execute(
        "UPDATE drop_stock SET available = available + ?, reserved = reserved - 1 WHERE drop_id = ?",
        1,
        drop,
    )
    .await;
    let audit = shop.stock.audit(drop).await.unwrap();
    let found: Vec<_> =
        audit.differences.iter().map(|found| (found.what, found.expected, found.found)).collect();
    assert_eq!(
        found,
        [
            ("available, against the ledger", 4, 5),
            ("reserved, against the ledger", 1, 0),
            ("reserved, against held reservations", 1, 0),
        ]
    );
    let unknown = shop.stock.audit(DropId::generate()).await;
    assert!(matches!(unknown, Err(Error::NoSuchDrop(_))));
}

async fn listeners_are_notified_only_of_commits(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let ada = shop.admitted(drop, "ada").await;
    let notified = Arc::new(std::sync::Mutex::new(Vec::new()));
    let listener = notified.clone();
    shop.stock.on_change(move |of, levels| listener.lock().unwrap().push((of, levels)));
    shop.reserve(ada, 9).await.unwrap_err();
    shop.reserve(ada, 2).await.unwrap();
    let levels = shop.stock.levels(drop).await.unwrap();
    assert_eq!(*notified.lock().unwrap(), [(drop, levels)]);
}

async fn the_first_reserve_counts_as_arrival(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    // The players entered at time 0, so the lifetime of their admission is over. Only `expires_at` keeps them inside.
    let soon = shop.db.now().await.unwrap().as_millis() + 60_000;
    let ada = shop.admit_until(drop, shop.customer("ada").await, soon).await;
    let eve = shop.admit_until(drop, shop.customer("eve").await, soon).await;
    // A refused reserve is not an arrival.
    shop.reserve(eve, 9).await.unwrap_err();
    let arrived =
        async || shop.scalar("SELECT COUNT(*) FROM drop_entries WHERE arrived_at IS NOT NULL").await;
    assert_eq!(arrived().await, 0);
    let held = shop.reserve(ada, 1).await.unwrap();
    assert_eq!(arrived().await, 1);
    let at = async || shop.scalar("SELECT COALESCE(MAX(arrived_at), 0) FROM drop_entries").await;
    assert_eq!(at().await, held.reserved_at.as_millis());
    assert_eq!(
        shop.scalar("SELECT MAX(expires_at) FROM drop_entries").await,
        soon,
        "the admission is not shortened"
    );
    // Only the first reserve is an arrival.
    shop.reserve(ada, 1).await.unwrap();
    assert_eq!((arrived().await, at().await), (1, held.reserved_at.as_millis()));
    // After the arrival the admission lasts for its lifetime, counted from the entry.
    let now = shop.db.now().await.unwrap().as_millis();
    shop.execute("UPDATE drop_entries SET arrived_at = NULL, entered_at = ? WHERE drop_id = ?", now, drop)
        .await;
    shop.reserve(eve, 1).await.unwrap();
    assert_eq!(shop.scalar("SELECT MAX(expires_at) FROM drop_entries").await, now + 600_000);
}

async fn ledger_pages_have_every_entry(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { units: 100, limit: 1, hold_ms: MINUTE }).await;
    let mut players = Vec::new();
    for n in 0..20 {
        players.push(shop.admitted(drop, &format!("player-{n}")).await);
    }
    // Concurrent reserves write several ledger entries with one version.
    futures::future::join_all(players.iter().map(|player| shop.reserve(*player, 1))).await;
    let all = shop.stock.ledger(drop, None, 100).await.unwrap();
    assert_eq!(all.len(), 21);
    assert!(all[0].version < 21, "some share a transaction");
    let mut paged: Vec<LedgerEntry> = Vec::new();
    loop {
        let before = paged.last().map(LedgerEntry::position);
        let page = shop.stock.ledger(drop, before, 3).await.unwrap();
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, all);
}

async fn only_current_reservations_are_listed_as_held(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let (long, other) = (shop.drop_of(TERMS).await, shop.drop_of(TERMS).await);
    let short = shop.drop_of(Terms { hold_ms: 1, ..TERMS }).await;
    let ada = shop.customer("ada").await;
    let mut held = Vec::new();
    for drop in [long, other] {
        held.push(shop.reserve(shop.admit(drop, ada).await, 1).await.unwrap());
    }
    shop.reserve(shop.admit(short, ada).await, 1).await.unwrap();
    eventually("the short reservation ends", PATIENCE, async || {
        shop.stock.held(ada.0, 10).await.unwrap() == held
    })
    .await;
}

async fn the_limit_of_an_expiry_is_clamped(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(Terms { units: 3, limit: 3, hold_ms: 1 }).await;
    let ada = shop.admitted(drop, "ada").await;
    for limit in [0, u32::MAX] {
        shop.reserve(ada, 1).await.unwrap();
        eventually("it expires", PATIENCE, async || shop.stock.expire(limit).await.unwrap() == 1).await;
    }
}
