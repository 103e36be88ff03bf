//! Locks acquired and released per second.

use testkit::SqlServer;
use testkit::bench::Report;

use super::add_row;
use super::worker::{LockDatabase, Method, Targets};

/// Returns the ratio to the naive client at 16 tasks.
pub(crate) async fn run(server: &SqlServer, report: &mut Report) -> f64 {
    let database = server.database().await;
    let target = LockDatabase::new(server, &database).await;
    let mut at_16 = 0.0;
    for tasks in [1, 16, 64] {
        let methods = [Method::Ours, Method::Naive, Method::Select1, Method::Bare]
            .map(|method| (method, Targets::Anything));
        let found = target.compare(tasks, &methods).await;
        let (ours, naive) = (found[0], found[1]);
        let over_naive = add_row(report, "one resource", tasks, ours.rate, naive.rate, "naive");
        let of_limit = add_row(report, "one resource", tasks, ours.rate, found[2].rate, "SELECT 1");
        let over_bare = add_row(report, "one resource", tasks, ours.rate, found[3].rate, "bare statements");
        report.measure(&format!("over_naive_{tasks}"), over_naive);
        report.measure(&format!("of_select1_{tasks}"), of_limit);
        report.measure(&format!("over_bare_{tasks}"), over_bare);
        report.measure(&format!("cpu_us_{tasks}"), ours.micros);
        report.measure(&format!("naive_cpu_us_{tasks}"), naive.micros);
        if tasks == 16 {
            at_16 = over_naive;
        }
    }
    for (what, key, targets, crowds) in [
        ("20 resources", "of_20", Targets::Several(20), &[1, 16][..]),
        ("hand-over of one row", "handover", Targets::TheSame, &[2, 16, 64]),
    ] {
        for tasks in crowds {
            let found =
                target.compare(*tasks, &[Method::Ours, Method::Naive].map(|method| (method, targets))).await;
            let ratio = add_row(report, what, *tasks, found[0].rate, found[1].rate, "naive");
            report.measure(&format!("{key}_{tasks}"), ratio);
        }
    }
    at_16
}
