//! `playhouse token`

use ::config::{Setting, Value};
use http_server::TokenHash;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use uuid::Uuid;

use super::admin::AdminClient;
use super::{ExitStatus, UsageError};
use crate::cli::Token;
use crate::print;
use crate::settings::DeclaredRight;

pub(super) async fn run(args: &Token) -> anyhow::Result<ExitStatus> {
    match (&args.user, &args.for_operator) {
        (Some(user), _) => for_player(args, user).await,
        (None, Some(operator)) => for_operator(operator, args.read_only),
        (None, None) => for_service(args, args.name.as_deref().unwrap_or_default()),
    }
}

/// Prints an access token from the builtin issuer of a running process.
async fn for_player(args: &Token, user: &str) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.admin.as_deref(), &args.from, &args.operator)?;
    let mut path = format!("/issuer/tokens?user={}", utf8_percent_encode(user, NON_ALPHANUMERIC));
    if let Some(role) = &args.role {
        path = format!("{path}&role={role}");
    }
    let created = admin.call(Method::POST, &path).await?;
    print(created["token"].as_str().unwrap_or_default())?;
    Ok(ExitStatus::Done)
}

/// Refuses a name that cannot name a table in the configuration.
fn check_name(name: &str, whose: &str) -> Result<(), UsageError> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(is_allowed) {
        let what = format!("{name:?} cannot be the name of {whose}: use a-z, 0-9, `_` and `-`");
        return Err(UsageError(what));
    }
    Ok(())
}

fn for_operator(name: &str, read_only: bool) -> anyhow::Result<ExitStatus> {
    check_name(name, "an operator")?;
    let token = new_token();
    print(&format!(
        "# The token, for the operator only. It is not shown again. Keep it in a file that only you can read, and set\n\
         # PLAYHOUSE_OPERATOR_TOKEN_FILE to the name of that file.\n{token}\n\n# Add this to the configuration file.\n\
         [operators.{name}]\ntoken_hash = \"{}\"\nread_only = {read_only}",
        TokenHash::of(&token),
    ))?;
    Ok(ExitStatus::Done)
}

fn for_service(args: &Token, name: &str) -> anyhow::Result<ExitStatus> {
    check_name(name, "a service")?;
    let unknown = |word: &String| UsageError(format!("--may {word}: expected {}", DeclaredRight::expected()));
    let rights = args
        .may
        .iter()
        .map(|word| DeclaredRight::parse(&Value::Text(word.clone())).map_err(|_| unknown(word)))
        .collect::<Result<Vec<DeclaredRight>, _>>()?;
    let may: Vec<String> = rights.into_iter().map(|right| right.show()).collect();
    let token = new_token();
    print(&format!(
        "# The token, for the service only. It is not shown again.\n{token}\n\n# Add this to the configuration file.\n\
         [services.{}]\ntoken_hash = \"{}\"\nmay = [{}]",
        name,
        TokenHash::of(&token),
        may.join(", "),
    ))?;
    Ok(ExitStatus::Done)
}

/// Creates a token of 244 random bits.
pub(super) fn new_token() -> String {
    format!("ph_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}
