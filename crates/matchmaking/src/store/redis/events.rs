//! Matches on their way to the bus: a stream that one consumer group reads.

use std::time::Duration;

use ::redis::streams::{StreamId, StreamReadReply};
use bytes::Bytes;

use super::Redis;
use crate::error::Error;
use crate::store::Entry;

const GROUP: &str = "relay";
/// The field of an entry that holds the encoded matches.
const MADE: &str = "made";

impl Redis {
    pub(in crate::store) async fn take_events(
        &self,
        consumer: &str,
        max: usize,
        retake: Duration,
    ) -> Result<Vec<Entry>, Error> {
        match self.try_to_take(consumer, max, retake).await {
            // The server is new, or has lost its data.
            Err(error) if is_without_group(&error) => {
                self.make_group().await?;
                self.try_to_take(consumer, max, retake).await
            }
            taken => taken,
        }
    }

    async fn try_to_take(&self, consumer: &str, max: usize, retake: Duration) -> Result<Vec<Entry>, Error> {
        let mut claim = ::redis::cmd("XAUTOCLAIM");
        claim.arg(self.keys.events()).arg(GROUP).arg(consumer);
        claim.arg(retake.as_millis() as u64).arg("0-0").arg("COUNT").arg(max).arg("JUSTID");
        let read = |from: &str| {
            let mut read = ::redis::cmd("XREADGROUP");
            read.arg("GROUP").arg(GROUP).arg(consumer).arg("COUNT").arg(max);
            read.arg("STREAMS").arg(self.keys.events()).arg(from);
            read
        };
        // What others left becomes ours; what is ours and not done with comes before what is new.
        let ours = read("0");
        let (mut first, mut second) = (self.servers.primary(), self.servers.primary());
        let (_, ours): (::redis::Value, Option<StreamReadReply>) =
            tokio::try_join!(claim.query_async(&mut first), ours.query_async(&mut second))?;
        let ours = entries(ours);
        if ours.is_empty() { Ok(entries(read(">").query_async(&mut first).await?)) } else { Ok(ours) }
    }

    async fn make_group(&self) -> Result<(), Error> {
        let mut command = ::redis::cmd("XGROUP");
        command.arg("CREATE").arg(self.keys.events()).arg(GROUP).arg("0").arg("MKSTREAM");
        match command.query_async(&mut self.servers.primary()).await {
            // Another relay was faster.
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
            made => Ok(made?),
        }
    }

    pub(in crate::store) async fn events_done(&self, entries: &[Entry]) -> Result<(), Error> {
        let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let mut both = ::redis::pipe();
        both.atomic();
        both.cmd("XACK").arg(self.keys.events()).arg(GROUP).arg(&keys).ignore();
        both.cmd("XDEL").arg(self.keys.events()).arg(&keys).ignore();
        Ok(both.query_async(&mut self.servers.primary()).await?)
    }

    pub(in crate::store) async fn events_waiting(&self) -> Result<u64, Error> {
        Ok(::redis::cmd("XLEN").arg(self.keys.events()).query_async(&mut self.servers.primary()).await?)
    }
}

fn entries(reply: Option<StreamReadReply>) -> Vec<Entry> {
    reply.into_iter().flat_map(|reply| reply.keys).flat_map(|stream| stream.ids).map(entry).collect()
}

fn entry(entry: StreamId) -> Entry {
    Entry { made: entry.get::<Bytes>(MADE).unwrap_or_default(), key: entry.id }
}

fn is_without_group(error: &Error) -> bool {
    matches!(error, Error::Store(hot::Error::Command(error)) if error.code() == Some("NOGROUP"))
}
