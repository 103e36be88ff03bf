//! The tables of drops and of their lines.

mod columns;
mod drops;
mod due;
mod entries;
mod erased;
mod rows;
mod waiting;

pub(crate) use self::drops::{
    Locked, NewDrop, get, insert, list, lock, mark_line_removed, measured, save, save_head, unsold,
};
pub(crate) use columns::{bytes, locking, now, uuid};
pub(crate) use due::{
    due_cycles, due_to_close, due_to_open, sold_out, with_lines, with_players_waiting_at_the_end,
    with_removable_lines,
};
pub(crate) use entries::{
    PlayerEntry, admit, cohort, end_waiting, entry, expire, find, first_expired, first_waiting, inside,
    of_player, replace,
};
pub(crate) use erased::{erase, forget, lock_running_heads, now_and_erased};
pub(crate) use rows::{drop_state_number, entry_state_number, left_reason_number};
pub(crate) use waiting::{entered_since, waiting_after, waiting_among};
