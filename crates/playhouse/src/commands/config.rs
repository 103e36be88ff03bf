//! `playhouse config`

use super::{ExitStatus, UsageError, layers, settings};
use crate::cli::Config;
use crate::{REFERENCE, print};

pub(super) fn run(args: &Config) -> anyhow::Result<ExitStatus> {
    let text = if args.effective {
        settings(layers(&args.from)?)?.effective.to_string()
    } else if args.from.config.is_some() || !args.from.set.set.is_empty() {
        return Err(UsageError(
            "--config and --set need --effective: without it the reference is printed".to_owned(),
        )
        .into());
    } else {
        REFERENCE.to_owned()
    };
    print(text.trim_end())?;
    Ok(ExitStatus::Done)
}
