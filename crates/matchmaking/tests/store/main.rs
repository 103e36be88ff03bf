//! What a store of tickets promises: one suite for the store in process and for both ways to use Redis, and what is true of
//! Redis alone.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

/// Makes one test per store of each function.
macro_rules! for_every_store {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::setup::Setup::memory()).await;
            })*
        }
        mod in_redis_by_script {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let redis = testkit::need!(testkit::Redis::shared().await);
                super::$name(crate::setup::Setup::script(redis)).await;
            })*
        }
        mod in_redis_by_lock {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let redis = testkit::need!(testkit::Redis::shared().await);
                super::$name(crate::setup::Setup::lock(redis)).await;
            })*
        }
        mod in_redis_with_declared_keys {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                use matchmaking::store::Coordination::Script;
                let redis = testkit::need!(testkit::Redis::shared_cluster().await);
                let keys = testkit::DeclaredKeysProxy::start(redis, crate::setup::LEARNED).await;
                super::$name(crate::setup::Setup::declared(redis, &keys, Script)).await;
                keys.assert_no_undeclared_keys();
            })*
        }
    };
}

mod abandoning;
mod assigners;
mod assigning;
mod backfill_chance;
mod backfills;
mod cancelling;
mod claims;
mod declared_keys;
mod events;
mod fetching;
mod joining;
mod layout;
mod lock;
mod other_programs;
mod outages;
mod parties;
mod players;
mod pools;
mod presence;
mod publishing;
mod querying;
mod querying_redis;
mod reading;
mod ready;
mod ready_chance;
mod room_chance;
mod rooms;
mod rueidislock;
mod servers;
mod setup;
mod watching;
