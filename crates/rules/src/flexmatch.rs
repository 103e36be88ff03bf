//! Imports FlexMatch rule sets: Amazon's JSON, with the deviations of published documents, becomes a rule set in TOML.

mod expansion;
mod rule;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use self::expansion::Expansions;
use crate::document::{Data, Node};
use crate::fields::{Fields, Report};
use crate::mistake::{Mistakes, Position};
use crate::model::RuleSet;

/// An imported rule set.
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    /// The rule set as TOML. Its first lines are the notes and the settings.
    pub text: String,
    pub rules: RuleSet,
    /// What means something else here, or is not kept.
    pub notes: Vec<String>,
    /// Lines for the configuration file, if the matchmaking configuration sets something that is there: a queue and a profile.
    pub settings: Vec<String>,
}

/// Collects the imported text and its notes.
#[derive(Debug, Default)]
struct Draft {
    text: String,
    notes: Vec<String>,
    attributes: BTreeMap<String, String>,
    /// Settings of the queue that players join.
    queue: Vec<String>,
    /// Settings of the profile that uses the rule set.
    profile: Vec<String>,
}

impl Draft {
    fn note(&mut self, position: Position, note: impl AsRef<str>) {
        let note = format!("line {}: {}", position.line, note.as_ref());
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// Says something about the matchmaking configuration.
    fn note_configuration(&mut self, note: impl AsRef<str>) {
        self.notes.push(format!("configuration: {}", note.as_ref()));
    }

    /// Keeps the description of a table as a comment above it.
    fn describe(&mut self, fields: &Fields<'_>) {
        self.line("");
        for line in fields.text("description").unwrap_or_default().lines() {
            self.line(format!("# {}", line.replace(char::is_control, " ")));
        }
    }

    /// Returns the lines for the configuration file.
    fn settings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.queue.is_empty() {
            lines.push("[matchmaking.queues.NAME]".to_owned());
            lines.extend(self.queue.iter().cloned());
        }
        if !self.profile.is_empty() {
            lines.extend(
                ["[matchmaking.profiles.NAME]", "function = \"rules\"", "rules = \"FILE\""]
                    .map(str::to_owned),
            );
            lines.extend(self.profile.iter().cloned());
        }
        lines
    }

    /// Notes the fields that nothing has read.
    fn note_unread(&mut self, fields: &Fields<'_>, known: &[&str]) {
        for name in fields.names().filter(|name| !known.contains(name)) {
            let path = if fields.path().is_empty() { String::new() } else { format!("{}: ", fields.path()) };
            self.note(fields.position(), format!("{path}{name} is not known and not kept"));
        }
    }
}

/// Imports a rule set, and the matchmaking configuration that it is used with, if there is one.
pub fn import(rule_set: &str, configuration: Option<&str>) -> Result<Import, Mistakes> {
    let node = Node::parse(rule_set)?;
    let report = Report::default();
    let mut draft = Draft::default();
    read_rule_set(&report, &node, &mut draft);
    let configuration = configuration.map(Node::parse).transpose()?;
    if let Some(configuration) = &configuration {
        read_configuration(&report, configuration, &mut draft);
    }
    if !report.is_empty() {
        return Err(Mistakes::new(report.into_mistakes()));
    }
    let mut text = String::from("# Imported from FlexMatch.\n");
    for note in &draft.notes {
        let _ = writeln!(text, "# {note}");
    }
    let settings = draft.settings();
    if !settings.is_empty() {
        text.push_str("#\n# For the configuration file:\n");
        for line in &settings {
            let _ = writeln!(text, "#   {line}");
        }
    }
    text.push('\n');
    text.push_str(&draft.text);
    let rules = RuleSet::parse(&text)?;
    Ok(Import { text, rules, notes: draft.notes, settings })
}

fn read_rule_set(report: &Report, node: &Node, draft: &mut Draft) {
    let fields = Fields::open_lenient(report, node, "");
    draft.note_unread(
        &fields,
        &["name", "ruleLanguageVersion", "playerAttributes", "algorithm", "teams", "rules", "expansions"],
    );
    draft.line(format!("name = {}", quoted(fields.text("name").unwrap_or("imported"))));
    if let Some(version) = fields.text("ruleLanguageVersion")
        && version != "1.0"
    {
        draft.note(node.position, format!("ruleLanguageVersion {version} is not known; it is read as 1.0"));
    }
    let expansions = Expansions::read(&fields, draft);
    let (quality, age) = read_algorithm(&fields, draft);
    for item in fields.items("playerAttributes") {
        read_attribute(&item, draft);
    }
    for item in fields.items("teams") {
        read_team(&item, &expansions, age, draft);
    }
    // A compound rule refers to rules above it.
    let rules = fields.items("rules");
    let is_compound = |item: &&Fields<'_>| item.text("type") == Some("compound");
    for item in rules.iter().filter(|item| !is_compound(item)).chain(rules.iter().filter(is_compound)) {
        rule::read(item, &expansions, age, draft);
    }
    expansions.note_unused(draft);
    if !quality.is_empty() {
        draft.line("\n[quality]");
        quality.iter().for_each(|line| draft.line(line));
    }
}

fn read_attribute(fields: &Fields<'_>, draft: &mut Draft) {
    fields.required("name");
    fields.required("type");
    let (Some(name), Some(kind)) = (fields.text("name"), fields.text("type")) else { return };
    let kind = match kind {
        "number" => "number",
        "string" => "string",
        "string_list" => "string-list",
        "string_number_map" => "number-map",
        _ => {
            fields.add(format!(
                "type: expected number, string, string_list or string_number_map, found {kind}"
            ));
            return;
        }
    };
    draft.attributes.insert(name.to_owned(), kind.to_owned());
    draft.describe(fields);
    draft.line(format!("[attributes.{}]\ntype = {}", quoted(name), quoted(kind)));
    if let Some(default) = fields.get("default") {
        match (kind, as_number(default)) {
            ("number", Some(number)) => draft.line(format!("default = {number}")),
            _ => draft.line(format!("default = {}", to_toml(default))),
        }
    }
    draft.note_unread(fields, &["name", "type", "default", "description"]);
}

fn read_team(fields: &Fields<'_>, expansions: &Expansions, age: &str, draft: &mut Draft) {
    fields.required("name");
    fields.required("maxPlayers");
    let name = fields.text("name").unwrap_or_default();
    draft.describe(fields);
    draft.line(format!("[teams.{}]", quoted(name)));
    for (from, to) in [("quantity", "count"), ("minPlayers", "min"), ("maxPlayers", "max")] {
        if let Some(node) = fields.get(from) {
            match as_number(node) {
                Some(number) => draft.line(format!("{to} = {number}")),
                None => {
                    fields.add_at(node.position, format!("{from}: expected a number, found {}", node.kind()))
                }
            }
        }
    }
    expansions.write("teams", name, age, draft);
    draft.note_unread(fields, &["name", "quantity", "minPlayers", "maxPlayers", "description"]);
}

/// Returns the lines of the quality, and whose age drives expansions.
fn read_algorithm(fields: &Fields<'_>, draft: &mut Draft) -> (Vec<String>, &'static str) {
    let mut quality = Vec::new();
    let node = fields.get("algorithm");
    let algorithm = node.map(|node| Fields::open_lenient(fields.report(), node, "algorithm"));
    let text = |name| algorithm.as_ref().and_then(|algorithm: &Fields<'_>| algorithm.text(name));
    let age = match text("expansionAgeSelection") {
        Some("oldest") => "oldest",
        _ => "youngest",
    };
    let Some(algorithm) = &algorithm else { return (quality, age) };
    let at = algorithm.position();
    let mut say = |field: &str, note: &str| draft.note(at, format!("algorithm.{field}{note}"));
    if let Some(attribute) = algorithm.text("balancedAttribute") {
        quality.push(format!("attribute = {}", quoted(attribute)));
        quality.push("balance = 1".to_owned());
    }
    match algorithm.text("strategy") {
        None => {}
        Some("exhaustiveSearch") => {
            say("strategy", " exhaustiveSearch is not kept: there is one way to search")
        }
        Some("balanced") => say(
            "strategy",
            " balanced is not kept: there is one way to search. balancedAttribute becomes the balance of [quality]",
        ),
        Some(other) => say("strategy", &format!(" {other} is not known and not kept")),
    }
    match algorithm.text("batchingPreference") {
        None => {}
        Some("fastestRegion") => {
            quality.push("latency = 1".to_owned());
            say(
                "batchingPreference",
                " fastestRegion becomes the latency of [quality]; the first region that is tried is the fastest of the oldest ticket",
            );
        }
        Some("sorted") => say(
            "batchingPreference",
            " sorted is not kept: the pool is not sorted, the oldest ticket always comes first. For an order of candidates add a sort rule",
        ),
        Some("random") => {
            say(
                "batchingPreference",
                " random is not kept: the oldest ticket always comes first, then the nearest candidates",
            );
        }
        Some("largestPopulation") => say(
            "batchingPreference",
            " largestPopulation is not kept: regions are tried in the order of the oldest ticket's latency",
        ),
        Some(other) => say("batchingPreference", &format!(" {other} is not known and not kept")),
    }
    if algorithm.get("sortByAttributes").is_some() {
        say("sortByAttributes", " is not kept: for an order of candidates add a sort rule");
    }
    match algorithm.text("expansionAgeSelection") {
        None | Some("newest" | "oldest") => {}
        Some(other) => say("expansionAgeSelection", &format!(" {other} is not known; it is read as newest")),
    }
    if algorithm.text("backfillPriority").is_some_and(|priority| priority != "high") {
        draft.note(
            at,
            "algorithm.backfillPriority: with backfill = true, matches under way are always filled before new ones are made (high)",
        );
    }
    draft.note_unread(
        algorithm,
        &[
            "strategy",
            "batchingPreference",
            "sortByAttributes",
            "balancedAttribute",
            "expansionAgeSelection",
            "backfillPriority",
        ],
    );
    (quality, age)
}

fn read_configuration(report: &Report, node: &Node, draft: &mut Draft) {
    let fields = Fields::open_lenient(report, node, "configuration");
    if let Some(seconds) = seconds(&fields, "RequestTimeoutSeconds") {
        draft.queue.push(format!("ticket_ttl = \"{seconds}s\""));
        draft.note_configuration(format!(
            "RequestTimeoutSeconds: set ticket_ttl = \"{seconds}s\" of the queue; at most matchmaking.max_ticket_ttl"
        ));
    }
    read_acceptance(&fields, draft);
    match fields.text("FlexMatchMode") {
        None => {}
        Some("WITH_QUEUE") => draft.note_configuration(
            "FlexMatchMode WITH_QUEUE is not kept: set the assigner of the profile to what requests your game servers",
        ),
        Some("STANDALONE") => draft.note_configuration(
            "FlexMatchMode STANDALONE is not kept: set the assigner of the profile to a webhook of yours, which gets each match",
        ),
        Some(other) => draft.note_configuration(format!("FlexMatchMode {other} is not known and not kept")),
    }
    if let Some(node) = fields.get("AdditionalPlayerCount") {
        match as_number(node) {
            Some(count) if count <= 0.0 => {}
            Some(count) => draft.note_configuration(format!(
                "AdditionalPlayerCount: to keep {count} places free, lower the max of a team by that many"
            )),
            None => draft.note_configuration(format!(
                "AdditionalPlayerCount {} is not a number and not kept",
                node.kind()
            )),
        }
    }
    let mut say = |note: String| draft.note_configuration(note);
    if fields.text("BackfillMode") == Some("AUTOMATIC") {
        say("BackfillMode AUTOMATIC: set backfill = true of the profile".to_owned());
    }
    const KNOWN: [&str; 6] = [
        "RequestTimeoutSeconds",
        "AcceptanceRequired",
        "AcceptanceTimeoutSeconds",
        "AdditionalPlayerCount",
        "BackfillMode",
        "FlexMatchMode",
    ];
    const ELSEWHERE: [&str; 8] = [
        "Name",
        "Description",
        "RuleSetName",
        "GameSessionQueueArns",
        "NotificationTarget",
        "CustomEventData",
        "GameProperties",
        "GameSessionData",
    ];
    for name in fields.names().filter(|name| !KNOWN.contains(name)) {
        if ELSEWHERE.contains(&name) {
            say(format!("{name} has no counterpart in a rule set and is not kept"));
        } else {
            say(format!("{name} is not known and not kept"));
        }
    }
}

/// Reads a time in seconds. Records a mistake if it is something else.
fn seconds(fields: &Fields<'_>, name: &'static str) -> Option<f64> {
    let node = fields.get(name)?;
    let seconds = as_number(node);
    if seconds.is_none() {
        fields.add_at(node.position, format!("{name}: expected a number, found {}", node.kind()));
    }
    seconds
}

/// Turns the acceptance of players into a ready check.
fn read_acceptance(fields: &Fields<'_>, draft: &mut Draft) {
    let is_required = match fields.get("AcceptanceRequired").map(|node| &node.data) {
        Some(Data::Bool(flag)) => *flag,
        Some(Data::Text(text)) => text.trim().eq_ignore_ascii_case("true"),
        _ => false,
    };
    match (is_required, seconds(fields, "AcceptanceTimeoutSeconds")) {
        (true, Some(seconds)) => {
            draft.profile.push(format!("ready_check = \"{seconds}s\""));
            draft.note_configuration(format!(
                "AcceptanceRequired: set ready_check = \"{seconds}s\" of the profile; at most matchmaking.pending_timeout"
            ));
        }
        (true, None) => {
            draft.profile.push("ready_check = \"30s\"".to_owned());
            draft.note_configuration(
                "AcceptanceRequired without AcceptanceTimeoutSeconds: choose the ready_check of the profile, such as \"30s\"",
            );
        }
        (false, Some(_)) => {
            draft.note_configuration("AcceptanceTimeoutSeconds is not kept: AcceptanceRequired is not true");
        }
        (false, None) => {}
    }
}

/// Returns a number, also if it is written as a text.
fn as_number(node: &Node) -> Option<f64> {
    match &node.data {
        Data::Number(number) => Some(*number),
        Data::Text(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

/// Quotes a text or a key for TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn to_toml(node: &Node) -> String {
    match &node.data {
        Data::Bool(flag) => flag.to_string(),
        Data::Number(number) => number.to_string(),
        Data::Text(text) => quoted(text),
        Data::List(items) => format!("[{}]", items.iter().map(to_toml).collect::<Vec<_>>().join(", ")),
        Data::Table(entries) => {
            let entry = |(key, node): &(String, Node)| format!("{} = {}", quoted(key), to_toml(node));
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        Data::Other(text) => quoted(text),
    }
}
