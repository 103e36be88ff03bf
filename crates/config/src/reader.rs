//! Reads keys from the layers and records origins, mistakes and effective values.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::document::{TEMPLATE, child_of};
use crate::effective::Effective;
use crate::layers::{Layers, env_name};
use crate::problem::{Origin, Problem, Problems};
use crate::secret::REDACTED;
use crate::secret_file::{self, file_key};
use crate::setting::{Setting, Value};
use crate::table_reader::TableReader;

/// The longest name that a user may give a table.
const MAX_NAME: usize = 64;

/// Gives a section its values.
#[derive(Debug)]
pub struct Reader<'a> {
    state: &'a mut State,
    prefix: String,
    /// The prefix as the reference spells it: with `NAME` for a name that the user chose.
    template: String,
    /// Whether this is the file's own `NAME` table. Its values are defaults, so required keys may be absent and ranges are not checked.
    is_template: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) layers: Layers,
    pub(crate) read: BTreeMap<String, Origin>,
    /// The paths below which users name tables: `matchmaking.profiles`.
    pub(crate) containers: BTreeSet<String>,
    /// The tables that the user named: `matchmaking.profiles.duel`.
    pub(crate) named_tables: BTreeMap<String, Origin>,
    /// The keys of the file's own templates. They are not settings: variables and flags cannot set them.
    pub(crate) templates: BTreeSet<String>,
    effective: Effective,
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<String>,
    /// Keys whose value was rejected. Checks that depend on them are skipped.
    rejected: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub(crate) fn root(state: &'a mut State) -> Self {
        Self::of_table(state, "", "")
    }

    pub(crate) fn of_table(state: &'a mut State, prefix: &str, template: &str) -> Self {
        Self { state, prefix: prefix.to_owned(), template: template.to_owned(), is_template: false }
    }

    /// Reads a section below this one.
    pub fn section<T: crate::Section>(&mut self, name: &str) -> T {
        let prefix = format!("{}{name}.", self.prefix);
        let template = format!("{}{name}.", self.template);
        T::read(&mut Reader { state: self.state, prefix, template, is_template: self.is_template })
    }

    /// Reads the tables below `name` that the user named: `[name.duel]` becomes the item `duel`.
    ///
    /// Only the file names tables. The environment and flags may override a key of a table that the file has. They cannot add a
    /// table, because a variable does not show where the name ends and the key begins. A table may be empty.
    /// A table that is called `NAME` in the file works as in the reference: it holds the defaults of the others.
    pub fn tables<T: crate::Section>(&mut self, name: &str) -> BTreeMap<String, T> {
        let path = format!("{}{name}", self.prefix);
        let template = format!("{}{name}.{TEMPLATE}.", self.template);
        self.state.containers.insert(path.clone());
        self.reject_values_in_place_of_tables(&path);
        let mut tables = BTreeMap::new();
        for (name, origin) in self.state.names_below(&path) {
            let table = format!("{path}.{name}");
            let prefix = format!("{table}.");
            let is_template = prefix == template;
            self.state.named_tables.insert(table.clone(), origin.clone());
            if !is_template {
                self.state.effective.add_table(&table);
            }
            // A table with an invalid name is read too, so that its other mistakes are found.
            let read =
                T::read(&mut Reader { state: self.state, prefix, template: template.clone(), is_template });
            if !is_template {
                match self.check_table_name(&name) {
                    Ok(()) => drop(tables.insert(name, read)),
                    Err(expected) => {
                        let message = format!("[{table}]: {expected}, found {name}");
                        self.state.problems.push(Problem { origin, message, help: None });
                    }
                }
            }
        }
        tables
    }

    fn check_table_name(&self, name: &str) -> Result<(), String> {
        if self.is_template {
            return Err(format!("in a template the name must be {TEMPLATE}"));
        }
        check_table_name(name)
    }

    /// Returns a reader of further tables below `name`, for texts that come after the start. Call it after
    /// [`tables`](Self::tables), whose tables it contains as texts.
    pub fn table_reader(&self, name: &str) -> TableReader {
        let (layers, path) = (&self.state.layers, format!("{}{name}", self.prefix));
        let below = self.state.named_tables.keys().filter_map(|table| child_of(&path, table));
        let named = below.filter(|name| *name != TEMPLATE);
        let text = |name: &str| self.state.effective.text_of(&format!("{path}.{name}"));
        TableReader {
            reference: Arc::new(layers.reference.clone()),
            examples: Arc::new(layers.examples.clone()),
            file: layers.file.clone().map(Arc::new),
            texts: named.map(|name| (name.to_owned(), text(name))).collect(),
            template: format!("{}{name}.{TEMPLATE}.", self.template),
            path,
        }
    }

    /// Records values where only named tables are allowed.
    fn reject_values_in_place_of_tables(&mut self, path: &str) {
        let Some((file, document)) = &self.state.layers.file else { return };
        let misplaced =
            document.settings.iter().filter(|(key, _)| *key == path || child_of(path, key).is_some());
        for (key, setting) in misplaced {
            let origin = Origin::file(file, &setting.position);
            let example = if key == path { format!("{key}.{TEMPLATE}") } else { key.clone() };
            let message = format!("{key}: expected a table, as in `[{example}]`");
            self.state.problems.push(Problem { origin: origin.clone(), message, help: None });
            self.state.read.insert(key.clone(), origin);
        }
    }

    /// Reads a key that has a default.
    ///
    /// # Panics
    /// If the reference has no valid default for the key. That is a bug, which the test of the reference finds.
    pub fn get<T: Setting>(&mut self, name: &str) -> T {
        let given = self.given::<T>(name).unwrap_or_else(|| {
            let default = self.state.layers.reference.settings.get(&format!("{}{name}", self.template));
            let parsed = default.and_then(|setting| T::parse(&setting.value).ok());
            #[expect(clippy::expect_used, reason = "see # Panics")]
            parsed.expect("every key that is read has a valid default in the reference")
        });
        self.show(name, Some(given.show()));
        given
    }

    /// Reads a key that may be absent.
    pub fn optional<T: Setting>(&mut self, name: &str) -> Option<T> {
        let given = self.given::<T>(name);
        self.show(name, given.as_ref().map(Setting::show));
        given
    }

    /// Reads a key that the user must set. The reference has it commented out. If it is absent, the reader continues with that
    /// example until all mistakes are known.
    ///
    /// # Panics
    /// If the reference has no valid example for the key. That is a bug, which the test of the reference finds.
    pub fn required<T: Setting>(&mut self, name: &str) -> T {
        let key = format!("{}{name}", self.prefix);
        let given = self.given::<T>(name);
        if given.is_none() && !self.is_template && !self.state.rejected.contains(&key) {
            let problem =
                Problem { origin: self.origin_of(&key), message: format!("{key}: is required"), help: None };
            self.state.problems.push(problem);
            self.state.rejected.insert(key);
        }
        let value = given.unwrap_or_else(|| {
            let example = self.state.layers.examples.settings.get(&format!("{}{name}", self.template));
            let parsed = example.and_then(|setting| T::parse(&setting.value).ok());
            #[expect(clippy::expect_used, reason = "see # Panics")]
            parsed.expect("every required key has a valid example in the reference")
        });
        self.show(name, Some(value.show()));
        value
    }

    /// Reads a key that has a default. Records a mistake if the value is out of range.
    pub fn get_within<T: Setting + PartialOrd>(&mut self, name: &str, range: RangeInclusive<T>) -> T {
        let value: T = self.get(name);
        self.check_within(name, &value, &range);
        value
    }

    /// As [`get_within`](Self::get_within), for a key that the user must set.
    pub fn required_within<T: Setting + PartialOrd>(&mut self, name: &str, range: RangeInclusive<T>) -> T {
        let value: T = self.required(name);
        self.check_within(name, &value, &range);
        value
    }

    fn check_within<T: Setting + PartialOrd>(&mut self, name: &str, value: &T, range: &RangeInclusive<T>) {
        self.check(&[name], range.contains(value), || {
            format!("must be from {} to {}, found {}", range.start().show(), range.end().show(), value.show())
        });
    }

    /// Records a mistake in one key or in a combination of keys unless `holds`. The keys are names below this section (for a named
    /// table `profiles.duel.players`, or `profiles.duel` for all of it). The message points at the first key that the user set.
    pub fn check(&mut self, names: &[&str], holds: bool, message: impl FnOnce() -> String) {
        let keys: Vec<String> = names.iter().map(|name| format!("{}{name}", self.prefix)).collect();
        if holds || self.is_template || keys.iter().any(|key| self.state.rejected.contains(key)) {
            return;
        }
        let is_set = |key: &&String| {
            self.state.named_tables.contains_key(*key)
                || self.state.read.get(*key).is_some_and(|origin| *origin != Origin::Default)
        };
        let given = keys.iter().find(is_set).unwrap_or(&keys[0]);
        let problem =
            Problem { origin: self.origin_of(given), message: format!("{given}: {}", message()), help: None };
        self.state.problems.push(problem);
    }

    /// Returns where a key was set. If it was not set, returns where its table is.
    fn origin_of(&self, key: &str) -> Origin {
        if let Some(origin) = self.state.read.get(key).filter(|origin| **origin != Origin::Default) {
            return origin.clone();
        }
        let above = std::iter::successors(Some(key), |key| Some(key.rsplit_once('.')?.0));
        let mut named = above.filter_map(|path| self.state.named_tables.get(path));
        named.next().cloned().unwrap_or(Origin::Default)
    }

    /// Returns the value of the topmost layer above the defaults that has the key. Returns none if it is absent or invalid.
    fn given<T: Setting>(&mut self, name: &str) -> Option<T> {
        let key = format!("{}{name}", self.prefix);
        let found = if self.is_template {
            self.state.templates.insert(key.clone());
            if T::is_secret() {
                self.state.templates.insert(file_key(&key));
            }
            self.state.lookup_in_file(&key, T::is_secret())
        } else {
            let found = self.state.lookup(&key, &format!("{}{name}", self.template), T::is_secret());
            let origin = match &found {
                Ok(found) => found.as_ref().map_or(Origin::Default, |(_, origin)| origin.clone()),
                Err(problem) => problem.origin.clone(),
            };
            if T::is_secret() {
                self.state.read.insert(file_key(&key), origin.clone());
                self.state.effective.add_secret(&key);
            }
            self.state.read.insert(key.clone(), origin);
            found
        };
        let (value, origin) = match found {
            Ok(found) => found?,
            Err(problem) => {
                if !self.state.problems.contains(&problem) {
                    self.state.problems.push(problem);
                }
                self.state.rejected.insert(key);
                return None;
            }
        };
        match T::parse(&value) {
            Ok(parsed) => {
                // The path of a file is not a secret.
                if !matches!(value, Value::Content(_)) {
                    self.warn_about_secret(&key, &parsed, &origin);
                }
                Some(parsed)
            }
            // Reported already when the template was read.
            Err(_) if self.is_rejected_template_value(name, &origin) => {
                self.state.rejected.insert(key);
                None
            }
            Err(invalid) => {
                let found = if T::is_secret() { "something else".to_owned() } else { value.to_string() };
                let problem = Problem {
                    origin,
                    message: format!("{key}: expected {}, found {found}", T::expected()),
                    help: invalid.reason,
                };
                self.state.problems.push(problem);
                self.state.rejected.insert(key);
                None
            }
        }
    }

    /// Warns about a secret on the command line. A URL without a password is not a secret.
    fn warn_about_secret<T: Setting>(&mut self, key: &str, value: &T, origin: &Origin) {
        if let Origin::Flag(flag) = origin
            && T::is_secret()
            && value.show().contains(REDACTED)
        {
            let variable = env_name(&file_key(key));
            self.state.warnings.push(format!(
                "{flag} {key}: every user of this machine can read a secret on the command line; put it into a file and set \
                 {variable}=FILE"
            ));
        }
    }

    /// Returns whether a value comes from the file's template and was rejected there already.
    fn is_rejected_template_value(&self, name: &str, origin: &Origin) -> bool {
        let key = format!("{}{name}", self.template);
        !self.is_template
            && self.state.rejected.contains(&key)
            && self
                .state
                .lookup_in_file(&key, false)
                .is_ok_and(|found| found.is_some_and(|(_, found)| found == *origin))
    }

    fn show(&mut self, name: &str, shown: Option<String>) {
        if self.is_template {
            return;
        }
        let key = format!("{}{name}", self.prefix);
        let origin = self.state.read.get(&key).cloned().unwrap_or(Origin::Default);
        self.state.effective.add(key, format!("{}{name}", self.template), shown, origin);
    }
}

impl State {
    pub(crate) fn new(layers: Layers) -> Self {
        let mut problems = Vec::new();
        if let Some((path, document)) = &layers.file {
            problems.extend(document.syntax.iter().map(|(position, message)| Problem {
                origin: Origin::file(path, position),
                message: format!("not valid TOML: {message}"),
                help: None,
            }));
        }
        Self {
            layers,
            read: BTreeMap::new(),
            containers: BTreeSet::new(),
            named_tables: BTreeMap::new(),
            templates: BTreeSet::new(),
            effective: Effective::default(),
            problems,
            warnings: Vec::new(),
            rejected: BTreeSet::new(),
        }
    }

    /// Finds the value of a key in the topmost layer that has it. If the key may hold a secret, the layer may have its file instead.
    fn lookup(&self, key: &str, template: &str, is_secret: bool) -> LookupResult {
        let flag = |key: &str| {
            let flag = self.layers.flags.get(key)?;
            Some((Value::Word(flag.value.clone()), Origin::Flag(flag.name.clone())))
        };
        if let Some(found) = value_or_file(key, is_secret, flag)? {
            return Ok(Some(found));
        }
        let variable = |key: &str| {
            let variable = env_name(key);
            Some((Value::Word(self.layers.env.get(&variable)?.clone()), Origin::Env(variable)))
        };
        if let Some(found) = value_or_file(key, is_secret, variable)? {
            return Ok(Some(found));
        }
        match self.lookup_in_file(key, is_secret)? {
            None => self.lookup_in_templates(template, is_secret),
            found => Ok(found),
        }
    }

    /// Finds the value of a key in a `NAME` table of the configuration file.
    fn lookup_in_templates(&self, template: &str, is_secret: bool) -> LookupResult {
        let Some(file) = &self.layers.templates else { return self.lookup_in_file(template, is_secret) };
        let (path, document) = &**file;
        value_or_file(template, is_secret, |key| {
            let setting = document.settings.get(key)?;
            Some((setting.value.clone(), Origin::file(path, &setting.position)))
        })
    }

    fn lookup_in_file(&self, key: &str, is_secret: bool) -> LookupResult {
        value_or_file(key, is_secret, |key| {
            let (path, document) = self.layers.file.as_ref()?;
            let setting = document.settings.get(key)?;
            Some((setting.value.clone(), Origin::file(path, &setting.position)))
        })
    }

    /// Returns the tables directly below a path of the file, sorted by name, with the template first.
    fn names_below(&self, path: &str) -> Vec<(String, Origin)> {
        let Some((file, document)) = &self.layers.file else { return Vec::new() };
        let below = document.tables.iter().filter_map(|(table, position)| {
            Some((child_of(path, table)?.to_owned(), Origin::file(file, position)))
        });
        let mut names: Vec<_> = below.collect();
        names.sort_by_key(|(name, _)| name != TEMPLATE);
        names
    }

    pub(crate) fn finish(mut self) -> Result<Effective, Problems> {
        self.find_unknown();
        if self.problems.is_empty() {
            // The order of the reference, not the order in which sections were read.
            let tables = &self.layers.reference.tables;
            self.effective.sort_by_rank(|table| tables.get(table).map_or(0, |position| position.line));
            return Ok(self.effective);
        }
        self.problems.sort_by_key(|problem| match problem.origin {
            Origin::File { line, column, .. } => (0, line, column),
            Origin::Env(_) => (1, 0, 0),
            Origin::Flag(_) => (2, 0, 0),
            Origin::Default => (3, 0, 0),
        });
        Err(Problems(self.problems))
    }
}

/// Checks the name that a user gives a table. Fails with what is allowed.
pub fn check_table_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_allowed) {
        Ok(())
    } else {
        Err(format!("the name must be 1 to {MAX_NAME} characters of a-z, 0-9, `_` and `-`"))
    }
}

/// A value with its origin, or the mistake in the secret file that should have it.
type LookupResult = Result<Option<(Value, Origin)>, Problem>;

/// Finds the value of a key in one layer, either directly or in the file that `KEY_file` names.
fn value_or_file(
    key: &str,
    is_secret: bool,
    given: impl Fn(&str) -> Option<(Value, Origin)>,
) -> LookupResult {
    let value = given(key);
    let Some((file, origin)) = is_secret.then(|| given(&file_key(key))).flatten() else { return Ok(value) };
    let problem = |what: String| {
        let message = format!("{}: {what}", file_key(key));
        Problem { origin: origin.clone(), message, help: None }
    };
    if value.is_some() {
        return Err(problem(format!("{key} is set as well; set only one of them")));
    }
    let (Value::Text(path) | Value::Word(path)) = file else {
        return Err(problem("expected the path of a file".to_owned()));
    };
    secret_file::read(&path).map(|content| Some((content, origin.clone()))).map_err(problem)
}
