//! `playhouse token`

use ::config::{Choice, Setting, Value};
use runtime::http::{Right, TokenHash};
use uuid::Uuid;

use super::{Misuse, Outcome};
use crate::answer;
use crate::cli::Token;

pub(super) fn run(args: &Token) -> anyhow::Result<Outcome> {
    let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    if args.name.is_empty() || !args.name.chars().all(sound) {
        let what = format!("{:?} cannot be the name of a service: use a-z, 0-9, `_` and `-`", args.name);
        return Err(Misuse(what).into());
    }
    let unknown = |word: &String| Misuse(format!("--may {word}: expected {}", Right::expected()));
    let rights = args
        .may
        .iter()
        .map(|word| Right::parse(&Value::Text(word.clone())).map_err(|_| unknown(word)))
        .collect::<Result<Vec<Right>, _>>()?;
    let may: Vec<String> = rights.into_iter().map(|right| format!("{:?}", right.word())).collect();
    let token = new_token();
    answer(&format!(
        "# The token, for the service alone. It is not shown again.\n{token}\n\n# For the configuration of playhouse.\n\
         [services.{}]\ntoken_hash = \"{}\"\nmay = [{}]",
        args.name,
        TokenHash::of(&token),
        may.join(", "),
    ))?;
    Ok(Outcome::Done)
}

/// 244 random bits, so that nobody guesses it.
pub(super) fn new_token() -> String {
    format!("ph_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}
