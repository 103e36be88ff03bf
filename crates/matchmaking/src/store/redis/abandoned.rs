//! Abandoned matches: a key for each, which `assign.lua` checks.

use bytes::Bytes;

use ::redis::streams::StreamRangeReply;

use super::Redis;
use crate::error::Error;
use crate::model::MatchId;
use crate::store::ABANDONED_MARK_TTL;

/// How many batches are read at once. A batch holds up to a few hundred matches.
const READ_AT_ONCE: usize = 100;

impl Redis {
    pub(in crate::store) async fn mark_abandoned(&self, ids: &[MatchId]) -> Result<(), Error> {
        let mut all = ::redis::pipe();
        for id in ids {
            let set = all.cmd("SET").arg(self.keys.abandoned(id)).arg("1");
            set.arg("PX").arg(ABANDONED_MARK_TTL.as_millis() as u64).ignore();
        }
        Ok(all.query_async(&mut self.servers.primary()).await?)
    }

    pub(in crate::store) async fn unrecorded_matches(&self) -> Result<Vec<Bytes>, Error> {
        let (mut all, mut from) = (Vec::new(), "-".to_owned());
        loop {
            let mut command = ::redis::cmd("XRANGE");
            command.arg(self.keys.events()).arg(&from).arg("+").arg("COUNT").arg(READ_AT_ONCE);
            let read: StreamRangeReply = command.query_async(&mut self.servers.primary()).await?;
            let Some(last) = read.ids.last() else { return Ok(all) };
            // Continue after the last one.
            from = format!("({}", last.id);
            all.extend(read.ids.iter().map(|entry| entry.get::<Bytes>("made").unwrap_or_default()));
        }
    }
}
