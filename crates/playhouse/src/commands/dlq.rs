//! `playhouse dlq`

use base::{Clock, Timestamp};
use reqwest::Method;
use serde_json::Value;

use super::admin::AdminClient;
use super::outbox::parse_time;
use super::{ExitStatus, UsageError, encoded, items, jobs, text};
use crate::cli::{DeadLetterFilter, DeadLetterSelection, Dlq, DlqCommand};
use crate::print;

/// How many dead letters are counted before they are deleted.
const COUNTED: u32 = 1_000;

pub(super) async fn run(args: Dlq) -> anyhow::Result<ExitStatus> {
    let admin = AdminClient::new(args.target.admin.as_deref(), &args.target.from, &args.target.operator)?;
    let shown = match args.command {
        DlqCommand::List { filter, limit } => {
            let path = format!("/dlq?limit={limit}{}", filter.query()?);
            let found = admin.call(Method::GET, &path).await?;
            if args.target.json { found.to_string() } else { list(&found) }
        }
        DlqCommand::Show { letter } => {
            let found = admin.call(Method::GET, &path(&letter)).await?;
            if args.target.json { found.to_string() } else { show(&found) }
        }
        DlqCommand::Replay { selection, rate } => match selection.target()? {
            Target::One(letter) => {
                let found = admin.call(Method::POST, &format!("{}/replay", path(&letter))).await?;
                if args.target.json {
                    found.to_string()
                } else {
                    format!("{} is replayed", text(&found["id"]))
                }
            }
            Target::Some(filter, expected) => {
                let action = format!("/dlq/replay?rate={rate}{}{}", filter.query()?, at_most(expected));
                return start(&admin, &action, "replayed", args.target.json).await;
            }
        },
        DlqCommand::Discard { selection, yes } => match selection.target()? {
            Target::One(letter) => {
                let found = admin.call(Method::POST, &format!("{}/discard", path(&letter))).await?;
                if args.target.json {
                    found.to_string()
                } else {
                    format!("{} is discarded", text(&found["id"]))
                }
            }
            Target::Some(filter, expected) => {
                require_yes(&admin, &filter, yes).await?;
                let query = format!("{}{}", filter.query()?, at_most(expected));
                let action = format!("/dlq/discard?{}", query.trim_start_matches('&'));
                return start(&admin, &action, "discarded", args.target.json).await;
            }
        },
    };
    print(&shown)?;
    Ok(ExitStatus::Done)
}

/// The dead letters that a command is about.
enum Target {
    One(String),
    /// Those that match, and how many they must be.
    Some(DeadLetterFilter, Option<u64>),
}

impl DeadLetterSelection {
    fn target(self) -> Result<Target, UsageError> {
        let DeadLetterFilter { kind, destination, user, cause, since } = &self.filter;
        let is_narrowed = [kind, destination, user, cause, since].into_iter().any(Option::is_some)
            || self.expected.is_some();
        match self.letter {
            Some(letter) => Ok(Target::One(letter)),
            None if self.all || is_narrowed => Ok(Target::Some(self.filter, self.expected)),
            None => Err(UsageError(
                "name the dead letters: give the id of one, or --kind, --destination, --user or --all; \
                 `playhouse dlq list` lists them"
                    .to_owned(),
            )),
        }
    }
}

impl DeadLetterFilter {
    /// Returns the filter as parameters to append to a query.
    fn query(&self) -> Result<String, UsageError> {
        let since = self.since.as_deref().map(|since| parse_time("since", since, Clock::system().now()));
        let since = since.transpose()?.map(Timestamp::to_rfc3339);
        let given = [
            ("kind", &self.kind),
            ("destination", &self.destination),
            ("user", &self.user),
            ("cause", &self.cause),
            ("since", &since),
        ];
        let parameter = |(name, value): (&str, &Option<String>)| {
            value.as_ref().map(|value| format!("&{name}={}", encoded(value)))
        };
        Ok(given.into_iter().filter_map(parameter).collect())
    }
}

/// Returns the parameter that limits a bulk action to the number that was seen.
fn at_most(expected: Option<u64>) -> String {
    expected.map(|expected| format!("&expected={expected}")).unwrap_or_default()
}

/// Starts a bulk action and waits for its job.
async fn start(admin: &AdminClient, action: &str, what: &str, json: bool) -> anyhow::Result<ExitStatus> {
    let started = admin.call(Method::POST, action).await?;
    let job = jobs::wait(admin, &started).await?;
    jobs::finished(&job, json, |job| {
        format!("{what} {}", dead_letters(job["done"].as_u64().unwrap_or_default()))
    })
}

/// Fails unless at most one dead letter would be deleted, or the operator has confirmed it.
async fn require_yes(admin: &AdminClient, filter: &DeadLetterFilter, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    let found = admin.call(Method::GET, &format!("/dlq?limit={COUNTED}{}", filter.query()?)).await?;
    let (count, more) =
        (items(&found, "letters").len(), if found["next"].is_i64() { " or more" } else { "" });
    if count <= 1 {
        return Ok(());
    }
    Err(UsageError(format!(
        "this deletes {count}{more} dead letters for good: look at them with `playhouse dlq list`, then add --yes to confirm"
    ))
    .into())
}

fn path(letter: &str) -> String {
    format!("/dlq/{}", encoded(letter))
}

fn dead_letters(count: u64) -> String {
    base::counted(count, "dead letter")
}

fn list(found: &Value) -> String {
    let shown = items(found, "letters");
    if shown.is_empty() {
        return "no dead letters".to_owned();
    }
    let mut lines =
        vec![format!("{:<36}  {:<24}  {:>8}  {}", "dead letter", "given up", "attempts", "destination")];
    for letter in shown {
        lines.push(format!(
            "{:<36}  {:<24}  {:>8}  {}",
            text(&letter["id"]),
            text(&letter["died"]),
            letter["attempts"].to_string(),
            destination(letter),
        ));
        lines.push(format!("{:38}{}", "", text(&letter["cause"])));
    }
    let more = if found["next"].is_i64() { " listed; --limit lists more" } else { "" };
    lines.push(format!("\n{}{more}", dead_letters(shown.len() as u64)));
    let counts = found["counts"].as_object().into_iter().flatten();
    let counts: Vec<String> = counts
        .filter(|(_, count)| count.as_i64() != Some(0))
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    lines.push(format!("in total: {}", counts.join(", ")));
    lines.push(
        "`playhouse dlq replay LETTER` delivers it again, `playhouse dlq discard LETTER` deletes it"
            .to_owned(),
    );
    lines.join("\n")
}

fn show(found: &Value) -> String {
    let mut lines = vec![format!("{}  {}", text(&found["id"]), destination(found))];
    lines.push(format!("  {}", text(&found["cause"])));
    lines.push(format!(
        "  attempts {}, created {}, given up {}",
        found["attempts"],
        text(&found["created"]),
        text(&found["died"])
    ));
    lines.extend(found["user_id"].as_str().map(|user| format!("  user {user}")));
    lines.extend(found["notification_id"].as_str().map(|id| format!("  notification {id}")));
    lines.extend(found["stream_position"].as_i64().map(|at| format!("  position {at} in the event stream")));
    // A payload that is not JSON arrives as a string.
    let payload = match &found["payload"] {
        Value::String(text) => text.clone(),
        payload => format!("{payload:#}"),
    };
    lines.push(format!("\n{payload}"));
    lines.join("\n")
}

/// Returns the destination. The subject of an event gets a prefix, because it does not look like a destination.
fn destination(letter: &Value) -> String {
    let (kind, destination) = (text(&letter["kind"]), text(&letter["destination"]));
    if kind == "event" { format!("event {destination}") } else { destination.to_owned() }
}
