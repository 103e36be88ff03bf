//! The types of settings.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

/// A value as the user wrote it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Value>),
    /// From the environment or a flag, where everything is text. May be parsed as a number, a flag or a list.
    Word(String),
    /// The content of a secret file: a text, or a list with one item per line.
    Content(String),
    /// A value that no setting accepts.
    Other(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Word(text) => write!(f, "{text:?}"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number}"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Content(_) => f.write_str("the content of a file"),
            Self::Other(what) => f.write_str(what),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
        }
    }
}

/// A value that a setting does not accept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct InvalidValue {
    /// Given if [`Setting::expected`] alone does not explain the error.
    pub reason: Option<String>,
}

impl InvalidValue {
    pub fn with_reason(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()) }
    }
}

/// A type that a setting can have.
pub trait Setting: Sized {
    /// Completes the sentence "expected …".
    fn expected() -> String;
    fn parse(value: &Value) -> Result<Self, InvalidValue>;
    /// Formats the value as TOML, without secrets.
    fn show(&self) -> String;
    /// Returns whether messages must not quote the value.
    fn is_secret() -> bool {
        false
    }
}

impl Setting for String {
    fn expected() -> String {
        "a string in quotes".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        match value {
            Value::Text(text) | Value::Word(text) | Value::Content(text) => Ok(text.clone()),
            _ => Err(InvalidValue::default()),
        }
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl Setting for bool {
    fn expected() -> String {
        "true or false".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        match value {
            Value::Bool(flag) => Ok(*flag),
            Value::Word(word) => word.parse().map_err(|_| InvalidValue::default()),
            _ => Err(InvalidValue::default()),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for u32 {
    fn expected() -> String {
        "a whole number".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        match value {
            Value::Integer(number) => Self::try_from(*number).map_err(|_| InvalidValue::default()),
            Value::Word(word) => word.parse().map_err(|_| InvalidValue::default()),
            _ => Err(InvalidValue::default()),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for f64 {
    fn expected() -> String {
        "a number".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        match value {
            Value::Float(number) if number.is_finite() => Ok(*number),
            #[expect(clippy::cast_precision_loss, reason = "whole numbers in settings are small")]
            Value::Integer(number) => Ok(*number as Self),
            Value::Word(word) => {
                word.parse().ok().filter(|number: &Self| number.is_finite()).ok_or_else(InvalidValue::default)
            }
            _ => Err(InvalidValue::default()),
        }
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

/// Written as numbers with units, largest first: `"1m30s"`, `"250ms"`.
impl Setting for Duration {
    fn expected() -> String {
        "a duration such as \"250ms\", \"30s\" or \"1h30m\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let (Value::Text(text) | Value::Word(text)) = value else {
            return Err(InvalidValue::default());
        };
        parse_duration(text).ok_or_else(InvalidValue::default)
    }

    fn show(&self) -> String {
        format!("{:?}", show_duration(*self))
    }
}

const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut millis: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let unit = &rest[digits..unit_end];
        let (_, factor) = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?;
        millis = millis.checked_add(number.checked_mul(*factor)?)?;
        rest = &rest[unit_end..];
    }
    Some(Duration::from_millis(millis))
}

/// Formats a duration as it is written in a configuration.
pub fn show_duration(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut shown = String::new();
    for (unit, factor) in DURATION_UNITS {
        if millis >= factor {
            shown += &format!("{}{unit}", millis / factor);
            millis %= factor;
        }
    }
    shown
}

/// A number of bytes, written with a unit: `"64KiB"`, `"10MB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const SIZE_UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl Setting for ByteSize {
    fn expected() -> String {
        "a size such as \"64KiB\" or \"10MB\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let (Value::Text(text) | Value::Word(text)) = value else {
            return Err(InvalidValue::default());
        };
        let text = text.trim();
        let parsed = SIZE_UNITS.iter().find_map(|(unit, factor)| {
            let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            number.checked_mul(*factor).map(Self)
        });
        parsed.ok_or_else(InvalidValue::default)
    }

    fn show(&self) -> String {
        let exact = SIZE_UNITS.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        let (unit, factor) = exact.copied().unwrap_or(("B", 1));
        format!("\"{}{unit}\"", self.0 / factor)
    }
}

impl Setting for SocketAddr {
    fn expected() -> String {
        "an address and port such as \"127.0.0.1:8080\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let (Value::Text(text) | Value::Word(text)) = value else {
            return Err(InvalidValue::default());
        };
        text.parse().map_err(|_| InvalidValue::default())
    }

    fn show(&self) -> String {
        format!("\"{self}\"")
    }
}

impl Setting for PathBuf {
    fn expected() -> String {
        "a path in quotes".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        String::parse(value).map(Self::from)
    }

    fn show(&self) -> String {
        format!("{:?}", self.display().to_string())
    }
}

/// The URL of a web service. It may contain credentials, which are never shown.
impl Setting for Url {
    fn expected() -> String {
        "a URL that starts with http:// or https://".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let url = Self::parse(&String::parse(value)?)
            .map_err(|error| InvalidValue::with_reason(error.to_string()))?;
        if matches!(url.scheme(), "http" | "https") { Ok(url) } else { Err(InvalidValue::default()) }
    }

    fn show(&self) -> String {
        format!("{:?}", crate::redact_url(self))
    }

    fn is_secret() -> bool {
        true
    }
}

/// Written `["a", "b"]` in a file, `a,b` in the environment or a flag, and one item per line in a secret file.
impl<T: Setting> Setting for Vec<T> {
    fn expected() -> String {
        format!("a list, each item {}", T::expected())
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        match value {
            Value::List(items) => items.iter().map(T::parse).collect(),
            Value::Word(words) => {
                words.split(',').map(|word| T::parse(&Value::Word(word.trim().to_owned()))).collect()
            }
            Value::Content(text) => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                lines.map(|line| T::parse(&Value::Text(line.to_owned()))).collect()
            }
            _ => Err(InvalidValue::default()),
        }
    }

    fn show(&self) -> String {
        let items: Vec<String> = self.iter().map(T::show).collect();
        format!("[{}]", items.join(", "))
    }

    fn is_secret() -> bool {
        T::is_secret()
    }
}

/// A setting that is one of a fixed set of words.
pub trait Choice: Copy + PartialEq + 'static {
    const WORDS: &'static [(&'static str, Self)];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, choice)| *choice == self).map_or("?", |(word, _)| word)
    }
}

impl<T: Choice> Setting for T {
    fn expected() -> String {
        let words: Vec<String> = T::WORDS.iter().map(|(word, _)| format!("{word:?}")).collect();
        format!("one of {}", words.join(", "))
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let (Value::Text(text) | Value::Word(text)) = value else {
            return Err(InvalidValue::default());
        };
        T::WORDS
            .iter()
            .find(|(word, _)| word == text)
            .map(|(_, choice)| *choice)
            .ok_or_else(InvalidValue::default)
    }

    fn show(&self) -> String {
        format!("{:?}", self.word())
    }
}
