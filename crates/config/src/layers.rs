//! The layers that values come from.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::document::{Document, uncommented};
use crate::renamed::RenamedKey;
use crate::setting::Value;

/// The prefix of our environment variables.
pub const ENV_PREFIX: &str = "PLAYHOUSE_";

/// The layers of a configuration, lowest first: reference, file, environment, flags.
#[derive(Debug)]
pub struct Layers {
    pub(crate) reference: Document,
    /// The reference including the keys that it comments out.
    pub(crate) examples: Document,
    pub(crate) file: Option<(PathBuf, Document)>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) flags: BTreeMap<String, Flag>,
    pub(crate) renamed: &'static [RenamedKey],
    /// The configuration file, if `file` is a text that is read later. Only its `NAME` tables count.
    pub(crate) templates: Option<Arc<(PathBuf, Document)>>,
}

#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) value: String,
    /// The flag as the user wrote it, for messages: `--gateway-port`, `--set`.
    pub(crate) name: String,
}

impl Layers {
    /// Starts with the defaults of the reference alone.
    pub fn new(reference: &str) -> Self {
        Self::of_documents(Document::parse(reference), Document::parse(&uncommented(reference)))
    }

    pub(crate) fn of_documents(reference: Document, examples: Document) -> Self {
        Self {
            reference,
            examples,
            file: None,
            env: BTreeMap::new(),
            flags: BTreeMap::new(),
            renamed: &[],
            templates: None,
        }
    }

    /// Names the keys of earlier versions. They stay unknown; the report of one says what it is called now.
    pub fn with_renamed(mut self, renamed: &'static [RenamedKey]) -> Self {
        self.renamed = renamed;
        self
    }

    /// Replaces the default of a key. Does nothing if the reference has no default for it.
    pub fn with_default(mut self, key: &str, value: &str) -> Self {
        if let Some(setting) = self.reference.settings.get_mut(key) {
            setting.value = Value::Word(value.to_owned());
        }
        self
    }

    pub fn with_file(self, path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        Ok(self.with_file_text(path, &text))
    }

    pub fn with_file_text(mut self, path: &Path, text: &str) -> Self {
        self.file = Some((path.to_owned(), Document::parse(text)));
        self
    }

    /// Takes the variables with our prefix. An empty variable counts as not set.
    pub fn with_env(mut self, vars: impl IntoIterator<Item = (String, String)>) -> Self {
        let ours = vars.into_iter().filter(|(name, value)| {
            name.starts_with(ENV_PREFIX) && !value.is_empty() && !is_service_link(name, value)
        });
        self.env.extend(ours);
        self
    }

    /// Overrides one key. `flag` is the flag as the user wrote it.
    pub fn with_flag(mut self, flag: &str, key: &str, value: impl Into<String>) -> Self {
        self.flags.insert(key.to_owned(), Flag { value: value.into(), name: flag.to_owned() });
        self
    }
}

/// Returns the environment variable of a key: `PLAYHOUSE_DB_MAX_CONNECTIONS` for `db.max_connections`.
pub fn env_name(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.replace(['.', '-'], "_").to_uppercase())
}

/// Returns whether Kubernetes set the variable. For a service called `playhouse` it injects variables such as
/// `PLAYHOUSE_PORT=tcp://10.0.0.1:80` and `PLAYHOUSE_SERVICE_HOST` into every pod. They are neither settings nor mistakes.
fn is_service_link(name: &str, value: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.contains("_PORT") && (value.starts_with("tcp://") || value.starts_with("udp://")))
        || (name.contains("_PORT_") && (name.contains("_TCP") || name.contains("_UDP")))
}
