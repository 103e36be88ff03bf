//! Values that must not be seen.

use std::fmt;

use url::Url;

use crate::setting::{Rejected, Setting, Value};

const REDACTED: &str = "***";

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

/// A URL without its secrets: the password (or the user, where there is none), and the values of all query parameters that
/// are not plainly harmless.
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
            let harmless = value.parse::<f64>().is_ok()
                || matches!(value.as_str(), "true" | "false")
                || name.ends_with("mode");
            query.append_pair(&name, if harmless { &value } else { REDACTED });
        }
        drop(query);
    }
    shown.to_string()
}
