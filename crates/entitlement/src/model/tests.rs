use super::*;

fn change(at: i64, action: Action) -> Change {
    Change {
        holding: Holding {
            user: UserId::generate(),
            account: AccountId::generate(),
            resource: "sword".to_owned(),
        },
        action,
        occurred_at: Timestamp::from_millis(at),
        reference: None,
    }
}

const GRANT: Action = Action::Grant { quantity: None, valid_until: None };
const REVOKE: Action = Action::Revoke { quantity: None };

const fn more(quantity: i64) -> Action {
    Action::Grant { quantity: Some(quantity), valid_until: None }
}

const fn fewer(quantity: i64) -> Action {
    Action::Revoke { quantity: Some(quantity) }
}

fn apply(changes: &[(i64, Action)]) -> Result<(Entitlement, Vec<Effect>), Error> {
    let mut entitlement = None;
    let mut effects = Vec::new();
    for (at, action) in changes {
        let (next, effect) = change(*at, *action).apply(entitlement.as_ref())?;
        effects.push(effect);
        entitlement = Some(next);
    }
    Ok((entitlement.unwrap(), effects))
}

fn final_state(changes: &[(i64, Action)]) -> (State, Option<i64>) {
    let (entitlement, _) = apply(changes).unwrap();
    (entitlement.state, entitlement.balance())
}

/// Returns all permutations of a list.
fn permutations<T: Clone>(list: &[T]) -> Vec<Vec<T>> {
    if list.len() < 2 {
        return vec![list.to_vec()];
    }
    let mut all = Vec::new();
    for at in 0..list.len() {
        let mut rest = list.to_vec();
        let first = rest.remove(at);
        all.extend(permutations(&rest).into_iter().map(|mut order| {
            order.insert(0, first.clone());
            order
        }));
    }
    all
}

#[test]
fn the_newest_change_wins_in_any_order_of_arrival() {
    for order in permutations(&[(1, GRANT), (2, REVOKE), (3, GRANT), (4, REVOKE)]) {
        assert_eq!(final_state(&order).0, State::Revoked, "{order:?}");
    }
    for order in permutations(&[(1, GRANT), (2, REVOKE), (3, GRANT)]) {
        assert_eq!(final_state(&order).0, State::Active, "{order:?}");
    }
    // At the same time, the revoke wins.
    for order in permutations(&[(5, GRANT), (5, REVOKE), (4, GRANT)]) {
        assert_eq!(final_state(&order).0, State::Revoked, "{order:?}");
    }
}

#[test]
fn a_grant_older_than_a_revoke_has_no_effect() {
    let (entitlement, effects) = apply(&[(2, REVOKE), (1, GRANT)]).unwrap();
    assert_eq!((entitlement.state, entitlement.version, entitlement.entries), (State::Revoked, 1, 2));
    assert_eq!(effects, [Effect::Applied, Effect::Superseded]);
    assert_eq!(final_state(&[(2, REVOKE), (1, GRANT), (3, GRANT)]).0, State::Active);
}

#[test]
fn quantities_add_up_in_any_order_of_arrival() {
    for order in permutations(&[(1, more(100)), (2, more(20)), (3, fewer(50)), (4, fewer(30))]) {
        assert_eq!(final_state(&order), (State::Active, Some(40)), "{order:?}");
    }
    for order in permutations(&[(1, more(10)), (2, fewer(10)), (1, more(5)), (3, fewer(8))]) {
        assert_eq!(final_state(&order), (State::Revoked, Some(0)), "{order:?}");
    }
}

#[test]
fn a_full_revoke_removes_only_older_grants() {
    assert_eq!(final_state(&[(1, more(10)), (2, REVOKE), (3, more(4))]), (State::Active, Some(4)));
    assert_eq!(final_state(&[(2, REVOKE), (1, more(10)), (3, more(4))]), (State::Active, Some(4)));
    assert_eq!(final_state(&[(1, more(10)), (2, REVOKE), (1, fewer(3))]), (State::Revoked, Some(0)));
    // A full revoke does not affect newer grants.
    let (_, effects) = apply(&[(3, more(10)), (2, REVOKE)]).unwrap();
    assert_eq!(effects[1], Effect::Superseded);
}

#[test]
fn counted_and_uncounted_do_not_mix() {
    assert!(matches!(apply(&[(1, GRANT), (2, more(1))]), Err(Error::NotCounted)));
    assert!(matches!(apply(&[(1, GRANT), (2, fewer(1))]), Err(Error::NotCounted)));
    assert!(matches!(apply(&[(1, more(1)), (2, GRANT)]), Err(Error::Counted)));
    // After a full revoke the entitlement may change its kind.
    assert_eq!(final_state(&[(1, GRANT), (2, REVOKE), (3, more(1))]), (State::Active, Some(1)));
    assert_eq!(final_state(&[(1, more(1)), (2, REVOKE), (3, GRANT)]), (State::Active, None));
}

/// Also if the entitlement is of the other kind by now.
#[test]
fn a_change_older_than_a_full_revoke_has_no_effect() {
    for late in [more(5), fewer(5), GRANT, REVOKE] {
        let (entitlement, effects) = apply(&[(1, more(1)), (3, REVOKE), (4, GRANT), (2, late)]).unwrap();
        assert_eq!((entitlement.state, entitlement.balance()), (State::Active, None), "{late:?}");
        assert_eq!(effects[3], Effect::Superseded, "{late:?}");
        let (entitlement, effects) = apply(&[(1, GRANT), (3, REVOKE), (4, more(7)), (2, late)]).unwrap();
        assert_eq!((entitlement.state, entitlement.balance()), (State::Active, Some(7)), "{late:?}");
        assert_eq!(effects[3], Effect::Superseded, "{late:?}");
    }
}

#[test]
fn every_applied_change_creates_a_version() {
    let (entitlement, _) = apply(&[(1, GRANT), (2, GRANT), (1, REVOKE), (3, REVOKE), (3, REVOKE)]).unwrap();
    assert_eq!((entitlement.version, entitlement.entries), (3, 5));
    assert_eq!(entitlement.as_of.as_millis(), 3);
}

#[test]
fn a_grant_ends_at_valid_until() {
    let until = |at| Action::Grant { quantity: None, valid_until: Some(Timestamp::from_millis(at)) };
    let (entitlement, _) = apply(&[(1, until(100))]).unwrap();
    assert!(entitlement.is_in_force(Timestamp::from_millis(99)));
    assert!(!entitlement.is_in_force(Timestamp::from_millis(100)));
    let (renewed, _) = apply(&[(1, until(100)), (50, until(200)), (2, until(150))]).unwrap();
    assert_eq!(renewed.valid_until, Some(Timestamp::from_millis(200)));
    let (unlimited, _) = apply(&[(1, until(100)), (50, GRANT)]).unwrap();
    assert_eq!(unlimited.valid_until, None);
    // A late grant of a counted entitlement adds its quantity and keeps the end of the newest grant.
    let more_until =
        |n, at| Action::Grant { quantity: Some(n), valid_until: Some(Timestamp::from_millis(at)) };
    let (counted, _) = apply(&[(5, more_until(1, 500)), (2, more_until(1, 100))]).unwrap();
    assert_eq!((counted.quantity, counted.valid_until.map(Timestamp::as_millis)), (Some(2), Some(500)));
    assert_eq!(counted.as_of.as_millis(), 5, "the late grant does not set it back");
    // A partial revoke keeps the end; a full revoke clears it.
    let (fewer, _) = apply(&[(5, more_until(2, 500)), (6, fewer(1))]).unwrap();
    assert_eq!(fewer.valid_until.map(Timestamp::as_millis), Some(500));
    let (revoked, _) = apply(&[(5, more_until(2, 500)), (6, REVOKE)]).unwrap();
    assert_eq!(revoked.valid_until, None);
}

#[test]
fn the_newest_grant_sets_the_end_in_any_order_of_arrival() {
    let until = |n, at| Action::Grant { quantity: Some(n), valid_until: Some(Timestamp::from_millis(at)) };
    for order in permutations(&[(1, until(5, 300)), (2, until(5, 200)), (2, until(5, 150)), (3, fewer(2))]) {
        let (entitlement, _) = apply(&order).unwrap();
        assert_eq!(entitlement.valid_until, Some(Timestamp::from_millis(200)), "{order:?}");
    }
    for order in permutations(&[(1, until(5, 300)), (2, more(5)), (3, fewer(2))]) {
        assert_eq!(apply(&order).unwrap().0.valid_until, None, "{order:?}");
    }
    let (again, _) = apply(&[(1, until(5, 300)), (2, REVOKE), (3, until(1, 100))]).unwrap();
    assert_eq!(again.valid_until, Some(Timestamp::from_millis(100)));
}

#[test]
fn invalid_changes_are_refused() {
    let now = Timestamp::from_millis(1_000_000);
    let field = |change: &Change| match change.check(now) {
        Ok(()) => "none",
        Err(Error::Invalid { field, .. }) => field,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(field(&change(1, GRANT)), "none");
    let named = |resource: &str| {
        let good = change(1, GRANT);
        Change { holding: Holding { resource: resource.to_owned(), ..good.holding }, ..good }
    };
    assert_eq!(field(&named("")), "resource");
    assert_eq!(field(&named(&"ä".repeat(255))), "none");
    assert_eq!(field(&named(&"ä".repeat(256))), "resource");
    assert_eq!(field(&Change { reference: Some("x".repeat(256)), ..change(1, GRANT) }), "reference");
    for wrong in [0, -1, MAX_QUANTITY + 1, i64::MIN] {
        assert_eq!(field(&change(1, more(wrong))), "quantity");
        assert_eq!(field(&change(1, fewer(wrong))), "quantity");
    }
    assert_eq!(field(&change(1_000_000 + 3_600_001, GRANT)), "occurred_at");
    assert_eq!(field(&change(1_000_000 + 3_600_000, GRANT)), "none");
    let ended = Action::Grant { quantity: None, valid_until: Some(Timestamp::from_millis(5)) };
    assert_eq!(field(&change(5, ended)), "valid_until");
}
