//! The faults that the test injects into the NATS cluster.

use std::fmt;
use std::time::{Duration, Instant};

use testkit::{NatsCluster, eventually};
use tokio::time::sleep;

use super::PATIENCE;
use super::shop::STREAM;

/// A storage limit in bytes that any stream exceeds.
const EXCEEDED_LIMIT: u64 = 1;

/// How long the fleet may take to reach the offered rate again.
const RECOVERY_LIMIT: Duration = Duration::from_secs(5);

/// When a fault ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultEnd {
    /// When enough servers were running again.
    pub(crate) at: Instant,
    /// When the stream had a leader again.
    pub(crate) leader_at: Instant,
}

/// A fault of the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The leader of the stream is killed, and restarted later. The other servers keep running.
    LeaderKilled,
    /// Both followers are paused: the quorum is lost, but no connection is closed.
    FollowersPaused(Duration),
    /// Both followers are killed, the leader half-way through, and then all are restarted.
    AllKilled(Duration),
    /// The storage limit of the account is reached.
    AccountFull(Duration),
}

impl Fault {
    /// Injects the fault, waits and ends it. Returns once the stream has a leader.
    pub(crate) async fn inject(self, cluster: &mut NatsCluster) -> FaultEnd {
        let leader = leader(cluster).await;
        let followers = [1, 2].map(|n| (leader + n) % 3);
        match self {
            Self::LeaderKilled => {
                cluster.node(leader).kill().await.unwrap();
                eventually("another server leads the stream", PATIENCE, async || {
                    cluster.leader_of(STREAM).await
                })
                .await;
            }
            Self::FollowersPaused(time) => {
                for follower in followers {
                    cluster.node(follower).pause().await.unwrap();
                }
                sleep(time).await;
                for follower in followers {
                    cluster.node(follower).resume().unwrap();
                }
            }
            Self::AllKilled(time) => {
                for follower in followers {
                    cluster.node(follower).kill().await.unwrap();
                }
                sleep(time / 2).await;
                cluster.node(leader).kill().await.unwrap();
                sleep(time / 2).await;
                cluster.start_again().await.unwrap();
            }
            Self::AccountFull(time) => {
                cluster.limit_storage(Some(EXCEEDED_LIMIT)).await.unwrap();
                sleep(time).await;
                cluster.limit_storage(None).await.unwrap();
            }
        }
        let at = Instant::now();
        self::leader(cluster).await;
        FaultEnd { at, leader_at: Instant::now() }
    }

    /// Returns when the fleet must be back at the offered rate. After a lost quorum it has twice the time, because the servers elect a
    /// leader first. That takes up to 9 s, or longer if no server wins a majority.
    pub(crate) fn deadline(self, end: FaultEnd) -> Instant {
        match self {
            Self::LeaderKilled | Self::AccountFull(_) => end.at + RECOVERY_LIMIT,
            Self::FollowersPaused(_) | Self::AllKilled(_) => {
                (end.at + 2 * RECOVERY_LIMIT).max(end.leader_at + RECOVERY_LIMIT)
            }
        }
    }
}

async fn leader(cluster: &NatsCluster) -> usize {
    eventually("the stream has a leader", PATIENCE, async || cluster.leader_of(STREAM).await).await
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::LeaderKilled => "leader killed",
            Self::FollowersPaused(_) => "both followers paused",
            Self::AllKilled(_) => "followers and leader killed",
            Self::AccountFull(_) => "account limit reached",
        })
    }
}
