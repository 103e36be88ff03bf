//! The tables of drops, their heads and their line entries.

mod columns;
mod drops;
mod due;
mod entries;
mod erased;
mod rows;
mod waiting;

pub(crate) use self::drops::{
    LockedDrop, NewDropRow, cycle_stats, get, insert, list, lock, mark_line_removed, newest, running, save,
    save_head, unsold,
};
pub(crate) use columns::{bytes, locking, now, uuid};
pub(crate) use due::{
    drops_with_lines, due_cycles, due_to_close, due_to_open, ended_with_lines, ended_with_players_waiting,
    sold_out,
};
pub(crate) use entries::{
    PlayerEntry, admit, all_entries_of_player, count_cohort, count_inside, end_waiting, entries_after,
    entries_of_player, expire, find_entry, first_expired, first_waiting, lock_entries, save_entries,
};
pub(crate) use erased::{erase_user, lock_running_heads, now_and_erased, prune_erased};
pub(crate) use rows::{drop_state_number, entry_state_number, left_reason_number};
pub(crate) use waiting::{entered_since, waiting_after, waiting_among};
