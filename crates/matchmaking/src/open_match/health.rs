//! gRPC health: `NOT_SERVING` while the store of tickets does not answer.

use std::sync::Arc;
use std::time::Duration;

use connectrpc::ConnectError;
use connectrpc_health::{Checker, Status, StatusStream};
use futures::stream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::store::Store;

/// How long an answer of the store counts. Bounds the pings, however many clients ask.
const FRESH_FOR: Duration = Duration::from_millis(500);

/// How long the store may take to answer. Shorter than the deadlines of common probes.
const PATIENCE: Duration = Duration::from_millis(800);

/// Checks the store of tickets, which all services need.
#[derive(Clone)]
pub(super) struct StoreChecker(Arc<Inner>);

struct Inner {
    store: Store,
    services: Vec<&'static str>,
    /// The last answer. The lock is held during a ping, so that concurrent callers share it.
    last: Mutex<Option<(Instant, Status)>>,
}

impl StoreChecker {
    pub(super) fn new(store: Store, services: &[&'static str]) -> Self {
        Self(Arc::new(Inner { store, services: services.to_vec(), last: Mutex::default() }))
    }

    /// Fails for a name that is not served. The empty name stands for all services.
    fn require_known(&self, service: &str) -> Result<(), ConnectError> {
        if service.is_empty() || self.0.services.contains(&service) {
            return Ok(());
        }
        Err(ConnectError::not_found(format!("unknown service {service}")))
    }

    async fn status(&self) -> Status {
        let mut last = self.0.last.lock().await;
        if let Some((at, status)) = *last
            && at.elapsed() < FRESH_FOR
        {
            return status;
        }
        let status = match timeout(PATIENCE, self.0.store.ping()).await {
            Ok(Ok(())) => Status::Serving,
            Ok(Err(_)) | Err(_) => Status::NotServing,
        };
        *last = Some((Instant::now(), status));
        status
    }

    /// Waits until the status differs from `known`.
    async fn change(&self, known: Option<Status>) -> Status {
        loop {
            let status = self.status().await;
            if Some(status) != known {
                return status;
            }
            sleep(FRESH_FOR).await;
        }
    }
}

impl Checker for StoreChecker {
    async fn check(&self, service: &str) -> Result<Status, ConnectError> {
        self.require_known(service)?;
        Ok(self.status().await)
    }

    async fn watch(&self, service: &str) -> Result<StatusStream, ConnectError> {
        self.require_known(service)?;
        Ok(StatusStream::new(stream::unfold((self.clone(), None), async |(checker, known)| {
            let status = checker.change(known).await;
            Some((status, (checker, Some(status))))
        })))
    }
}
