//! The Lua scripts, one per step.

use redis_store::{Call, Key, Script, script};

use super::keys::Keys;

/// Declares a script: the preamble, the shared parts it needs, and its own file.
macro_rules! step {
    ($file:literal $(, $part:literal)*) => {
        script!("scripts/parts/preamble.lua", $($part,)* $file)
    };
}

/// Declares a script that hands out or assigns tickets. `Redis::exclusive_step` runs it.
macro_rules! exclusive_step {
    ($file:literal $(, $part:literal)*) => {
        step!($file, "scripts/parts/refuse_beside_lock.lua" $(, $part)*)
    };
}

pub(super) static CREATE: Script = step!("scripts/create.lua", "scripts/parts/enqueue.lua");
pub(super) static FETCH: Script = exclusive_step!("scripts/fetch.lua", "scripts/parts/claims.lua");
pub(super) static CLAIM: Script =
    exclusive_step!("scripts/claim.lua", "scripts/parts/claims.lua", "scripts/parts/backfill.lua");
pub(super) static RELEASE: Script = step!("scripts/release.lua", "scripts/parts/claims.lua");
pub(super) static RELEASE_ALL: Script = step!("scripts/release_all.lua");
pub(super) static DELETE: Script =
    step!("scripts/delete.lua", "scripts/parts/cancel.lua", "scripts/parts/ready.lua");
pub(super) static DEINDEX: Script = step!("scripts/deindex.lua");
pub(super) static ADOPT: Script = step!("scripts/adopt.lua");
pub(super) static ASSIGN: Script =
    exclusive_step!("scripts/assign.lua", "scripts/parts/claims.lua", "scripts/parts/backfill.lua");
pub(super) static ASSIGN_GROUP: Script = exclusive_step!("scripts/assign_group.lua");
pub(super) static NOTIFY: Script = step!("scripts/notify.lua");
pub(super) static CHANGES: Script = step!("scripts/changes.lua");
pub(super) static RECOVER: Script = step!("scripts/recover.lua");
pub(super) static JOIN: Script =
    step!("scripts/join.lua", "scripts/parts/enqueue.lua", "scripts/parts/player_tickets.lua");
pub(super) static CHANGE_PARTY: Script = step!(
    "scripts/change_party.lua",
    "scripts/parts/enqueue.lua",
    "scripts/parts/cancel.lua",
    "scripts/parts/ready.lua",
    "scripts/parts/player_tickets.lua"
);
pub(super) static TICKETS: Script = step!("scripts/tickets.lua", "scripts/parts/player_tickets.lua");
pub(super) static PRESENT: Script = step!("scripts/present.lua", "scripts/parts/player_tickets.lua");
pub(super) static OVERDUE: Script = step!("scripts/overdue.lua", "scripts/parts/player_tickets.lua");
pub(super) static SWEEP: Script = step!(
    "scripts/sweep.lua",
    "scripts/parts/cancel.lua",
    "scripts/parts/ready.lua",
    "scripts/parts/player_tickets.lua"
);
pub(super) static CREATE_BACKFILL: Script =
    step!("scripts/create_backfill.lua", "scripts/parts/backfill.lua");
pub(super) static UPDATE_BACKFILL: Script =
    step!("scripts/update_backfill.lua", "scripts/parts/backfill.lua");
pub(super) static DELETE_BACKFILLS: Script =
    step!("scripts/delete_backfills.lua", "scripts/parts/backfill.lua");
pub(super) static ACKNOWLEDGE: Script = step!("scripts/acknowledge.lua", "scripts/parts/backfill.lua");
pub(super) static ASSIGN_BACKFILL: Script =
    exclusive_step!("scripts/assign_backfill.lua", "scripts/parts/backfill.lua");
pub(super) static JOIN_BACKFILLS: Script =
    exclusive_step!("scripts/join_backfills.lua", "scripts/parts/claims.lua", "scripts/parts/backfill.lua");
pub(super) static OPEN_BACKFILLS: Script = step!("scripts/open_backfills.lua", "scripts/parts/backfill.lua");
pub(super) static MARK_LISTED: Script = step!("scripts/mark_listed.lua", "scripts/parts/backfill.lua");
pub(super) static OPEN_CHECKS: Script = exclusive_step!(
    "scripts/open_checks.lua",
    "scripts/parts/claims.lua",
    "scripts/parts/cancel.lua",
    "scripts/parts/ready.lua"
);
pub(super) static DUE_CHECKS: Script = exclusive_step!(
    "scripts/due_checks.lua",
    "scripts/parts/claims.lua",
    "scripts/parts/cancel.lua",
    "scripts/parts/ready.lua"
);
pub(super) static ANSWER_CHECK: Script =
    step!("scripts/answer_check.lua", "scripts/parts/cancel.lua", "scripts/parts/ready.lua");
pub(super) static CLOSE_CHECKS: Script =
    step!("scripts/close_checks.lua", "scripts/parts/cancel.lua", "scripts/parts/ready.lua");
pub(super) static CHECK_STATES: Script =
    step!("scripts/check_states.lua", "scripts/parts/cancel.lua", "scripts/parts/ready.lua");

pub(super) static LOCK: Script = script!("scripts/lock.lua");
pub(super) static EXTEND: Script = script!("scripts/extend.lua");
pub(super) static UNLOCK: Script = script!("scripts/unlock.lua");

/// Prepares the call of a script with the shared keys, its own keys, and the lock token (empty without a lock).
pub(super) fn step(
    script: &'static Script,
    keys: &Keys,
    own: impl IntoIterator<Item = Key>,
    token: &str,
) -> Call {
    let mut all = Vec::from(keys.shared());
    all.extend(own);
    // The preamble takes it off the list.
    all.push(keys.changes());
    let mut call = script.call(&all);
    call.arg(token);
    call
}
