use account::{DEFAULT_ACCOUNT, Error, UserId, UserState};
use base::Code;
use base::error::Coded;
use futures::future::join_all;
use serde_json::json;
use testkit::need;

use super::*;

/// Signs in the same identity `times` times concurrently, round robin over the processes.
async fn sign_in_concurrently(processes: &[Process], times: usize) -> Vec<account::SignInResult> {
    let one = |n: usize| {
        let accounts = processes[n % processes.len()].accounts.clone();
        tokio::spawn(async move { accounts.sign_in(&sign_in("ada")).await.unwrap() })
    };
    join_all((0..times).map(one)).await.into_iter().map(Result::unwrap).collect()
}

/// Asserts that one user was created, with one row in each table.
async fn assert_one_user(process: &Process, signed_in: &[account::SignInResult]) {
    assert!(signed_in.iter().all(|result| result.user == signed_in[0].user));
    assert_eq!(signed_in.iter().filter(|result| result.created).count(), 1);
    for table in ["users", "identities", "accounts", "outbox"] {
        assert_eq!(process.count(table).await, 1, "{table}");
    }
    let accounts = process.accounts.accounts(signed_in[0].user.id).await.unwrap();
    assert_eq!(accounts[0].name, DEFAULT_ACCOUNT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_concurrent_first_sign_ins_create_one_user() {
    for place in need!(places().await) {
        let processes = [place.process(Vec::new()).await];
        let signed_in = sign_in_concurrently(&processes, 100).await;
        assert_one_user(&processes[0], &signed_in).await;
        processes.into_iter().next().unwrap().close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_sign_ins_in_two_processes_create_one_user() {
    for place in need!(places().await) {
        if matches!(place, Place::Sqlite(_)) {
            continue;
        }
        let processes = [place.process(Vec::new()).await, place.process(Vec::new()).await];
        let signed_in = sign_in_concurrently(&processes, 100).await;
        assert_one_user(&processes[1], &signed_in).await;
        join_all(processes.map(Process::close)).await;
    }
}

/// On MySQL, transactions that wait for a key deadlock with each other when its insert is rolled back. All but one are aborted.
#[tokio::test(flavor = "multi_thread")]
async fn rolled_back_first_sign_in_does_not_fail_waiting_ones() {
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
        let mut rolled_back = process.db.begin().await.unwrap();
        on!(rolled_back, raw => {
            sqlx::query(INSERT).bind(&key).bind(&key[..16]).execute(raw).await.unwrap();
        });
        let later = async {
            process.until_inserts_wait(&mut rolled_back).await;
            rolled_back.rollback().await.unwrap();
        };
        let (signed_in, ()) = tokio::join!(sign_in_concurrently(&processes, 30), later);
        assert_one_user(process, &signed_in).await;
        join_all(processes.map(Process::close)).await;
    }
}

#[tokio::test]
async fn first_sign_in_publishes_the_user_without_personal_data() {
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
async fn claims_update_roles_and_name() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let with = |roles: &[Role], name: Option<&str>| SignIn {
            roles: roles.to_vec(),
            display_name: name.map(ToOwned::to_owned),
            ..sign_in("ada")
        };
        let accounts = &process.accounts;
        // Roles and name in the claims, then those stored afterwards.
        type Step = (&'static [Role], Option<&'static str>, &'static [Role], Option<&'static str>);
        let steps: [Step; 5] = [
            (&[], None, &[Role::Player], None),
            (&[Role::Operator, Role::Player], Some("Ada"), &[Role::Player, Role::Operator], Some("Ada")),
            // Without a name in the claims, the stored name stays.
            (&[Role::Player, Role::Operator], None, &[Role::Player, Role::Operator], Some("Ada")),
            (&[Role::Service], Some(""), &[Role::Service], Some("Ada")),
            (&[], Some("Ada L."), &[Role::Player], Some("Ada L.")),
        ];
        for (roles, name, roles_then, name_then) in steps {
            let result = accounts.sign_in(&with(roles, name)).await.unwrap().user;
            assert_eq!((result.roles.as_slice(), result.display_name.as_deref()), (roles_then, name_then));
            assert_eq!(accounts.user(result.id).await.unwrap(), result);
        }
        assert_eq!(process.count("users").await, 1);
        assert_eq!(process.count("outbox").await, 1, "only the first sign-in is published");
        process.close().await;
    }
}

#[tokio::test]
async fn identities_are_compared_exactly() {
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
async fn too_long_field_is_refused_by_name_and_longest_one_is_kept() {
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
            (sign_in("a\nb"), "subject must not contain control characters"),
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
async fn unknown_user_is_not_found() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let (accounts, unknown) = (&process.accounts, UserId::generate());
        let found = accounts.find("https://id.example.com", "ada").await.unwrap_err();
        assert!(matches!(found, Error::UnknownIdentity) && found.code() == Code::NotFound);
        let missing = [
            accounts.user(unknown).await.unwrap_err(),
            accounts.accounts(unknown).await.unwrap_err(),
            accounts.create_account(unknown, "default").await.unwrap_err(),
            accounts.link(unknown, "i", "s", ACTOR).await.unwrap_err(),
            accounts.unlink(unknown, "i", "s", ACTOR).await.unwrap_err(),
            accounts.ban(unknown, "reason", ACTOR).await.unwrap_err(),
            accounts.unban(unknown, ACTOR).await.unwrap_err(),
            accounts.erase(unknown, ACTOR).await.unwrap_err(),
            accounts.audit(unknown, 10).await.unwrap_err(),
        ];
        for error in missing {
            assert!(matches!(error, Error::NotFound(user) if user == unknown), "{error:?}");
        }
        for table in ["users", "identities", "accounts", "user_audit", "outbox"] {
            assert_eq!(process.count(table).await, 0, "{table}");
        }
        process.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_with_accounts_returns_the_user_and_all_accounts() {
    for place in need!(places().await) {
        let process = place.process(Vec::new()).await;
        let accounts = &process.accounts;
        // The first sign-in creates the user. The second one changes nothing.
        let (user, first) = accounts.sign_in_with_accounts(&sign_in("ada")).await.unwrap();
        assert_eq!(first.iter().map(|account| account.name.as_str()).collect::<Vec<_>>(), [DEFAULT_ACCOUNT]);
        let second = accounts.create_account(user.id, "another").await.unwrap();
        let (again, both) = accounts.sign_in_with_accounts(&sign_in("ada")).await.unwrap();
        assert_eq!((again, both), (user.clone(), vec![first[0].clone(), second]));
        assert_eq!(accounts.accounts(user.id).await.unwrap().len(), 2);
        // Changed claims are stored.
        let named = account::SignIn { display_name: Some("Ada".to_owned()), ..sign_in("ada") };
        assert_eq!(
            accounts.sign_in_with_accounts(&named).await.unwrap().0.display_name.as_deref(),
            Some("Ada")
        );
        assert_eq!(accounts.user(user.id).await.unwrap().display_name.as_deref(), Some("Ada"));
        // A banned user is refused. An erased one becomes a new user.
        accounts.ban(user.id, "cheating", "service/test").await.unwrap();
        let refused = accounts.sign_in_with_accounts(&named).await.unwrap_err();
        assert!(matches!(refused, Error::Banned { .. }), "{refused:?}");
        accounts.erase(user.id, "service/test").await.unwrap();
        let (other, accounts_of_other) = accounts.sign_in_with_accounts(&named).await.unwrap();
        assert!(other.id != user.id && accounts_of_other.len() == 1);
        process.close().await;
    }
}
