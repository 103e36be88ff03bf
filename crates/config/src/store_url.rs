//! The URL of a store that is either embedded in the process or a server.

use std::fmt;
use std::marker::PhantomData;

use url::Url;

use crate::secret::redact_url;
use crate::setting::{InvalidValue, Setting, Value};

/// A kind of server that a store can be.
pub trait Server {
    /// The URL schemes, as in `redis://…`.
    const SCHEMES: &'static [&'static str];
    /// An example URL, for messages.
    const EXAMPLE: &'static str;
    /// Whether the URL may list several servers of one cluster, separated by commas.
    const SEEDS: bool = false;

    /// Checks that the client library of the server accepts the URL.
    fn check(_url: &Url) -> Result<(), String> {
        Ok(())
    }
}

/// `memory:` (embedded), or the URL of a server. Displays without the password.
///
/// For a cluster it holds the URLs of several servers, the seeds.
pub struct StoreUrl<S>(Vec<Url>, PhantomData<S>);

impl<S: Server> StoreUrl<S> {
    pub const MEMORY: Self = Self(Vec::new(), PhantomData);

    /// Returns whether the store is embedded: part of one process and not shared.
    pub const fn is_embedded(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the server, or the first seed of a cluster. Returns none if the store is embedded.
    pub fn server(&self) -> Option<&Url> {
        self.0.first()
    }

    /// Returns all seeds, or an empty list if the store is embedded. All have the same scheme; the first one has the credentials.
    pub fn servers(&self) -> &[Url] {
        &self.0
    }

    fn parse_one(text: &str) -> Result<Url, InvalidValue> {
        let url = Url::parse(text).map_err(|error| InvalidValue::with_reason(error.to_string()))?;
        if !S::SCHEMES.contains(&url.scheme()) {
            return Err(InvalidValue::with_reason(format!("`{}` is not a supported scheme", url.scheme())));
        }
        if url.host_str().unwrap_or_default().is_empty() {
            return Err(InvalidValue::with_reason("the host is missing"));
        }
        S::check(&url).map_err(InvalidValue::with_reason)?;
        Ok(url)
    }

    fn parse_seeds(text: &str) -> Result<Vec<Url>, InvalidValue> {
        let mut seeds: Vec<Url> = Vec::new();
        for seed in text.split(',').map(str::trim) {
            if seed.is_empty() {
                return Err(InvalidValue::with_reason("there is no server between two commas"));
            }
            if seed == "memory:" {
                return Err(InvalidValue::with_reason("`memory:` cannot be combined with servers"));
            }
            let seed = match seeds.first() {
                Some(first) if !seed.contains("://") => {
                    Self::parse_one(&format!("{}://{seed}", first.scheme()))?
                }
                _ => Self::parse_one(seed)?,
            };
            let first = seeds.first().unwrap_or(&seed);
            if seed.scheme() != first.scheme() {
                return Err(InvalidValue::with_reason("all servers must have the same scheme"));
            }
            // All servers share one user. A comma in a password looks like the start of the next server.
            let has_credentials = !seed.username().is_empty() || seed.password().is_some();
            if has_credentials && credentials(&seed) != credentials(first) {
                return Err(InvalidValue::with_reason(
                    "give user and password with the first server only, or the same ones with every server; write a \
                     comma in them as %2C",
                ));
            }
            seeds.push(seed);
        }
        Ok(seeds)
    }
}

fn credentials(url: &Url) -> (&str, Option<&str>) {
    (url.username(), url.password())
}

impl<S: Server> Setting for StoreUrl<S> {
    fn expected() -> String {
        let several = if S::SEEDS { "; for a cluster, several separated by commas" } else { "" };
        format!("\"memory:\" (embedded) or \"{}\"{several}", S::EXAMPLE)
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let text = String::parse(value)?;
        if text == "memory:" {
            return Ok(Self::MEMORY);
        }
        let servers = if S::SEEDS { Self::parse_seeds(&text)? } else { vec![Self::parse_one(&text)?] };
        Ok(Self(servers, PhantomData))
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }

    fn is_secret() -> bool {
        true
    }
}

impl<S> fmt::Display for StoreUrl<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("memory:");
        }
        let shown: Vec<String> = self.0.iter().map(redact_url).collect();
        f.write_str(&shown.join(","))
    }
}

impl<S> fmt::Debug for StoreUrl<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<S> Clone for StoreUrl<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Kettle;

    impl Server for Kettle {
        const SCHEMES: &'static [&'static str] = &["kettle", "kettles"];
        const EXAMPLE: &'static str = "kettle://HOST:PORT";
    }

    #[test]
    fn scheme_selects_the_store() {
        let parse = |text: &str| StoreUrl::<Kettle>::parse(&Value::Text(text.to_owned()));
        assert!(parse("memory:").unwrap().is_embedded());
        assert_eq!(parse("kettle://u:secret@h:1/0").unwrap().to_string(), "kettle://u:***@h:1/0");
        for invalid in ["", "memory", "teapot://h", "kettle:", "kettle://"] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
    }

    struct Kettles;

    impl Server for Kettles {
        const SCHEMES: &'static [&'static str] = Kettle::SCHEMES;
        const EXAMPLE: &'static str = Kettle::EXAMPLE;
        const SEEDS: bool = true;
    }

    fn seeds(text: &str) -> Result<StoreUrl<Kettles>, InvalidValue> {
        StoreUrl::parse(&Value::Text(text.to_owned()))
    }

    #[test]
    fn several_servers_are_separated_by_commas() {
        let shown = |text: &str| seeds(text).unwrap().to_string();
        assert_eq!(shown("kettle://a:1,kettle://b:2"), "kettle://a:1,kettle://b:2");
        assert_eq!(shown("kettle://a:1, b:2"), "kettle://a:1,kettle://b:2");
        assert_eq!(seeds("kettle://u:secret@a,b").unwrap().servers().len(), 2);
        assert!(seeds("memory:").unwrap().servers().is_empty());
        for invalid in
            ["kettle://a,", ",kettle://a", "kettle://a,,b", "kettle://a,kettles://b", "kettle://a,memory:"]
        {
            assert!(seeds(invalid).is_err(), "{invalid}");
        }
        let single = StoreUrl::<Kettle>::parse(&Value::Text("kettle://a:1,kettle://b:2".to_owned()));
        assert!(single.is_err(), "only a cluster may have several servers");
    }

    #[test]
    fn all_servers_share_one_user_and_passwords_are_redacted() {
        let first = seeds("kettle://u:secret@a,kettle://b").unwrap();
        assert_eq!(first.to_string(), "kettle://u:***@a,kettle://b");
        let all = seeds("kettle://u:secret@a,kettle://u:secret@b,u:secret@c").unwrap();
        assert_eq!(all.to_string(), "kettle://u:***@a,kettle://u:***@b,kettle://u:***@c");
        // The last two have a comma in the password.
        for invalid in [
            "kettle://a,kettle://u:secret@b",
            "kettle://u:secret@a,kettle://u:other@b",
            "kettle://u:12,secret@a",
            "kettle://u:x@y,secret@a",
        ] {
            let reason = seeds(invalid).unwrap_err().reason.unwrap();
            assert!(reason.contains("%2C") && !reason.contains("secret"), "{invalid}: {reason}");
        }
    }
}
