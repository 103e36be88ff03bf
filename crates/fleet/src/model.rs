//! Processes, and what is missing among them. Nothing here knows a store.

use std::time::Duration;

use ::config::Choice;
use base::Timestamp;
use base::finding::Finding;
use base::id::ProcessId;
use serde::Serialize;
use service::{Role, Roles};

/// After so many missed heartbeats a process is gone. One may be late; three in a row are none.
pub const MISSED: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    Running,
    /// It stopped without saying so: killed, crashed, or cut off from the database.
    Gone,
}

/// A process as its row has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessView {
    pub id: ProcessId,
    pub version: String,
    /// Words of roles. A newer version may have roles that this one does not know.
    pub roles: Vec<String>,
    /// Where its admin listener is.
    pub admin: String,
    pub heartbeat: Duration,
    pub started_at: Timestamp,
    pub seen_at: Timestamp,
}

impl ProcessView {
    /// What it is at this moment of the database's clock.
    pub fn state(&self, now: Timestamp) -> ProcessState {
        let silent = now.as_millis().saturating_sub(self.seen_at.as_millis());
        let longest = self.heartbeat.saturating_mul(MISSED).as_millis();
        if i128::from(silent) > longest.try_into().unwrap_or(i128::MAX) {
            ProcessState::Gone
        } else {
            ProcessState::Running
        }
    }

    fn has(&self, role: Role) -> bool {
        self.roles.iter().any(|word| word == role.word())
    }
}

/// The expected roles that no running process has.
pub fn missing_roles(processes: &[ProcessView], expected: &Roles, now: Timestamp) -> Vec<Role> {
    let is_played = |role: &Role| {
        processes.iter().any(|process| process.state(now) == ProcessState::Running && process.has(*role))
    };
    expected.iter().filter(|role| !is_played(role)).collect()
}

/// Judges who runs.
pub(crate) fn judge(processes: &[ProcessView], expected: &Roles, now: Timestamp) -> Vec<Finding> {
    let running: Vec<&ProcessView> =
        processes.iter().filter(|process| process.state(now) == ProcessState::Running).collect();
    if running.is_empty() {
        return vec![Finding::warning("no process runs", "start one: `playhouse serve`")];
    }
    let mut findings: Vec<Finding> =
        missing_roles(processes, expected, now).into_iter().map(missing).collect();
    if findings.is_empty() {
        findings.push(Finding::good(format!("every expected role has a process ({} run)", running.len())));
    }
    for gone in processes.iter().filter(|process| process.state(now) == ProcessState::Gone) {
        // One that was started again in its place is mended.
        if running.iter().any(|process| process.admin == gone.admin && process.started_at > gone.seen_at) {
            continue;
        }
        let (id, roles, ago) = (gone.id, gone.roles.join(","), now.distance(gone.seen_at).as_secs());
        let what = format!("process {id} ({roles}) has been gone for {ago} s: it did not stop cleanly");
        findings
            .push(Finding::warning(what, "look at its log; what it held is taken over when its leases end"));
    }
    let mut versions: Vec<&str> = running.iter().map(|process| process.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        let what = format!("several versions run: {}", versions.join(", "));
        findings.push(Finding::warning(what, "finish rolling out the newer version"));
    }
    findings
}

fn missing(role: Role) -> Finding {
    let what = format!("no process has the role {}: {}", role.word(), consequence(role));
    let advice = format!(
        "start one: `playhouse serve --roles {}`; if you do without it, leave it out of process.expected_roles",
        role.word()
    );
    Finding::failure(what, advice)
}

/// What does not happen while nobody has a role.
const fn consequence(role: Role) -> &'static str {
    match role {
        Role::Gateway => "players reach nothing, and drops admit nobody",
        Role::ServiceApi => "shops and game servers reach nothing",
        Role::MatchmakingFrontend => "Open Match clients reach nothing",
        Role::MatchmakingEngine => "tickets wait and no match is made",
        Role::OutboxRelay => {
            "events stay in the database, and no player is notified of purchases and matches"
        }
        Role::Notifier => "events stay on the bus, and no inbox receives them",
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
    fn a_process_is_gone_after_three_missed_heartbeats() {
        assert_eq!(process("gateway", 15_000).state(NOW), ProcessState::Running);
        assert_eq!(process("gateway", 15_001).state(NOW), ProcessState::Gone);
        assert_eq!(
            process("gateway", -60_000).state(NOW),
            ProcessState::Running,
            "a clock that was set back"
        );
    }

    #[test]
    fn a_role_of_a_process_that_is_gone_is_nobodys() {
        let processes = [process("gateway,notifier", 0), process("matchmaking-engine,newer-role", 60_000)];
        let expected = roles("gateway,matchmaking-engine");
        assert_eq!(missing_roles(&processes, &expected, NOW), [Role::MatchmakingEngine]);
        let findings = judge(&processes, &expected, NOW);
        assert_eq!(findings[0].verdict, Verdict::Failure);
        assert!(
            findings[0].what.contains("matchmaking-engine")
                && findings[1].what.contains("has been gone for 60 s")
        );
        let again = ProcessView { started_at: NOW, ..process("matchmaking-engine", 0) };
        let [first, second] = processes;
        let mended = judge(&[first.clone(), second, again], &expected, NOW);
        assert!(
            mended.iter().all(|finding| finding.verdict == Verdict::Good),
            "another has its place: {mended:?}"
        );
        let well = judge(&[first], &roles("gateway"), NOW);
        assert!(well.iter().all(|finding| finding.verdict == Verdict::Good), "{well:?}");
    }

    #[test]
    fn where_nothing_runs_nothing_fails() {
        let findings = judge(&[process("gateway", 60_000)], &roles("all"), NOW);
        assert_eq!(findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>(), [Verdict::Warning]);
    }
}
