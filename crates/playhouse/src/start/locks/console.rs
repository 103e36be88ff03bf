//! The screen of the locks: who waits, and who blocks?

use base::counted;
use base::id::Uuid;
use hierlock::{Error, HotRow, InProcessWait, OwnedTarget, RowHolders};
use http_server::Problem;
use screens::{ActionLink, Block, Cell, Count, Section, Table, Tone, View};
use service::{Menu, Screen, ScreenRequest};

use super::admin::to_problem;
use super::waits::{CurrentWaits, GRANTS, LocksAdmin, QueuedWait, SessionWait, Waits, reason_text};

pub(super) const PATH: &str = "/console/locks";

/// How many rows each table lists.
const LISTED: usize = 50;
/// How many sessions in the way of one wait are named.
const MAX_BLOCKERS: usize = 3;

/// Returns the screen.
pub(super) fn screens() -> Vec<Screen> {
    vec![Screen::listed(Menu::System, PATH, "Locks", "Who waits, and who blocks?", read)]
}

async fn read(admin: LocksAdmin, _: ScreenRequest) -> Result<View, Problem> {
    let current = admin.current().await;
    Ok(view(current, &admin.locks.hot_rows(LISTED), &admin.process.to_string()))
}

/// Shows the waits and the hot buckets. The hot buckets are known also if the database is away.
fn view(current: Result<CurrentWaits, Error>, hot: &[HotRow], process: &str) -> View {
    let view = View::new();
    let view = match current {
        Ok(CurrentWaits { waits, queue }) => {
            let view = view.section(waits_section(&waits, process));
            match queue {
                Some(queue) => view.section(queue_section(&queue, process)),
                None => view,
            }
        }
        Err(error) => {
            let problem = to_problem(error);
            view.section(Section::new("waits", "Waiting now").notice(Tone::Bad, problem.text()))
        }
    };
    view.section(hot_section(hot, process))
}

fn waits_section(waits: &Waits, process: &str) -> Section {
    let section = Section::new("waits", "Waiting now");
    match waits {
        Waits::Server(waits) => section
            .text(
                "As the database server sees it, for all processes. A bucket stands for many ids, so the server does not know which \
                 player a wait is about. Ending the session in the way releases its locks.",
            )
            .block(sessions_table(waits)),
        Waits::MissingPrivilege(cause) => section
            .notice(
                Tone::Warning,
                format!(
                    "The waits are unknown: the database server does not show them to the database user ({cause}). \
                     An administrator of the server can grant it:"
                ),
            )
            .block(Block::Code(GRANTS.join("\n"))),
        Waits::InProcess(waits) => section
            .text(format!("The database is embedded, so all locks are in this process, {process}."))
            .block(in_process_table(waits)),
    }
}

fn sessions_table(waits: &[SessionWait]) -> Table {
    let mut table = Table::new(
        &["Waiting session", "Level", "#Bucket", "Since", "Blocked by session"],
        "No session waits for a lock.",
    );
    table.total = Some(total(waits.len()));
    for wait in waits.iter().take(LISTED) {
        let mut blockers: Vec<Cell> = wait
            .blocked_by
            .iter()
            .take(MAX_BLOCKERS)
            .map(|session| Cell::code(session.to_string()))
            .collect();
        if let Some(more) = wait.blocked_by.len().checked_sub(MAX_BLOCKERS).filter(|more| *more > 0) {
            blockers.push(Cell::text(format!("and {more} more")));
        }
        let cells = [
            Cell::code(wait.session.to_string()),
            Cell::text(wait.row.level.as_str()),
            Cell::number(wait.row.bucket),
            wait.since.map_or_else(|| Cell::text("just now"), Cell::Time),
            Cell::Many(blockers),
        ];
        // The first one does not wait itself.
        let end = wait.blocked_by.first().map(|session| {
            ActionLink::new("POST /locks/sessions/{session}/end")
                .with("session", session)
                .label(format!("End session {session}"))
        });
        table.push(cells, end);
    }
    table
}

fn in_process_table(waits: &[InProcessWait]) -> Table {
    let mut table = Table::new(
        &["Player", "Target", "Level", "#Bucket", "Since", "Held by", "#Waiting ahead"],
        "No request waits for a lock.",
    );
    table.total = Some(total(waits.len()));
    for wait in waits.iter().take(LISTED) {
        let holders = match wait.holders {
            RowHolders::Exclusive => "1 exclusive holder".to_owned(),
            RowHolders::Shared(count) => counted(count, "shared holder"),
        };
        let cells = [
            Cell::optional(wait.target.as_ref(), player),
            Cell::optional(wait.target.as_ref(), |target| Cell::code(target.as_target().to_string())),
            Cell::text(wait.row.level.as_str()),
            Cell::number(wait.row.bucket),
            Cell::Time(wait.since),
            Cell::text(holders),
            Cell::number(wait.ahead),
        ];
        table.push(cells, []);
    }
    table
}

fn queue_section(queue: &[QueuedWait], process: &str) -> Section {
    let mut table = Table::new(
        &["Player", "Target", "Since", "Reason"],
        "No transaction of this process waits for its turn.",
    );
    table.total = Some(total(queue.len()));
    for wait in queue.iter().take(LISTED) {
        let cells = [
            player(&wait.target),
            Cell::code(wait.target.as_target().to_string()),
            Cell::Time(wait.since),
            Cell::text(reason_text(wait.reason)),
        ];
        table.push(cells, []);
    }
    Section::new("queue", "Waiting for their turn in this process")
        .text(format!(
            "Only a few transactions of a process wait on the server at the same time, so that the others find a connection. These wait \
             in the process that serves this page, {process}."
        ))
        .block(table)
}

fn hot_section(hot: &[HotRow], process: &str) -> Section {
    let mut table = Table::new(
        &["Level", "#Bucket", "#Waits", "#Total", "#Longest"],
        "No lock was waited for since this process started.",
    );
    for HotRow { row, waits, total, longest } in hot {
        let cells = [
            Cell::text(row.level.as_str()),
            Cell::number(row.bucket),
            Cell::number(*waits),
            Cell::Duration(*total),
            Cell::Duration(*longest),
        ];
        table.push(cells, []);
    }
    Section::new("hot", "Hot buckets since this process started")
        .text(format!(
            "Waits of the process that serves this page, {process}. A wait counts for every bucket of its request, so the bucket that \
             many requests share is on top."
        ))
        .block(table)
}

fn total(rows: usize) -> Count {
    Count { counted: rows.try_into().unwrap_or(u64::MAX), capped: false }
}

/// Links to the player whose target it is.
fn player(target: &OwnedTarget) -> Cell {
    let user = target.as_target().user_id();
    match user.parse::<Uuid>() {
        Ok(_) => Cell::id(user, format!("/console/players/{user}")),
        Err(_) => Cell::code(user),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::Timestamp;
    use db::QueueReason;
    use hierlock::{Level, Row, Target};

    use super::*;

    const USER: &str = "0198c0de-0000-7000-8000-000000000001";
    const ROW: Row = Row { level: Level::Account, bucket: 7 };
    const SINCE: Timestamp = Timestamp::from_millis(1_000);

    fn target() -> OwnedTarget {
        OwnedTarget::from(Target::account(USER, "a").unwrap())
    }

    fn player_link() -> Cell {
        Cell::id(USER, format!("/console/players/{USER}"))
    }

    fn table<'a>(view: &'a View, id: &str) -> &'a Table {
        let section = view.sections.iter().find(|section| section.id == id).unwrap();
        section
            .blocks
            .iter()
            .find_map(|block| if let Block::Table(table) = block { Some(table) } else { None })
            .unwrap()
    }

    fn texts(view: &View) -> String {
        format!("{view:?}")
    }

    #[test]
    fn sessions_on_the_server_are_shown_with_the_sessions_in_their_way() {
        let wait = |since, blocked_by| SessionWait { session: 4, row: ROW, since, blocked_by };
        let waits = vec![wait(Some(SINCE), vec![9, 5, 6, 7, 8]), wait(None, vec![9])];
        let queued = QueuedWait { target: target(), since: SINCE, reason: QueueReason::SameTarget };
        let current = CurrentWaits { waits: Waits::Server(waits), queue: Some(vec![queued]) };
        let hot =
            HotRow { row: ROW, waits: 3, total: Duration::from_secs(2), longest: Duration::from_secs(1) };
        let view = view(Ok(current), &[hot], "p1");
        let rows = &table(&view, "waits").rows;
        let code = |text: &str| Cell::code(text);
        let blocked_by = Cell::Many(vec![code("9"), code("5"), code("6"), Cell::text("and 2 more")]);
        assert_eq!(
            rows[0].cells,
            [code("4"), Cell::text("account"), Cell::number(7), Cell::Time(SINCE), blocked_by]
        );
        assert_eq!(rows[1].cells[3], Cell::text("just now"));
        assert_eq!(rows[0].actions[0].parameters, [("session", "9".to_owned())]);
        assert_eq!(table(&view, "queue").rows[0].cells[0], player_link());
        assert_eq!(table(&view, "hot").rows[0].cells[2], Cell::number(3));
        assert!(texts(&view).contains("does not know which player"));
    }

    #[test]
    fn requests_in_process_lead_to_their_players() {
        let wait = InProcessWait {
            row: ROW,
            target: Some(target()),
            since: SINCE,
            holders: RowHolders::Shared(2),
            ahead: 1,
        };
        let view = view(Ok(CurrentWaits { waits: Waits::InProcess(vec![wait]), queue: None }), &[], "p1");
        let cells = &table(&view, "waits").rows[0].cells;
        assert_eq!(
            (&cells[0], &cells[4], &cells[5]),
            (&player_link(), &Cell::Time(SINCE), &Cell::text("2 shared holders"))
        );
        assert!(
            view.sections.iter().all(|section| section.id != "queue"),
            "there is no queue without a server"
        );
        assert_eq!(player(&OwnedTarget::from(Target::user("celebrity").unwrap())), Cell::code("celebrity"));
    }

    #[test]
    fn missing_privilege_is_named_instead_of_a_failure() {
        let waits = Waits::MissingPrivilege("you need the PROCESS privilege".to_owned());
        let view = view(Ok(CurrentWaits { waits, queue: Some(Vec::new()) }), &[], "p1");
        let shown = texts(&view);
        assert!(
            shown.contains("you need the PROCESS privilege") && shown.contains("GRANT PROCESS ON *.*"),
            "{shown}"
        );
    }

    #[test]
    fn hot_buckets_are_shown_while_the_database_is_away() {
        let hot =
            HotRow { row: ROW, waits: 3, total: Duration::from_secs(2), longest: Duration::from_secs(1) };
        let view = view(Err(Error::NotProvisioned), &[hot], "p1");
        assert!(texts(&view).contains("run `playhouse doctor`"));
        assert_eq!(table(&view, "hot").rows.len(), 1);
    }
}
