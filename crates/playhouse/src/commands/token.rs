//! `playhouse token`

use ::config::{Setting, Value};
use http_server::TokenHash;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use uuid::Uuid;

use super::admin::Admin;
use super::{Misuse, Outcome};
use crate::answer;
use crate::cli::Token;
use crate::settings::DeclaredRight;

pub(super) async fn run(args: &Token) -> anyhow::Result<Outcome> {
    match (&args.user, &args.for_operator) {
        (Some(user), _) => for_player(args, user).await,
        (None, Some(operator)) => for_operator(operator, args.read_only),
        (None, None) => for_service(args, args.name.as_deref().unwrap_or_default()),
    }
}

/// An access token of the builtin issuer of a running process.
async fn for_player(args: &Token, user: &str) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.admin.as_deref(), &args.from, &args.operator)?;
    let mut path = format!("/issuer/tokens?user={}", utf8_percent_encode(user, NON_ALPHANUMERIC));
    if let Some(role) = &args.role {
        path = format!("{path}&role={role}");
    }
    let made = admin.ask(Method::POST, &path).await?;
    answer(made["token"].as_str().unwrap_or_default())?;
    Ok(Outcome::Done)
}

/// Refuses what cannot be the name of a table in the configuration.
fn check_name(name: &str, whose: &str) -> Result<(), Misuse> {
    let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(sound) {
        let what = format!("{name:?} cannot be the name of {whose}: use a-z, 0-9, `_` and `-`");
        return Err(Misuse(what));
    }
    Ok(())
}

fn for_operator(name: &str, read_only: bool) -> anyhow::Result<Outcome> {
    check_name(name, "an operator")?;
    let token = new_token();
    answer(&format!(
        "# The token, for the operator alone. It is not shown again. Keep it in a file that only you can read, and name that in\n\
         # PLAYHOUSE_OPERATOR_TOKEN_FILE.\n{token}\n\n# For the configuration of playhouse.\n\
         [operators.{name}]\ntoken_hash = \"{}\"\nread_only = {read_only}",
        TokenHash::of(&token),
    ))?;
    Ok(Outcome::Done)
}

fn for_service(args: &Token, name: &str) -> anyhow::Result<Outcome> {
    check_name(name, "a service")?;
    let unknown = |word: &String| Misuse(format!("--may {word}: expected {}", DeclaredRight::expected()));
    let rights = args
        .may
        .iter()
        .map(|word| DeclaredRight::parse(&Value::Text(word.clone())).map_err(|_| unknown(word)))
        .collect::<Result<Vec<DeclaredRight>, _>>()?;
    let may: Vec<String> = rights.into_iter().map(|right| right.show()).collect();
    let token = new_token();
    answer(&format!(
        "# The token, for the service alone. It is not shown again.\n{token}\n\n# For the configuration of playhouse.\n\
         [services.{}]\ntoken_hash = \"{}\"\nmay = [{}]",
        name,
        TokenHash::of(&token),
        may.join(", "),
    ))?;
    Ok(Outcome::Done)
}

/// 244 random bits, so that nobody guesses it.
pub(super) fn new_token() -> String {
    format!("ph_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}
