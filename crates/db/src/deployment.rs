//! Settings that every process of a deployment must agree on.

use base::id::DeploymentId;

use crate::error::bounded;
use crate::{Db, Error};

impl Db {
    /// Records `ours` unless a value is recorded already, and returns the recorded value. The first process decides. A process that
    /// cannot work with the returned value must not start.
    pub async fn agree_on_setting(&self, name: &str, ours: &str) -> Result<String, Error> {
        const SQLITE: &str =
            "INSERT INTO deployment_settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING";
        // Not INSERT IGNORE, which would truncate a value that does not fit.
        const MYSQL: &str = "INSERT INTO deployment_settings (name, value) VALUES (?, ?)
            ON DUPLICATE KEY UPDATE name = deployment_settings.name";
        const READ: &str = "SELECT value FROM deployment_settings WHERE name = ?";
        let insert = self.dialect().pick(SQLITE, MYSQL);
        let agreeing = async {
            let mut tx = self.begin().await?;
            crate::on!(tx, raw => { sqlx::query(insert).bind(name).bind(ours).execute(raw).await?; });
            let agreed = crate::on!(tx, raw => sqlx::query_scalar(READ).bind(name).fetch_one(raw).await?);
            tx.commit().await?;
            Ok::<_, Error>(agreed)
        };
        bounded(self.limit, agreeing).await
    }

    /// Returns the id of the deployment that this database belongs to. Creates it on first use.
    pub async fn deployment_id(&self) -> Result<DeploymentId, Error> {
        let ours = DeploymentId::generate();
        let agreed = self.agree_on_setting("deployment_id", &ours.to_string()).await?;
        agreed.parse().map_err(|_| Error::Deployment(agreed))
    }
}
