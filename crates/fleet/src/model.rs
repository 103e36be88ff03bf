//! Processes and missing roles. Nothing here knows a store.

use std::time::Duration;

use ::config::Choice;
use base::Timestamp;
use base::finding::Finding;
use base::id::ProcessId;
use serde::Serialize;
use service::{Role, Roles};

/// A process is gone after this many missed heartbeats. A single heartbeat may be late.
pub const MAX_MISSED_HEARTBEATS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    Running,
    /// It stopped without removing its row: killed, crashed, or disconnected from the database.
    Gone,
}

/// A process according to its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessView {
    pub id: ProcessId,
    pub version: String,
    /// The names of its roles. A newer version may have roles that this one does not know.
    pub roles: Vec<String>,
    /// The address of its admin listener.
    pub admin: String,
    pub heartbeat: Duration,
    pub started_at: Timestamp,
    pub seen_at: Timestamp,
}

impl ProcessView {
    /// Returns its state at a time of the database's clock.
    pub fn state(&self, now: Timestamp) -> ProcessState {
        let silent = now.as_millis().saturating_sub(self.seen_at.as_millis());
        let limit = self.heartbeat.saturating_mul(MAX_MISSED_HEARTBEATS).as_millis();
        if i128::from(silent) > limit.try_into().unwrap_or(i128::MAX) {
            ProcessState::Gone
        } else {
            ProcessState::Running
        }
    }

    fn has(&self, role: Role) -> bool {
        self.roles.iter().any(|word| word == role.word())
    }
}

/// Returns the expected roles that no running process has.
pub fn missing_roles(processes: &[ProcessView], expected: &Roles, now: Timestamp) -> Vec<Role> {
    let is_running = |role: &Role| {
        processes.iter().any(|process| process.state(now) == ProcessState::Running && process.has(*role))
    };
    expected.iter().filter(|role| !is_running(role)).collect()
}

/// Checks for missing roles, for processes that did not stop cleanly, and for mixed versions.
pub(crate) fn check_processes(processes: &[ProcessView], expected: &Roles, now: Timestamp) -> Vec<Finding> {
    let running: Vec<&ProcessView> =
        processes.iter().filter(|process| process.state(now) == ProcessState::Running).collect();
    if running.is_empty() {
        return vec![Finding::warning("no process is running", "start one with `playhouse serve`")];
    }
    let mut findings: Vec<Finding> =
        missing_roles(processes, expected, now).into_iter().map(missing).collect();
    if findings.is_empty() {
        findings
            .push(Finding::good(format!("every expected role has a process ({} running)", running.len())));
    }
    for gone in processes.iter().filter(|process| process.state(now) == ProcessState::Gone) {
        // A process that has restarted at the same address needs no attention.
        if running.iter().any(|process| process.admin == gone.admin && process.started_at > gone.seen_at) {
            continue;
        }
        let (id, roles, ago) = (gone.id, gone.roles.join(","), now.distance(gone.seen_at).as_secs());
        let what = format!("process {id} ({roles}) has been gone for {ago} s: it did not stop cleanly");
        findings.push(Finding::warning(
            what,
            "look at its log; other processes take over its work when its leases expire",
        ));
    }
    let mut versions: Vec<&str> = running.iter().map(|process| process.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        let what = format!("several versions are running: {}", versions.join(", "));
        findings.push(Finding::warning(what, "finish the rollout of the newer version"));
    }
    findings
}

fn missing(role: Role) -> Finding {
    let what = format!("no process has the role {}: {}", role.word(), consequence(role));
    let advice = format!(
        "start one with `playhouse serve --roles {}`; if you do not need it, remove it from process.expected_roles",
        role.word()
    );
    Finding::failure(what, advice)
}

/// Describes what does not work while no process has the role.
const fn consequence(role: Role) -> &'static str {
    match role {
        Role::Gateway => "players cannot connect, and drops admit no player",
        Role::ServiceApi => "shops and game servers cannot connect",
        Role::MatchmakingFrontend => "Open Match clients cannot connect",
        Role::MatchmakingEngine => "tickets wait, and no match is created",
        Role::OutboxRelay => {
            "events stay in the database, and players are not notified of purchases and matches"
        }
        Role::Notifier => "events stay on the bus; no inbox, stream or webhook receives them",
    }
}

#[cfg(test)]
mod tests {
    use base::finding::Verdict;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn process(roles: &str, seen_ago: i64) -> ProcessView {
        ProcessView {
            id: ProcessId::generate(),
            version: "1".to_owned(),
            roles: roles.split(',').map(str::to_owned).collect(),
            admin: "127.0.0.1:1".to_owned(),
            heartbeat: Duration::from_secs(5),
            started_at: Timestamp::from_millis(0),
            seen_at: Timestamp::from_millis(NOW.as_millis() - seen_ago),
        }
    }

    fn roles(words: &str) -> Roles {
        ::config::Setting::parse(&::config::Value::Word(words.to_owned())).unwrap()
    }

    #[test]
    fn process_is_gone_after_three_missed_heartbeats() {
        assert_eq!(process("gateway", 15_000).state(NOW), ProcessState::Running);
        assert_eq!(process("gateway", 15_001).state(NOW), ProcessState::Gone);
        assert_eq!(process("gateway", -60_000).state(NOW), ProcessState::Running, "the clock was set back");
    }

    #[test]
    fn role_of_a_gone_process_is_missing() {
        let processes = [process("gateway,notifier", 0), process("matchmaking-engine,newer-role", 60_000)];
        let expected = roles("gateway,matchmaking-engine");
        assert_eq!(missing_roles(&processes, &expected, NOW), [Role::MatchmakingEngine]);
        let findings = check_processes(&processes, &expected, NOW);
        assert_eq!(findings[0].verdict, Verdict::Failure);
        assert!(
            findings[0].what.contains("matchmaking-engine")
                && findings[1].what.contains("has been gone for 60 s")
        );
        let restarted = ProcessView { started_at: NOW, ..process("matchmaking-engine", 0) };
        let [first, second] = processes;
        let after_restart = check_processes(&[first.clone(), second, restarted], &expected, NOW);
        assert!(
            after_restart.iter().all(|finding| finding.verdict == Verdict::Good),
            "replaced by the restarted process: {after_restart:?}"
        );
        let healthy = check_processes(&[first], &roles("gateway"), NOW);
        assert!(healthy.iter().all(|finding| finding.verdict == Verdict::Good), "{healthy:?}");
    }

    #[test]
    fn no_running_process_is_only_a_warning() {
        let findings = check_processes(&[process("gateway", 60_000)], &roles("all"), NOW);
        assert_eq!(findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>(), [Verdict::Warning]);
    }
}
