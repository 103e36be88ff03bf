//! Acquiring and releasing, per second.

use testkit::SqlServer;
use testkit::bench::Report;

use super::note;
use super::worker::{Place, Way, Wish};

/// Returns ours over naive at 16 tasks.
pub(crate) async fn run(server: &SqlServer, report: &mut Report) -> f64 {
    let database = server.database().await;
    let place = Place::new(server, &database).await;
    let mut at_16 = 0.0;
    for tasks in [1, 16, 64] {
        let ways = [Way::Ours, Way::Naive, Way::Select1, Way::Bare].map(|way| (way, Wish::Anything));
        let found = place.compare(tasks, &ways).await;
        let (ours, naive) = (found[0], found[1]);
        let over_naive = note(report, "one resource", tasks, ours.rate, naive.rate, "naive");
        let of_limit = note(report, "one resource", tasks, ours.rate, found[2].rate, "SELECT 1");
        let over_bare = note(report, "one resource", tasks, ours.rate, found[3].rate, "bare statements");
        report.measure(&format!("over_naive_{tasks}"), over_naive);
        report.measure(&format!("of_select1_{tasks}"), of_limit);
        report.measure(&format!("over_bare_{tasks}"), over_bare);
        report.measure(&format!("cpu_us_{tasks}"), ours.micros);
        report.measure(&format!("naive_cpu_us_{tasks}"), naive.micros);
        if tasks == 16 {
            at_16 = over_naive;
        }
    }
    for (what, key, wish, crowds) in [
        ("20 resources", "of_20", Wish::Several(20), &[1, 16][..]),
        ("hand-over of one row", "handover", Wish::TheSame, &[2, 16, 64]),
    ] {
        for tasks in crowds {
            let found = place.compare(*tasks, &[Way::Ours, Way::Naive].map(|way| (way, wish))).await;
            let ratio = note(report, what, *tasks, found[0].rate, found[1].rate, "naive");
            report.measure(&format!("{key}_{tasks}"), ratio);
        }
    }
    at_16
}
