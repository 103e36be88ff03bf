use account::{DEFAULT_ACCOUNT, Error, UserId, UserState};
use base::Code;
use base::error::Coded;
use futures::future::join_all;
use serde_json::json;
use testkit::need;

use super::*;

/// Signs the same identity in so often at once, by turns in each of the processes.
async fn crowd(processes: &[Process], times: usize) -> Vec<account::SignedIn> {
    let one = |n: usize| {
        let accounts = processes[n % processes.len()].accounts.clone();
        tokio::spawn(async move { accounts.sign_in(&sign_in("ada")).await.unwrap() })
    };
    join_all((0..times).map(one)).await.into_iter().map(Result::unwrap).collect()
}

/// What there is of the one user who has signed in.
async fn there_is_one(process: &Process, signed_in: &[account::SignedIn]) {
    assert!(signed_in.iter().all(|done| done.user == signed_in[0].user));
    assert_eq!(signed_in.iter().filter(|done| done.created).count(), 1);
    for table in ["users", "identities", "accounts", "outbox"] {
        assert_eq!(process.count(table).await, 1, "{table}");
    }
    let accounts = process.accounts.accounts(signed_in[0].user.id).await.unwrap();
    assert_eq!(accounts[0].name, DEFAULT_ACCOUNT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_first_sign_ins_at_once_make_one_user() {
    for place in need!(places().await) {
        let processes = [place.process(Vec::new()).await];
        let signed_in = crowd(&processes, 100).await;
        there_is_one(&processes[0], &signed_in).await;
        processes.into_iter().next().unwrap().close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_sign_ins_in_two_processes_make_one_user() {
    for place in need!(places().await) {
        if matches!(place, Place::Sqlite(_)) {
            continue;
        }
        let processes = [place.process(Vec::new()).await, place.process(Vec::new()).await];
        let signed_in = crowd(&processes, 100).await;
        there_is_one(&processes[1], &signed_in).await;
        join_all(processes.map(Process::close)).await;
    }
}

/// On MySQL those who waited for a key that was given up get in each other's way: all but one fall victim to a deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_sign_in_that_is_given_up_does_not_harm_those_who_wait_for_it() {
    const INSERT: &str = "INSERT INTO identities (identity_hash, user_id, issuer, subject, linked_at) VALUES (?, ?, '', '', 0)";
    for place in need!(places().await) {
        let processes = [place.process(Vec::new()).await];
        let process = &processes[0];
        process.sign_in("ada").await;
        let mut tx = process.db.begin().await.unwrap();
        let key: Vec<u8> = on!(tx, raw => sqlx::query_scalar("SELECT identity_hash FROM identities").fetch_one(raw).await.unwrap());
        for text in ["identities", "users", "accounts", "outbox"].map(|table| format!("DELETE FROM {table}"))
        {
            on!(tx, raw => { sqlx::query(AssertSqlSafe(text)).execute(raw).await.unwrap(); });
        }
        tx.commit().await.unwrap();
        let mut given_up = process.db.begin().await.unwrap();
        on!(given_up, raw => {
            sqlx::query(INSERT).bind(&key).bind(&key[..16]).execute(raw).await.unwrap();
        });
        let later = async {
            process.until_inserts_wait(&mut given_up).await;
            given_up.rollback().await.unwrap();
        };
        let (signed_in, ()) = tokio::join!(crowd(&processes, 30), later);
        there_is_one(process, &signed_in).await;
        join_all(processes.map(Process::close)).await;
    }
}

#[tokio::test]
async fn the_first_sign_in_tells_of_the_user_and_nothing_personal() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let ada = SignIn { display_name: Some("Ada".to_owned()), ..sign_in("ada") };
        let first = process.accounts.sign_in(&ada).await.unwrap();
        assert!(first.created);
        assert_eq!(first.user.state, UserState::Active);
        assert_eq!(first.user.display_name.as_deref(), Some("Ada"));
        assert_eq!(first.user.roles, [Role::Player]);
        let store_now = process.db.now().await.unwrap();
        assert!(first.user.created_at.distance(store_now) < Duration::from_secs(60));
        let again = process.accounts.sign_in(&ada).await.unwrap();
        assert!(!again.created);
        assert_eq!(again.user, first.user);
        assert_eq!(process.accounts.user(first.user.id).await.unwrap(), first.user);
        assert_eq!(process.accounts.find(&ada.issuer, "ada").await.unwrap(), first.user);

        let account = &process.accounts.accounts(first.user.id).await.unwrap()[0];
        let expected = json!({
            "subject": "user.registered.v1", "kind": "playhouse.user.registered.v1", "source": "/playhouse/account",
            "time": NOW.as_millis(), "key": format!("user/{}", first.user.id),
            "data": {
                "user_id": first.user.id.to_string(), "account_id": account.id.to_string(), "state": "ACTIVE",
            },
        });
        assert_eq!(process.events().await, [expected]);
        process.close().await;
    }
}

#[tokio::test]
async fn roles_and_the_name_follow_the_claims() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let with = |roles: &[Role], name: Option<&str>| SignIn {
            roles: roles.to_vec(),
            display_name: name.map(ToOwned::to_owned),
            ..sign_in("ada")
        };
        let accounts = &process.accounts;
        // What the claims say, and what the user has then.
        type Step = (&'static [Role], Option<&'static str>, &'static [Role], Option<&'static str>);
        let steps: [Step; 5] = [
            (&[], None, &[Role::Player], None),
            (&[Role::Operator, Role::Player], Some("Ada"), &[Role::Player, Role::Operator], Some("Ada")),
            // No name says nothing of the name.
            (&[Role::Player, Role::Operator], None, &[Role::Player, Role::Operator], Some("Ada")),
            (&[Role::Service], Some(""), &[Role::Service], Some("Ada")),
            (&[], Some("Ada L."), &[Role::Player], Some("Ada L.")),
        ];
        for (roles, name, roles_then, name_then) in steps {
            let done = accounts.sign_in(&with(roles, name)).await.unwrap().user;
            assert_eq!((done.roles.as_slice(), done.display_name.as_deref()), (roles_then, name_then));
            assert_eq!(accounts.user(done.id).await.unwrap(), done);
        }
        assert_eq!(process.count("users").await, 1);
        assert_eq!(process.count("outbox").await, 1, "only the first one is told");
        process.close().await;
    }
}

#[tokio::test]
async fn identities_are_told_apart_to_the_letter() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let mut ids = Vec::new();
        for (issuer, subject) in [("ab", "c"), ("a", "bc"), ("ab", "C"), ("ab", "c "), ("ab", "ć")] {
            let one = SignIn { issuer: issuer.to_owned(), ..sign_in(subject) };
            ids.push(process.accounts.sign_in(&one).await.unwrap().user.id);
            assert_eq!(process.accounts.find(issuer, subject).await.unwrap().id, *ids.last().unwrap());
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 5);
        process.close().await;
    }
}

#[tokio::test]
async fn what_is_too_long_is_refused_by_name_and_what_just_fits_is_kept() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let widest = SignIn {
            issuer: "𝄞".repeat(500),
            subject: "𝄞".repeat(255),
            display_name: Some("𝄞".repeat(100)),
            roles: Role::ALL.to_vec(),
        };
        let user = process.accounts.sign_in(&widest).await.unwrap().user;
        assert_eq!(process.accounts.find(&widest.issuer, &widest.subject).await.unwrap(), user);
        assert_eq!(user.display_name, widest.display_name);
        let wrong = [
            (SignIn { issuer: "i".repeat(501), ..sign_in("s") }, "issuer must have 1 to 500 characters"),
            (SignIn { issuer: String::new(), ..sign_in("s") }, "issuer must have 1 to 500 characters"),
            (sign_in(&"s".repeat(256)), "subject must have 1 to 255 characters"),
            (sign_in("a\nb"), "subject must not hold control characters"),
            (
                SignIn { display_name: Some("n".repeat(101)), ..sign_in("s") },
                "display_name must have 1 to 100 characters",
            ),
        ];
        for (wrong, text) in wrong {
            let error = process.accounts.sign_in(&wrong).await.unwrap_err();
            assert_eq!((error.code(), error.to_string().as_str()), (Code::InvalidArgument, text));
        }
        assert_eq!(process.count("users").await, 1);
        process.close().await;
    }
}

#[tokio::test]
async fn who_never_signed_in_is_not_found() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (accounts, nobody) = (&process.accounts, UserId::generate());
        let found = accounts.find("https://id.example.com", "ada").await.unwrap_err();
        assert!(matches!(found, Error::UnknownIdentity) && found.code() == Code::NotFound);
        let missing = [
            accounts.user(nobody).await.unwrap_err(),
            accounts.accounts(nobody).await.unwrap_err(),
            accounts.create_account(nobody, "default").await.unwrap_err(),
            accounts.link(nobody, "i", "s", ACTOR).await.unwrap_err(),
            accounts.unlink(nobody, "i", "s", ACTOR).await.unwrap_err(),
            accounts.ban(nobody, "reason", ACTOR).await.unwrap_err(),
            accounts.unban(nobody, ACTOR).await.unwrap_err(),
            accounts.erase(nobody, ACTOR).await.unwrap_err(),
            accounts.audit(nobody, 10).await.unwrap_err(),
        ];
        for error in missing {
            assert!(matches!(error, Error::NotFound(user) if user == nobody), "{error:?}");
        }
        for table in ["users", "identities", "accounts", "user_audit", "outbox"] {
            assert_eq!(process.count(table).await, 0, "{table}");
        }
        process.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_question_tells_who_somebody_is_and_which_accounts_they_have() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let accounts = &process.accounts;
        // The first time, when the user is made; then when nothing is new.
        let (user, first) = accounts.sign_in_with_accounts(&sign_in("ada")).await.unwrap();
        assert_eq!(first.iter().map(|account| account.name.as_str()).collect::<Vec<_>>(), [DEFAULT_ACCOUNT]);
        let second = accounts.create_account(user.id, "another").await.unwrap();
        let (again, both) = accounts.sign_in_with_accounts(&sign_in("ada")).await.unwrap();
        assert_eq!((again, both), (user.clone(), vec![first[0].clone(), second]));
        assert_eq!(accounts.accounts(user.id).await.unwrap().len(), 2);
        // What is new is written down.
        let named = account::SignIn { display_name: Some("Ada".to_owned()), ..sign_in("ada") };
        assert_eq!(
            accounts.sign_in_with_accounts(&named).await.unwrap().0.display_name.as_deref(),
            Some("Ada")
        );
        assert_eq!(accounts.user(user.id).await.unwrap().display_name.as_deref(), Some("Ada"));
        // Nobody banned gets in; somebody erased is somebody new.
        accounts.ban(user.id, "cheating", "service/test").await.unwrap();
        let refused = accounts.sign_in_with_accounts(&named).await.unwrap_err();
        assert!(matches!(refused, Error::Banned { .. }), "{refused:?}");
        accounts.erase(user.id, "service/test").await.unwrap();
        let (other, accounts_of_other) = accounts.sign_in_with_accounts(&named).await.unwrap();
        assert!(other.id != user.id && accounts_of_other.len() == 1);
        process.close().await;
    }
}
