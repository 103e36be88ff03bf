//! The steps of all services: the timeline of a player, the trace of one thing.

use std::time::Duration;

use base::error::chain;
use futures::future::join_all;
use screens::{Step, Subject};
use tokio::time::timeout;

use crate::{Provided, Services};

/// How long a service may take for its steps. A store that does not answer then costs its own steps, and not the whole timeline.
const DEADLINE: Duration = Duration::from_secs(1);

impl Services {
    /// Collects the steps of a subject from all services concurrently, each with a deadline of a second. Returns at most `limit` of each
    /// service, from the oldest to the newest (see [`Step::sort`]), and the names of the services that failed or were too slow.
    pub async fn steps(
        self,
        provided: &Provided,
        subject: &Subject,
        limit: u32,
    ) -> (Vec<Step>, Vec<&'static str>) {
        let of_each = self.iter().map(|service| async move {
            (service.name(), timeout(DEADLINE, service.steps(provided, subject, limit)).await)
        });
        let (mut steps, mut failed) = (Vec::new(), Vec::new());
        for (name, result) in join_all(of_each).await {
            match result {
                Ok(Ok(of_service)) => steps.extend(of_service),
                Ok(Err(error)) => {
                    tracing::warn!(service = name, error = chain(&*error), "steps cannot be read");
                    failed.push(name);
                }
                Err(_) => {
                    tracing::warn!(service = name, "steps were not read within a second");
                    failed.push(name);
                }
            }
        }
        // Steps of one moment and stage keep the order of their services. So two reads of the same state are equal.
        Step::sort(&mut steps);
        (steps, failed)
    }
}

#[cfg(test)]
mod tests {
    use base::Timestamp;
    use futures::FutureExt;
    use futures::future::{BoxFuture, LocalBoxFuture};

    use super::*;
    use crate::{Context, OpenError, Service, ServiceParts, StatusError};

    /// A service whose steps are at these milliseconds. None: it fails; an empty list: it never answers.
    struct Fixed(&'static str, Option<&'static [i64]>);

    impl Service for Fixed {
        fn name(&self) -> &'static str {
            self.0
        }

        fn steps<'a>(
            &'a self,
            _: &'a Provided,
            _: &'a Subject,
            _: u32,
        ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
            let step = |at: &i64| Step::new(Timestamp::from_millis(*at), "sql", self.0, "done");
            async move {
                match self.1 {
                    None => Err("broken".into()),
                    Some([]) => std::future::pending().await,
                    Some(times) => Ok(times.iter().map(step).collect()),
                }
            }
            .boxed()
        }

        fn open<'a>(&'a self, _: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
            unreachable!("these services are never opened")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn steps_are_sorted_and_a_broken_or_slow_service_costs_only_its_own() {
        static SERVICES: Services = Services(&[
            &Fixed("shop", Some(&[30, 10])),
            &Fixed("slow", Some(&[])),
            &Fixed("broken", None),
            &Fixed("stock", Some(&[20, 10])),
        ]);
        let provided = Provided::default();
        let (steps, failed) = SERVICES.steps(&provided, &Subject::Id("x".to_owned()), 9).await;
        let found: Vec<_> = steps.iter().map(|step| (step.at.as_millis(), step.part)).collect();
        assert_eq!(found, [(10, "shop"), (10, "stock"), (20, "stock"), (30, "shop")]);
        assert_eq!(failed, ["slow", "broken"]);
    }
}
