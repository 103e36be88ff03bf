//! Secret values and their redaction.

use std::fmt;

use url::Url;

use crate::setting::{InvalidValue, Setting, Value};

pub(crate) const REDACTED: &str = "***";

/// A secret text. It is shown as `***` everywhere; only [`expose`](Self::expose) returns the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Setting for Secret {
    fn expected() -> String {
        "a string".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        String::parse(value).map(Self)
    }

    fn show(&self) -> String {
        format!("{REDACTED:?}")
    }

    fn is_secret() -> bool {
        true
    }
}

/// Longer path segments are redacted.
const LONGEST_WORD: usize = 24;

/// Formats a URL without its secrets.
///
/// Redacts the password (or the user, if there is no password), the values of query parameters other than `true`, `false` and
/// `…mode`, the fragment, and the path segments of a web address that are not plain words. The path of a webhook is often its only
/// secret.
pub fn redact_url(url: &Url) -> String {
    let mut shown = url.clone();
    // Setting these parts fails only for URLs that cannot have them, and this URL has them.
    if shown.password().is_some() {
        let _ = shown.set_password(Some(REDACTED));
    } else if !shown.username().is_empty() {
        // A user without a password may be a token.
        let _ = shown.set_username(REDACTED);
    }
    if shown.query().is_some() {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let mut query = shown.query_pairs_mut();
        query.clear();
        for (name, value) in pairs {
            // Numbers are redacted too: one may be a PIN.
            let harmless = matches!(value.as_str(), "true" | "false") || name.ends_with("mode");
            query.append_pair(&name, if harmless { &value } else { REDACTED });
        }
        drop(query);
    }
    if matches!(url.scheme(), "http" | "https") {
        let path: Vec<&str> =
            url.path().split('/').map(|part| if is_plain(part) { part } else { REDACTED }).collect();
        shown.set_path(&path.join("/"));
    }
    if shown.fragment().is_some() {
        shown.set_fragment(Some(REDACTED));
    }
    shown.to_string()
}

/// Returns whether a path segment is a word or a version such as `realms`, `v1` or `.well-known`, and not a random string.
fn is_plain(part: &str) -> bool {
    let is_version = part
        .strip_prefix('v')
        .is_some_and(|digits| (1..=2).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_digit()));
    let is_word = |c: char| c.is_ascii_lowercase() || matches!(c, '-' | '_' | '.');
    is_version || (part.len() <= LONGEST_WORD && part.chars().all(is_word))
}
