//! Values that must not be seen.

use std::fmt;

use url::Url;

use crate::setting::{Rejected, Setting, Value};

pub(crate) const REDACTED: &str = "***";

/// A secret text. It is shown as `***` everywhere; [`expose`](Self::expose) is the only way to the text.
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
        "a text".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        String::parse(value).map(Self)
    }

    fn show(&self) -> String {
        format!("{REDACTED:?}")
    }

    fn is_secret() -> bool {
        true
    }
}

/// The longest word of a path that is shown.
const LONGEST_WORD: usize = 24;

/// A URL without its secrets: the password (or the user, where there is none), the values of all query parameters that are not
/// plainly harmless, and the parts of a web address's path that are no plain words. Webhooks are often secret by their path alone.
pub fn redacted(url: &Url) -> String {
    let mut shown = url.clone();
    // Setting them fails only for URLs that cannot have them, and this one has.
    if shown.password().is_some() {
        let _ = shown.set_password(Some(REDACTED));
    } else if !shown.username().is_empty() {
        // Alone it may be a token.
        let _ = shown.set_username(REDACTED);
    }
    if shown.query().is_some() {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let mut query = shown.query_pairs_mut();
        query.clear();
        for (name, value) in pairs {
            // Not numbers: a PIN is one.
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

/// Whether a part of a path is made of words and a version, such as `realms`, `v1` or `.well-known`: nothing that was drawn at random.
fn is_plain(part: &str) -> bool {
    let is_version = part
        .strip_prefix('v')
        .is_some_and(|digits| (1..=2).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_digit()));
    let is_word = |c: char| c.is_ascii_lowercase() || matches!(c, '-' | '_' | '.');
    is_version || (part.len() <= LONGEST_WORD && part.chars().all(is_word))
}
