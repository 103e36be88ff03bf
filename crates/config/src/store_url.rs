//! A store that is either part of the process or a server.

use std::fmt;
use std::marker::PhantomData;

use url::Url;

use crate::secret::redacted;
use crate::setting::{Rejected, Setting, Value};

/// Which servers a store can be.
pub trait Server {
    /// As in `redis://…`.
    const SCHEMES: &'static [&'static str];
    /// How a URL looks, for messages.
    const EXAMPLE: &'static str;
    /// Whether several servers may be named, separated by commas, each of which leads to the same store.
    const SEEDS: bool = false;

    /// Whether the server's own client understands the URL.
    fn check(_url: &Url) -> Result<(), String> {
        Ok(())
    }
}

/// `memory:` (embedded), or the URL of a server. Shown without its password.
///
/// Where the store is a cluster, the URLs of several of its servers, the seeds.
pub struct StoreUrl<S>(Vec<Url>, PhantomData<S>);

impl<S: Server> StoreUrl<S> {
    pub const MEMORY: Self = Self(Vec::new(), PhantomData);

    /// Embedded means: part of one process, which has it alone.
    pub const fn is_embedded(&self) -> bool {
        self.0.is_empty()
    }

    /// The server, or the first seed; `None` if the store is embedded.
    pub fn server(&self) -> Option<&Url> {
        self.0.first()
    }

    /// All seeds; none if the store is embedded. All have the same scheme, and the first one has the credentials.
    pub fn servers(&self) -> &[Url] {
        &self.0
    }

    fn parse_one(text: &str) -> Result<Url, Rejected> {
        let url = Url::parse(text).map_err(|error| Rejected::because(error.to_string()))?;
        if !S::SCHEMES.contains(&url.scheme()) {
            return Err(Rejected::because(format!("{}: is not a store we know", url.scheme())));
        }
        if url.host_str().unwrap_or_default().is_empty() {
            return Err(Rejected::because("the host is missing"));
        }
        S::check(&url).map_err(Rejected::because)?;
        Ok(url)
    }

    fn parse_seeds(text: &str) -> Result<Vec<Url>, Rejected> {
        let mut seeds: Vec<Url> = Vec::new();
        for seed in text.split(',').map(str::trim) {
            if seed.is_empty() {
                return Err(Rejected::because("a server is missing beside a comma"));
            }
            if seed == "memory:" {
                return Err(Rejected::because("memory: stands by itself"));
            }
            let seed = match seeds.first() {
                Some(first) if !seed.contains("://") => {
                    Self::parse_one(&format!("{}://{seed}", first.scheme()))?
                }
                _ => Self::parse_one(seed)?,
            };
            let first = seeds.first().unwrap_or(&seed);
            if seed.scheme() != first.scheme() {
                return Err(Rejected::because("all servers must have the same scheme"));
            }
            // One user for all of them. A comma in a password looks like the beginning of another server.
            let names_user = !seed.username().is_empty() || seed.password().is_some();
            if names_user && credentials(&seed) != credentials(first) {
                return Err(Rejected::because(
                    "user and password must stand before the first server, or be the same before all of them; a comma in them \
                     is written %2C",
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
        let several = if S::SEEDS { "; of a cluster several, separated by commas" } else { "" };
        format!("\"memory:\" (embedded) or \"{}\"{several}", S::EXAMPLE)
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
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
        let shown: Vec<String> = self.0.iter().map(redacted).collect();
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
    fn the_scheme_chooses_the_store() {
        let parse = |text: &str| StoreUrl::<Kettle>::parse(&Value::Text(text.to_owned()));
        assert!(parse("memory:").unwrap().is_embedded());
        assert_eq!(parse("kettle://u:secret@h:1/0").unwrap().to_string(), "kettle://u:***@h:1/0");
        for wrong in ["", "memory", "teapot://h", "kettle:", "kettle://"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    struct Kettles;

    impl Server for Kettles {
        const SCHEMES: &'static [&'static str] = Kettle::SCHEMES;
        const EXAMPLE: &'static str = Kettle::EXAMPLE;
        const SEEDS: bool = true;
    }

    fn seeds(text: &str) -> Result<StoreUrl<Kettles>, Rejected> {
        StoreUrl::parse(&Value::Text(text.to_owned()))
    }

    #[test]
    fn several_servers_are_separated_by_commas() {
        let shown = |text: &str| seeds(text).unwrap().to_string();
        assert_eq!(shown("kettle://a:1,kettle://b:2"), "kettle://a:1,kettle://b:2");
        assert_eq!(shown("kettle://a:1, b:2"), "kettle://a:1,kettle://b:2");
        assert_eq!(seeds("kettle://u:secret@a,b").unwrap().servers().len(), 2);
        assert!(seeds("memory:").unwrap().servers().is_empty());
        for wrong in
            ["kettle://a,", ",kettle://a", "kettle://a,,b", "kettle://a,kettles://b", "kettle://a,memory:"]
        {
            assert!(seeds(wrong).is_err(), "{wrong}");
        }
        let alone = StoreUrl::<Kettle>::parse(&Value::Text("kettle://a:1,kettle://b:2".to_owned()));
        assert!(alone.is_err(), "a store that is no cluster");
    }

    #[test]
    fn one_user_is_for_all_servers_and_no_password_is_shown() {
        let first = seeds("kettle://u:secret@a,kettle://b").unwrap();
        assert_eq!(first.to_string(), "kettle://u:***@a,kettle://b");
        let all = seeds("kettle://u:secret@a,kettle://u:secret@b,u:secret@c").unwrap();
        assert_eq!(all.to_string(), "kettle://u:***@a,kettle://u:***@b,kettle://u:***@c");
        // The last two are passwords with a comma.
        for wrong in [
            "kettle://a,kettle://u:secret@b",
            "kettle://u:secret@a,kettle://u:other@b",
            "kettle://u:12,secret@a",
            "kettle://u:x@y,secret@a",
        ] {
            let reason = seeds(wrong).unwrap_err().reason.unwrap();
            assert!(reason.contains("%2C") && !reason.contains("secret"), "{wrong}: {reason}");
        }
    }
}
