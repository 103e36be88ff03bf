//! `playhouse config`

use super::{Outcome, layers, settings};
use crate::cli::Config;
use crate::{REFERENCE, answer};

pub(super) fn run(args: &Config) -> anyhow::Result<Outcome> {
    let text = if args.effective {
        settings(layers(&args.from)?)?.effective.to_string()
    } else {
        REFERENCE.to_owned()
    };
    answer(text.trim_end());
    Ok(Outcome::Done)
}
