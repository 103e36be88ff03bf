//! The engine, its plugins and the recorder, over both stores.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod allocation;
mod assigners;
mod backfills;
mod chance;
mod copying;
mod faults;
mod fleet;
mod loops;
mod matches;
mod metrics;
mod outages;
mod plugins;
mod ready;
mod recorder;
mod refusing;
mod rules;
mod webhook;
mod why;
mod world;

use std::time::Duration;

/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs each of these tests on both stores.
macro_rules! on_both_stores {
    ($($test:ident,)*) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                super::$test(crate::world::World::in_memory()).await;
            })*
        }

        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                let redis = testkit::need!(testkit::Redis::shared().await);
                super::$test(crate::world::World::in_redis(redis).await).await;
            })*
        }
    };
}
pub(crate) use on_both_stores;
