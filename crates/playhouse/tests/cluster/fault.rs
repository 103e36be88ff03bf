//! What is done to the cluster.

use std::fmt;
use std::time::{Duration, Instant};

use testkit::{NatsCluster, eventually};
use tokio::time::sleep;

use super::PATIENCE;
use super::shop::STREAM;

/// Less than any stream has.
const FULL: u64 = 1;

/// How long we may take to be as before.
const OURS: Duration = Duration::from_secs(5);

/// When a fault was over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mended {
    /// Enough servers could work again.
    pub(crate) at: Instant,
    /// One of them led the stream.
    pub(crate) led: Instant,
}

/// A fault of the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The leader of the stream is killed, and started again later. The others go on.
    LeaderKilled,
    /// Both followers stand still: there is no quorum, and nobody's connection is cut.
    FollowersPaused(Duration),
    /// Both followers are killed, half-way the leader too, then all are started.
    AllKilled(Duration),
    /// The account may store nothing more.
    AccountFull(Duration),
}

impl Fault {
    /// Breaks the cluster, waits, and mends it.
    pub(crate) async fn happen(self, cluster: &mut NatsCluster) -> Mended {
        let leader = leader(cluster).await;
        let followers = [1, 2].map(|n| (leader + n) % 3);
        match self {
            Self::LeaderKilled => {
                cluster.node(leader).kill().await.unwrap();
                eventually("another one leads", PATIENCE, async || cluster.leader_of(STREAM).await).await;
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
                cluster.limit_storage(Some(FULL)).await.unwrap();
                sleep(time).await;
                cluster.limit_storage(None).await.unwrap();
            }
        }
        let at = Instant::now();
        self::leader(cluster).await;
        Mended { at, led: Instant::now() }
    }

    /// How soon the rate has to be back: after a lost quorum in twice the time, because the servers elect a leader first. They take up to
    /// 9 s for that, or more if nobody has the majority; what is left is ours.
    pub(crate) fn deadline(self, mended: Mended) -> Instant {
        match self {
            Self::LeaderKilled | Self::AccountFull(_) => mended.at + OURS,
            Self::FollowersPaused(_) | Self::AllKilled(_) => (mended.at + 2 * OURS).max(mended.led + OURS),
        }
    }
}

async fn leader(cluster: &NatsCluster) -> usize {
    eventually("somebody leads the stream", PATIENCE, async || cluster.leader_of(STREAM).await).await
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
