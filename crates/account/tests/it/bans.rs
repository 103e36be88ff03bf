use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use account::{Error, OnSessionsEnd, UserId, UserState};
use base::Code;
use base::error::Coded;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use testkit::need;

use super::*;

const ISSUER: &str = "https://id.example.com";

#[tokio::test]
async fn banned_user_cannot_sign_in_until_unbanned() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (process.sign_in("ada").await, &process.accounts);
        accounts.ban(ada.id, "sold gold", ACTOR).await.unwrap();
        let refused = accounts.sign_in(&sign_in("ada")).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Banned { user, reason } if *user == ada.id && reason == "sold gold")
        );
        assert_eq!(refused.code(), Code::PermissionDenied);
        let seen = accounts.user(ada.id).await.unwrap();
        assert_eq!((seen.state, seen.ban_reason.as_deref()), (UserState::Banned, Some("sold gold")));
        accounts.unban(ada.id, ACTOR).await.unwrap();
        assert_eq!(process.sign_in("ada").await, ada);
        let events = process.events().await;
        let published: Vec<_> = events[1..].iter().map(|event| (&event["kind"], &event["data"])).collect();
        let data = |state| json!({ "user_id": ada.id.to_string(), "state": state });
        assert_eq!(
            published,
            [
                (&json!("playhouse.user.banned.v1"), &data("BANNED")),
                (&json!("playhouse.user.unbanned.v1"), &data("ACTIVE")),
            ]
        );
        assert!(events.iter().all(|event| event["key"] == format!("user/{}", ada.id)));
        assert_eq!(process.actions(&ada).await, ["user.unbanned", "user.banned"]);
        process.close().await;
    }
}

#[tokio::test]
async fn repeated_ban_or_unban_is_not_published_again() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (process.sign_in("ada").await, &process.accounts);
        accounts.unban(ada.id, ACTOR).await.unwrap();
        for _ in 0..3 {
            accounts.ban(ada.id, "sold gold", ACTOR).await.unwrap();
        }
        assert_eq!(process.kinds().await[1..], ["playhouse.user.banned.v1"]);
        accounts.ban(ada.id, "sold much gold", ACTOR).await.unwrap();
        assert_eq!(process.kinds().await.len(), 3, "a new reason is published");
        assert_eq!(accounts.user(ada.id).await.unwrap().ban_reason.as_deref(), Some("sold much gold"));
        for _ in 0..3 {
            accounts.unban(ada.id, ACTOR).await.unwrap();
        }
        assert_eq!(process.kinds().await[3..], ["playhouse.user.unbanned.v1"]);
        assert_eq!(process.actions(&ada).await, ["user.unbanned", "user.banned", "user.banned"]);
        assert_eq!(accounts.audit(ada.id, 2).await.unwrap().len(), 2);
        assert_eq!(accounts.audit(ada.id, 0).await.unwrap().len(), 1);
        process.close().await;
    }
}

/// An unlinked identity of a banned user would create a new user at the next sign-in.
#[tokio::test]
async fn ban_cannot_be_evaded() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (process.sign_in("ada").await, &process.accounts);
        accounts.link(ada.id, ISSUER, "lovelace", ACTOR).await.unwrap();
        accounts.ban(ada.id, "sold gold", ACTOR).await.unwrap();
        let refused = [
            accounts.unlink(ada.id, ISSUER, "lovelace", ACTOR).await.unwrap_err(),
            accounts.link(ada.id, ISSUER, "third", ACTOR).await.unwrap_err(),
            accounts.create_account(ada.id, "second").await.map(drop).unwrap_err(),
            accounts.sign_in(&sign_in("lovelace")).await.map(drop).unwrap_err(),
        ];
        for error in refused {
            assert!(matches!(error, Error::Banned { .. }), "{error:?}");
        }
        assert_eq!(process.count("users").await, 1);
        assert_eq!(process.count("identities").await, 2);
        process.close().await;
    }
}

#[tokio::test]
async fn reason_is_validated_and_not_in_the_audit_log() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (process.sign_in("ada").await, &process.accounts);
        for wrong in [String::new(), "r".repeat(501), "a\u{0}b".to_owned()] {
            let error = accounts.ban(ada.id, &wrong, ACTOR).await.unwrap_err();
            assert!(matches!(error, Error::Invalid { field: "reason", .. }), "{error:?}");
        }
        let longest = "𝄞".repeat(500);
        accounts.ban(ada.id, &longest, ACTOR).await.unwrap();
        assert_eq!(accounts.user(ada.id).await.unwrap().ban_reason, Some(longest));
        let record = &accounts.audit(ada.id, 10).await.unwrap()[0];
        assert_eq!(record.detail, json!({ "from": "ACTIVE", "to": "BANNED" }));
        process.close().await;
    }
}

/// A hook that records whose sessions ended. It fails while `refuses` is set.
#[derive(Default)]
struct RecordedEnds {
    ended: Mutex<Vec<UserId>>,
    refuses: AtomicBool,
}

impl OnSessionsEnd for RecordedEnds {
    fn end_sessions<'a>(&'a self, _: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), Error>> {
        self.ended.lock().unwrap().push(user);
        let refuses = self.refuses.load(Ordering::SeqCst);
        async move { if refuses { Err(Error::UnknownIdentity) } else { Ok(()) } }.boxed()
    }
}

#[tokio::test]
async fn ban_ends_the_sessions_of_the_user_or_rolls_back() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (ada, accounts) = (process.sign_in("ada").await, &process.accounts);
        let ends = Arc::new(RecordedEnds::default());
        accounts.on_sessions_end(ends.clone());
        ends.refuses.store(true, Ordering::SeqCst);
        assert!(accounts.ban(ada.id, "sold gold", ACTOR).await.is_err());
        assert_eq!(accounts.user(ada.id).await.unwrap().state, UserState::Active);
        ends.refuses.store(false, Ordering::SeqCst);
        accounts.ban(ada.id, "sold gold", ACTOR).await.unwrap();
        accounts.unban(ada.id, ACTOR).await.unwrap();
        assert_eq!(*ends.ended.lock().unwrap(), [ada.id, ada.id]);

        // Ending sessions without a ban: the user may sign in again.
        accounts.end_sessions(ada.id, ACTOR).await.unwrap();
        assert_eq!(ends.ended.lock().unwrap().len(), 3);
        assert_eq!(accounts.user(ada.id).await.unwrap().state, UserState::Active);
        assert_eq!(process.actions(&ada).await, ["sessions.ended", "user.unbanned", "user.banned"]);
        accounts.erase(ada.id, ACTOR).await.unwrap();
        assert!(matches!(accounts.end_sessions(ada.id, ACTOR).await, Err(Error::Erased(_))));
        let unknown = UserId::generate();
        assert!(matches!(accounts.end_sessions(unknown, ACTOR).await, Err(Error::NotFound(_))));
        process.close().await;
    }
}
