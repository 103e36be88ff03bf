//! `playhouse dlq`

use std::time::Duration;

use anyhow::Context;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::admin::Admin;
use super::{Misuse, Outcome, items, text};
use crate::cli::{Chosen, Dlq, DlqCommand, Fits};
use crate::{answer, complain};

/// How many are dealt with by one request: it must not take long.
const PAGE: u32 = 100;
/// How many are counted before anything is done to them.
const COUNTED: u32 = 1_000;

pub(super) async fn run(args: Dlq) -> anyhow::Result<Outcome> {
    let admin = Admin::find(args.at.admin.as_deref(), &args.at.from, &args.at.operator)?;
    let shown = match args.what {
        DlqCommand::List { fits, limit } => {
            let found = admin.ask(Method::GET, &format!("/dlq?limit={limit}{}", fits.query())).await?;
            if args.at.json { found.to_string() } else { list(&found) }
        }
        DlqCommand::Show { letter } => {
            let found = admin.ask(Method::GET, &path(&letter)).await?;
            if args.at.json { found.to_string() } else { show(&found) }
        }
        DlqCommand::Replay { chosen, rate } => match chosen.sound()? {
            Which::One(letter) => {
                let found = admin.ask(Method::POST, &format!("{}/replay", path(&letter))).await?;
                if args.at.json { found.to_string() } else { format!("{} is replayed", text(&found["id"])) }
            }
            Which::Some(fits) => return replay(&admin, &fits, rate, args.at.json).await,
        },
        DlqCommand::Discard { chosen, yes } => match chosen.sound()? {
            Which::One(letter) => {
                let found = admin.ask(Method::POST, &format!("{}/discard", path(&letter))).await?;
                if args.at.json { found.to_string() } else { format!("{} is discarded", text(&found["id"])) }
            }
            Which::Some(fits) => {
                let discarded = discard(&admin, &fits, yes).await?;
                if args.at.json {
                    json!({ "discarded": discarded }).to_string()
                } else {
                    format!("discarded {}", letters(discarded))
                }
            }
        },
    };
    answer(&shown)?;
    Ok(Outcome::Done)
}

/// What a command is about.
enum Which {
    One(String),
    Some(Fits),
}

impl Chosen {
    fn sound(self) -> Result<Which, Misuse> {
        let Fits { kind, destination, user } = &self.fits;
        let is_narrowed = [kind, destination, user].into_iter().any(Option::is_some);
        match self.letter {
            Some(letter) => Ok(Which::One(letter)),
            None if self.all || is_narrowed => Ok(Which::Some(self.fits)),
            None => Err(Misuse(
                "say which: the id of a dead letter, or --kind, --destination, --user, or --all of them; \
                 `playhouse dlq list` shows what there is"
                    .to_owned(),
            )),
        }
    }
}

impl Fits {
    /// To be added to a query.
    fn query(&self) -> String {
        let given = [("kind", &self.kind), ("destination", &self.destination), ("user", &self.user)];
        let encoded = |(name, value): (&str, &Option<String>)| {
            value.as_ref().map(|value| format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
        };
        given.into_iter().filter_map(encoded).collect()
    }
}

/// Those that are there when a command begins: what dies meanwhile, again perhaps, is not meant.
struct There {
    /// As far as they were counted.
    count: usize,
    more: bool,
    up_to: i64,
}

impl There {
    async fn look(admin: &Admin, fits: &Fits) -> anyhow::Result<Self> {
        let found = admin.ask(Method::GET, &format!("/dlq?limit={COUNTED}{}", fits.query())).await?;
        let count = items(&found, "letters").len();
        Ok(Self { count, more: found["next"].is_i64(), up_to: found["last"].as_i64().unwrap_or_default() })
    }

    /// Has them dealt with page by page; the answer to each is given to `done`, which may wait.
    async fn pages(
        &self,
        admin: &Admin,
        what: &str,
        limit: u32,
        mut done: impl AsyncFnMut(&Value),
    ) -> anyhow::Result<()> {
        let mut after = 0;
        loop {
            let page = format!("{what}&limit={limit}&up_to={}&after={after}", self.up_to);
            let found = admin
                .ask(Method::POST, &page)
                .await
                .context("not all is done: run it again to go on with the rest")?;
            done(&found).await;
            let Some(next) = found["next"].as_i64() else { return Ok(()) };
            after = next;
        }
    }
}

async fn replay(admin: &Admin, fits: &Fits, rate: u32, json: bool) -> anyhow::Result<Outcome> {
    let there = There::look(admin, fits).await?;
    let (mut replayed, mut stay) = (0_u64, Vec::new());
    let started = Instant::now();
    let what = format!("/dlq/replay?rate={rate}{}", fits.query());
    there
        .pages(admin, &what, rate.min(PAGE), async |found| {
            replayed += found["replayed"].as_u64().unwrap_or_default();
            stay.extend(items(found, "failed").iter().cloned());
            if found["next"].is_i64() {
                // The process spreads a page over its time; the next page begins when that is over.
                sleep_until(started + Duration::from_secs_f64(replayed as f64 / f64::from(rate))).await;
                let of =
                    if there.more { format!("{} or more", there.count) } else { there.count.to_string() };
                complain(&format!("replayed {replayed} of {of} …"));
            }
        })
        .await?;
    if json {
        answer(&json!({ "replayed": replayed, "failed": stay }).to_string())?;
    } else {
        answer(&summary(replayed, &stay))?;
    }
    Ok(if stay.is_empty() { Outcome::Done } else { Outcome::Failed })
}

async fn discard(admin: &Admin, fits: &Fits, yes: bool) -> anyhow::Result<u64> {
    let there = There::look(admin, fits).await?;
    if there.count > 1 && !yes {
        let more = if there.more { " or more" } else { "" };
        return Err(Misuse(format!(
            "this throws away {}{more} dead letters, and nothing brings them back: look at them with `playhouse dlq list`, and add \
             --yes if that is what you want",
            there.count
        ))
        .into());
    }
    let mut discarded = 0;
    let what = format!("/dlq/discard?{}", fits.query().trim_start_matches('&'));
    there
        .pages(admin, &what, PAGE, async |found| {
            discarded += found["discarded"].as_u64().unwrap_or_default();
        })
        .await?;
    Ok(discarded)
}

fn path(letter: &str) -> String {
    format!("/dlq/{}", utf8_percent_encode(letter, NON_ALPHANUMERIC))
}

fn letters(count: u64) -> String {
    match count {
        1 => "1 dead letter".to_owned(),
        count => format!("{count} dead letters"),
    }
}

fn summary(replayed: u64, stay: &[Value]) -> String {
    let mut lines = vec![format!("replayed {}", letters(replayed))];
    if !stay.is_empty() {
        lines.push(format!("{} stay:", stay.len()));
        lines.extend(
            stay.iter().map(|letter| format!("  {}  {}", text(&letter["id"]), text(&letter["cause"]))),
        );
    }
    lines.join("\n")
}

fn list(found: &Value) -> String {
    let shown = items(found, "letters");
    if shown.is_empty() {
        return "no dead letters".to_owned();
    }
    let mut lines =
        vec![format!("{:<36}  {:<24}  {:>8}  {}", "letter", "died", "attempts", "where it was to go")];
    for letter in shown {
        lines.push(format!(
            "{:<36}  {:<24}  {:>8}  {}",
            text(&letter["id"]),
            text(&letter["died"]),
            letter["attempts"].to_string(),
            place(letter),
        ));
        lines.push(format!("{:38}{}", "", text(&letter["cause"])));
    }
    let more = if found["next"].is_i64() { " are shown; --limit shows more" } else { "" };
    lines.push(format!("\n{}{more}", letters(shown.len() as u64)));
    let counts = found["counts"].as_object().into_iter().flatten();
    let counts: Vec<String> = counts
        .filter(|(_, count)| count.as_i64() != Some(0))
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    lines.push(format!("in all: {}", counts.join(", ")));
    lines.push(
        "`playhouse dlq replay LETTER` delivers one once more, `discard LETTER` throws it away".to_owned(),
    );
    lines.join("\n")
}

fn show(found: &Value) -> String {
    let mut lines = vec![format!("{}  {}", text(&found["id"]), place(found))];
    lines.push(format!("  {}", text(&found["cause"])));
    lines.push(format!(
        "  attempts {}, made {}, died {}",
        found["attempts"],
        text(&found["created"]),
        text(&found["died"])
    ));
    lines.extend(found["user_id"].as_str().map(|user| format!("  user {user}")));
    lines.extend(found["notification_id"].as_str().map(|id| format!("  notification {id}")));
    lines.extend(found["stream_position"].as_i64().map(|at| format!("  position {at} of the stream")));
    // Something that is no JSON is shown as the text that it is, as far as it is text.
    let payload = match &found["payload"] {
        Value::String(text) => text.clone(),
        payload => format!("{payload:#}"),
    };
    lines.push(format!("\n{payload}"));
    lines.join("\n")
}

/// A channel says where by itself; the subject of an event does not say that it is one.
fn place(letter: &Value) -> String {
    let (kind, destination) = (text(&letter["kind"]), text(&letter["destination"]));
    if kind == "event" { format!("event {destination}") } else { destination.to_owned() }
}
