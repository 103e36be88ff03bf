//! `playhouse config`

use super::{Misuse, Outcome, layers, settings};
use crate::cli::Config;
use crate::{REFERENCE, answer};

pub(super) fn run(args: &Config) -> anyhow::Result<Outcome> {
    let text = if args.effective {
        settings(layers(&args.from)?)?.effective.to_string()
    } else if args.from.config.is_some() || !args.from.set.set.is_empty() {
        return Err(Misuse("--config and --set go with --effective".to_owned()).into());
    } else {
        REFERENCE.to_owned()
    };
    answer(text.trim_end())?;
    Ok(Outcome::Done)
}
