//! Directors, with match functions and evaluators that are real gRPC and REST servers, over both stores.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod assigning;
mod backfills;
mod cycles;
mod fetching;
#[path = "../open_match/listener.rs"]
mod listener;
mod servers;
mod wire;
mod world;

use std::time::Duration;

/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs each of these tests on both stores, and over gRPC and REST. What follows `in_process` is not visible on the wire: a match
/// that was sent counts as delivered.
macro_rules! on_both_stores {
    ($($test:ident,)* $(; in_process: $($local:ident,)*)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                super::$test(crate::world::World::in_memory()).await;
            })*
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $local() {
                super::$local(crate::world::World::in_memory()).await;
            })*)?
        }

        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                let redis = testkit::need!(testkit::Redis::shared().await);
                super::$test(crate::world::World::in_redis(redis).await).await;
            })*
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $local() {
                let redis = testkit::need!(testkit::Redis::shared().await);
                super::$local(crate::world::World::in_redis(redis).await).await;
            })*)?
        }

        mod grpc {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                super::$test(crate::world::World::in_memory().over(crate::wire::Wire::Grpc)).await;
            })*
        }

        mod rest {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                super::$test(crate::world::World::in_memory().over(crate::wire::Wire::Rest)).await;
            })*
        }
    };
}
pub(crate) use on_both_stores;
