//! Acquiring and releasing, per second.

use testkit::SqlServer;
use testkit::bench::Report;

use super::note;
use super::worker::{Place, Way, Wish};

/// Returns ours over naive at 16 tasks.
pub(crate) async fn run(server: &SqlServer, report: &mut Report) -> f64 {
    let database = server.database().await;
    let place = Place::new(&database).await;
    let mut at_16 = 0.0;
    for tasks in [1, 16, 64] {
        let ways = [Way::Ours, Way::Naive, Way::Select1, Way::Bare].map(|way| (way, Wish::Anything));
        let rates = place.compare(tasks, &ways).await;
        let over_naive = note(report, "one resource", tasks, rates[0], rates[1], "naive");
        let of_limit = note(report, "one resource", tasks, rates[0], rates[2], "SELECT 1");
        let over_bare = note(report, "one resource", tasks, rates[0], rates[3], "bare statements");
        report.measure(&format!("over_naive_{tasks}"), over_naive);
        report.measure(&format!("over_bare_{tasks}"), over_bare);
        report.measure(&format!("of_select1_{tasks}"), of_limit);
        if tasks == 16 {
            at_16 = over_naive;
        }
    }
    for tasks in [1, 16] {
        let ways = [Way::Ours, Way::Naive].map(|way| (way, Wish::Several(20)));
        let rates = place.compare(tasks, &ways).await;
        let ratio = note(report, "20 resources", tasks, rates[0], rates[1], "naive");
        report.measure(&format!("of_20_{tasks}"), ratio);
    }
    for tasks in [2, 16, 64] {
        let ways = [Way::Ours, Way::Naive].map(|way| (way, Wish::TheSame));
        let rates = place.compare(tasks, &ways).await;
        let ratio = note(report, "hand-over of one row", tasks, rates[0], rates[1], "naive");
        report.measure(&format!("handover_{tasks}"), ratio);
    }
    at_16
}
