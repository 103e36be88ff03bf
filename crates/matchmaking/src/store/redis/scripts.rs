//! The scripts, one per step.

use redis_store::{Call, Key, Script, script};

use super::keys::Keys;

/// Declares a step: the preamble, the parts that it needs, and itself.
macro_rules! step {
    ($file:literal $(, $part:literal)*) => {
        script!("scripts/parts/preamble.lua", $($part,)* $file)
    };
}

pub(super) static CREATE: Script = step!("scripts/create.lua", "scripts/parts/making.lua");
pub(super) static FETCH: Script = step!("scripts/fetch.lua");
pub(super) static RELEASE: Script = step!("scripts/release.lua");
pub(super) static DELETE: Script = step!("scripts/delete.lua", "scripts/parts/cancelling.lua");
pub(super) static DEINDEX: Script = step!("scripts/deindex.lua");
pub(super) static ADOPT: Script = step!("scripts/adopt.lua");
pub(super) static ASSIGN: Script = step!("scripts/assign.lua");
pub(super) static NOTIFY: Script = step!("scripts/notify.lua");
pub(super) static RECOVER: Script = step!("scripts/recover.lua");
pub(super) static JOIN: Script =
    step!("scripts/join.lua", "scripts/parts/making.lua", "scripts/parts/playing.lua");
pub(super) static TICKETS: Script = step!("scripts/tickets.lua", "scripts/parts/playing.lua");
pub(super) static PRESENT: Script = step!("scripts/present.lua", "scripts/parts/playing.lua");
pub(super) static OVERDUE: Script = step!("scripts/overdue.lua", "scripts/parts/playing.lua");
pub(super) static SWEEP: Script =
    step!("scripts/sweep.lua", "scripts/parts/cancelling.lua", "scripts/parts/playing.lua");

pub(super) static LOCK: Script = script!("scripts/lock.lua");
pub(super) static EXTEND: Script = script!("scripts/extend.lua");
pub(super) static UNLOCK: Script = script!("scripts/unlock.lua");

/// Prepares the call of a step: the keys that all steps share and its own, and the token of the lock or nothing.
pub(super) fn step(
    script: &'static Script,
    keys: &Keys,
    own: impl IntoIterator<Item = Key>,
    token: &str,
) -> Call {
    let mut all = Vec::from(keys.shared());
    all.extend(own);
    let mut call = script.call(&all);
    call.arg(token);
    call
}
