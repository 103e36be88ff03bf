use account::{AccountId, Error};
use futures::future::join_all;
use hierlock::Target;
use testkit::need;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn account_with_a_name_is_created_once() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, bob) = (process.sign_in("ada").await, process.sign_in("bob").await);
        let create = |_| {
            let accounts = process.accounts.clone();
            tokio::spawn(async move { accounts.create_account(ada.id, "chess").await.unwrap() })
        };
        let created = join_all((0..30).map(create)).await;
        let created: Vec<_> = created.into_iter().map(Result::unwrap).collect();
        assert!(created.iter().all(|account| *account == created[0]), "{created:?}");
        assert_eq!((created[0].user, created[0].name.as_str()), (ada.id, "chess"));
        let theirs = process.accounts.accounts(ada.id).await.unwrap();
        assert_eq!(
            theirs.iter().map(|account| account.name.as_str()).collect::<Vec<_>>(),
            ["default", "chess"]
        );
        assert_eq!(theirs[1], created[0]);
        let default = process.accounts.create_account(ada.id, "default").await.unwrap();
        assert_eq!(default, theirs[0], "it was created with the user");
        let others = process.accounts.create_account(bob.id, "chess").await.unwrap();
        assert_ne!(others.id, created[0].id);
        process.close().await;
    }
}

#[tokio::test]
async fn names_are_compared_alike_on_every_database() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (process.sign_in("ada").await, &process.accounts);
        for wrong in ["", " ", "chess ", " chess", "a\tb", &"n".repeat(101)] {
            let error = accounts.create_account(ada.id, wrong).await.unwrap_err();
            assert!(matches!(error, Error::Invalid { field: "name", .. }), "{wrong:?}: {error:?}");
        }
        let mut ids = Vec::new();
        for name in ["chess", "Chess", "chéss", "che ss", &"𝄞".repeat(100)] {
            ids.push(accounts.create_account(ada.id, name).await.unwrap().id);
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 5);
        process.close().await;
    }
}

/// Work on the user's other accounts goes on meanwhile. An erasure of the user must wait.
#[tokio::test(flavor = "multi_thread")]
async fn creating_an_account_shares_the_lock_on_the_user() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let ada = process.sign_in("ada").await;
        let user = ada.id.to_string();
        let held = process.locks.acquire(Target::account(&user, "some other").unwrap()).await.unwrap();
        let accounts = process.accounts.clone();
        accounts.create_account(ada.id, "chess").await.unwrap();
        held.release().await.unwrap();
        let held = process.locks.acquire(Target::user(&user).unwrap()).await.unwrap();
        let waiting = tokio::spawn(async move { accounts.create_account(ada.id, "go").await });
        process.until_blocked().await;
        assert!(!waiting.is_finished());
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap();
        process.close().await;
    }
}

#[tokio::test]
async fn only_the_user_owns_an_account_until_erased() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, bob) = (process.sign_in("ada").await, process.sign_in("bob").await);
        let accounts = &process.accounts;
        let account = accounts.accounts(ada.id).await.unwrap()[0].id;
        let owns = async |user, account| {
            let mut tx = process.db.begin().await.unwrap();
            let owns = Accounts::owns(&mut tx, user, account).await.unwrap();
            tx.rollback().await.unwrap();
            owns
        };
        assert!(owns(ada.id, account).await);
        assert!(!owns(bob.id, account).await);
        assert!(!owns(ada.id, AccountId::generate()).await);
        accounts.ban(ada.id, "reason", ACTOR).await.unwrap();
        assert!(owns(ada.id, account).await, "a refund must still find the entitlements of a banned user");
        accounts.erase(ada.id, ACTOR).await.unwrap();
        assert!(!owns(ada.id, account).await);
        process.close().await;
    }
}

/// The caller's transaction sees its own uncommitted changes.
#[tokio::test]
async fn ownership_is_read_in_the_callers_transaction() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let ada = process.sign_in("ada").await;
        let account = process.accounts.accounts(ada.id).await.unwrap()[0].id;
        let mut tx = process.db.begin().await.unwrap();
        on!(tx, raw => { sqlx::query("DELETE FROM accounts").execute(raw).await.unwrap(); });
        assert!(!Accounts::owns(&mut tx, ada.id, account).await.unwrap());
        tx.rollback().await.unwrap();
        let mut tx = process.db.begin().await.unwrap();
        assert!(Accounts::owns(&mut tx, ada.id, account).await.unwrap());
        tx.rollback().await.unwrap();
        process.close().await;
    }
}
