//! The last failures of assigners: one hash, which expires once all failures in it are old.

use super::Redis;
use crate::error::Error;
use crate::store::{AssignerFailure, EngineName, FAILURE_RETENTION};

impl Redis {
    pub(in crate::store) async fn set_assigner_failure(
        &self,
        engine: &EngineName,
        profile: &str,
        failure: Option<&AssignerFailure>,
    ) -> Result<(), Error> {
        let (key, field) = (self.keys.assigner_failures(), format!("{engine} {profile}"));
        let mut both = ::redis::pipe();
        match failure.and_then(|failure| serde_json::to_string(failure).ok()) {
            None => both.cmd("HDEL").arg(key).arg(field).ignore(),
            Some(failure) => {
                both.atomic().cmd("HSET").arg(&key).arg(field).arg(failure).ignore();
                both.cmd("PEXPIRE").arg(&key).arg(FAILURE_RETENTION.as_millis() as u64).ignore()
            }
        };
        Ok(both.query_async::<()>(&mut self.servers.primary()).await?)
    }

    pub(in crate::store) async fn assigner_failures(&self) -> Result<Vec<AssignerFailure>, Error> {
        let mut both = ::redis::pipe();
        both.cmd("HVALS").arg(self.keys.assigner_failures());
        both.cmd("TIME");
        let (failures, (seconds, _)): (Vec<String>, (i64, i64)) =
            both.query_async(&mut self.servers.primary()).await?;
        // Failures of dead engines stay in the hash while other engines write to it.
        let oldest = seconds.saturating_mul(1000).saturating_sub(FAILURE_RETENTION.as_millis() as i64);
        let read = failures.iter().filter_map(|text| serde_json::from_str::<AssignerFailure>(text).ok());
        Ok(read.filter(|failure| failure.failed_at >= oldest).collect())
    }
}
