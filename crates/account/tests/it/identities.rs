use account::Error;
use base::Code;
use base::error::Coded;
use futures::future::join_all;
use hierlock::Target;
use testkit::need;

use super::*;

const OTHER: &str = "https://other.example.com";

#[tokio::test]
async fn linked_identity_signs_in_as_the_same_user() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, bob) = (process.sign_in("ada").await, process.sign_in("bob").await);
        let accounts = &process.accounts;
        accounts.link(ada.id, OTHER, "lovelace", ACTOR).await.unwrap();
        accounts.link(ada.id, OTHER, "lovelace", ACTOR).await.unwrap();
        let other = SignIn { issuer: OTHER.to_owned(), ..sign_in("lovelace") };
        assert_eq!(accounts.sign_in(&other).await.unwrap().user, ada);
        assert_eq!(process.count("identities").await, 3);
        let taken = accounts.link(bob.id, OTHER, "lovelace", ACTOR).await.unwrap_err();
        assert!(matches!(taken, Error::LinkedElsewhere) && taken.code() == Code::Conflict);
        let taken = accounts.link(bob.id, "https://id.example.com", "ada", ACTOR).await.unwrap_err();
        assert!(matches!(taken, Error::LinkedElsewhere), "{taken:?}");
        assert_eq!(process.actions(&ada).await, ["identity.linked"]);
        assert!(process.actions(&bob).await.is_empty());
        let record = &accounts.audit(ada.id, 1).await.unwrap()[0];
        assert_eq!((record.actor.as_str(), record.user), (ACTOR, ada.id));
        assert_eq!(record.detail, serde_json::json!({ "identities": 2 }));
        assert!(record.at.distance(process.db.now().await.unwrap()) < Duration::from_secs(60));
        process.close().await;
    }
}

#[tokio::test]
async fn last_identity_cannot_be_unlinked() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, bob) = (process.sign_in("ada").await, process.sign_in("bob").await);
        let (accounts, first) = (&process.accounts, "https://id.example.com");
        let last = accounts.unlink(ada.id, first, "ada", ACTOR).await.unwrap_err();
        assert!(matches!(last, Error::LastIdentity) && last.code() == Code::FailedPrecondition);
        accounts.link(ada.id, OTHER, "lovelace", ACTOR).await.unwrap();
        for (issuer, subject) in [(first, "bob"), (first, "nobody"), (OTHER, "ada")] {
            let unknown = accounts.unlink(ada.id, issuer, subject, ACTOR).await.unwrap_err();
            assert!(matches!(unknown, Error::UnknownIdentity), "{unknown:?}");
        }
        accounts.unlink(ada.id, first, "ada", ACTOR).await.unwrap();
        let last = accounts.unlink(ada.id, OTHER, "lovelace", ACTOR).await.unwrap_err();
        assert!(matches!(last, Error::LastIdentity), "{last:?}");
        assert_eq!(accounts.find(first, "bob").await.unwrap().id, bob.id);
        assert_ne!(process.sign_in("ada").await.id, ada.id, "the unlinked identity creates a new user");
        assert_eq!(process.actions(&ada).await, ["identity.unlinked", "identity.linked"]);
        process.close().await;
    }
}

/// Without mutual exclusion, both requests would see two identities and remove one each.
#[tokio::test(flavor = "multi_thread")]
async fn unlinking_both_identities_concurrently_leaves_one() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        for round in 0..5 {
            let name = format!("ada{round}");
            let ada = process.sign_in(&name).await;
            process.accounts.link(ada.id, OTHER, &name, ACTOR).await.unwrap();
            let unlink = |issuer: &'static str| {
                let (accounts, name) = (process.accounts.clone(), name.clone());
                tokio::spawn(async move { accounts.unlink(ada.id, issuer, &name, ACTOR).await })
            };
            let done = join_all(["https://id.example.com", OTHER].map(unlink)).await;
            let done: Vec<_> = done.into_iter().map(Result::unwrap).collect();
            assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "{done:?}");
            assert!(done.iter().all(|done| matches!(done, Ok(()) | Err(Error::LastIdentity))), "{done:?}");
        }
        process.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_linked_concurrently_by_many_users_goes_to_one() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let mut users = Vec::new();
        for n in 0..10 {
            users.push(process.sign_in(&format!("user{n}")).await.id);
        }
        let link = |user| {
            let accounts = process.accounts.clone();
            tokio::spawn(async move { accounts.link(user, OTHER, "shared", ACTOR).await })
        };
        let done = join_all(users.iter().copied().map(link)).await;
        let done: Vec<_> = done.into_iter().map(Result::unwrap).collect();
        let owner = process.accounts.find(OTHER, "shared").await.unwrap().id;
        for (user, done) in users.iter().zip(&done) {
            match done {
                Ok(()) => assert_eq!(*user, owner),
                Err(error) => assert!(matches!(error, Error::LinkedElsewhere), "{error:?}"),
            }
        }
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
        process.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn change_of_a_user_waits_for_locks_under_the_user() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        for change in ["link", "unlink", "ban", "unban", "erase"] {
            let ada = process.sign_in(change).await;
            process.accounts.link(ada.id, OTHER, change, ACTOR).await.unwrap();
            if change == "unban" {
                process.accounts.ban(ada.id, "reason", ACTOR).await.unwrap();
            }
            let user = ada.id.to_string();
            let held = process.locks.acquire(Target::resource(&user, "a", "sword").unwrap()).await.unwrap();
            let accounts = process.accounts.clone();
            let waiting = tokio::spawn(async move {
                match change {
                    "link" => accounts.link(ada.id, OTHER, "more", ACTOR).await,
                    "unlink" => accounts.unlink(ada.id, OTHER, change, ACTOR).await,
                    "ban" => accounts.ban(ada.id, "reason", ACTOR).await,
                    "unban" => accounts.unban(ada.id, ACTOR).await,
                    _ => accounts.erase(ada.id, ACTOR).await,
                }
            });
            process.until_blocked().await;
            assert!(!waiting.is_finished(), "{change}");
            held.release().await.unwrap();
            waiting.await.unwrap().unwrap();
        }
        eventually("all locks are released", PATIENCE, async || process.locks.is_idle()).await;
        process.close().await;
    }
}

#[tokio::test]
async fn invalid_identity_or_actor_is_refused() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let ada = process.sign_in("ada").await;
        let accounts = &process.accounts;
        for (issuer, subject, actor, field) in [
            ("", "s", ACTOR, "issuer"),
            ("i", "", ACTOR, "subject"),
            ("i", "s", "", "actor"),
            ("i", "s\u{7f}", ACTOR, "subject"),
        ] {
            for error in [
                accounts.link(ada.id, issuer, subject, actor).await.unwrap_err(),
                accounts.unlink(ada.id, issuer, subject, actor).await.unwrap_err(),
            ] {
                assert!(matches!(error, Error::Invalid { field: named, .. } if named == field), "{error:?}");
            }
        }
        process.close().await;
    }
}
