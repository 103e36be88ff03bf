//! Runs the tasks of players. Reports a task that panics as a lost player.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;

use tokio::task::{Id, JoinError, JoinSet};

use crate::history::PlayerHistory;

/// Runs the tasks of players, at most `at_once` at a time, and calls `on_end` after each. Returns the results, and the players whose tasks
/// panicked.
pub(crate) async fn run_all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    tasks: impl IntoIterator<Item = (String, F)>,
    at_once: usize,
    on_end: impl Fn(),
) -> (Vec<T>, Vec<PlayerHistory>) {
    let mut waiting = tasks.into_iter();
    let (mut running, mut names) = (JoinSet::new(), HashMap::<Id, String>::new());
    let (mut results, mut panicked) = (Vec::new(), Vec::new());
    loop {
        while running.len() < at_once
            && let Some((name, task)) = waiting.next()
        {
            names.insert(running.spawn(task).id(), name);
        }
        match running.join_next_with_id().await {
            None => return (results, panicked),
            Some(Ok((id, result))) => {
                names.remove(&id);
                results.push(result);
            }
            Some(Err(error)) => {
                let name = names.remove(&error.id()).unwrap_or_default();
                panicked.push(PlayerHistory {
                    name,
                    panic: Some(message(error)),
                    ..PlayerHistory::default()
                });
            }
        }
        on_end();
    }
}

/// Returns why a task ended without a result: the message of its panic.
pub(crate) fn message(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => text(panic.as_ref()).to_owned(),
        Err(error) => error.to_string(),
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::checks::{Promise, check};
    use crate::history::History;

    #[tokio::test]
    async fn panicked_players_are_counted_and_named() {
        let task = |number: usize| async move {
            assert!(!number.is_multiple_of(4), "player {number} has a bug");
            number
        };
        for at_once in [1, 3, usize::MAX] {
            let ended = Cell::new(0);
            let tasks = (1..=9).map(|number| (format!("sim-{number}"), task(number)));
            let (mut results, players) = run_all(tasks, at_once, || ended.set(ended.get() + 1)).await;
            results.sort_unstable();
            assert_eq!((results.as_slice(), ended.get()), (&[1, 2, 3, 5, 6, 7, 9][..], 9));
            let mut found = check(&History { players, ..History::default() });
            found.sort_by(|one, other| one.what.cmp(&other.what));
            let texts: Vec<&str> = found.iter().map(|violation| violation.what.as_str()).collect();
            assert_eq!(
                texts,
                [
                    "sim-4: the simulator panicked: player 4 has a bug",
                    "sim-8: the simulator panicked: player 8 has a bug"
                ]
            );
            assert!(found.iter().all(|violation| violation.promise == Promise::NobodyLost));
        }
    }
}
