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

    /// Whether the server's own client understands the URL.
    fn check(_url: &Url) -> Result<(), String> {
        Ok(())
    }
}

/// `memory:` (embedded), or the URL of a server. Shown without its password.
pub struct StoreUrl<S>(Option<Url>, PhantomData<S>);

impl<S: Server> StoreUrl<S> {
    pub const MEMORY: Self = Self(None, PhantomData);

    /// Embedded means: part of one process, which has it alone.
    pub const fn is_embedded(&self) -> bool {
        self.0.is_none()
    }

    pub const fn server(&self) -> Option<&Url> {
        self.0.as_ref()
    }
}

impl<S: Server> Setting for StoreUrl<S> {
    fn expected() -> String {
        format!("\"memory:\" (embedded) or \"{}\"", S::EXAMPLE)
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        let text = String::parse(value)?;
        if text == "memory:" {
            return Ok(Self::MEMORY);
        }
        let url = Url::parse(&text).map_err(|error| Rejected::because(error.to_string()))?;
        if !S::SCHEMES.contains(&url.scheme()) {
            return Err(Rejected::because(format!("{}: is not a store we know", url.scheme())));
        }
        if url.host_str().unwrap_or_default().is_empty() {
            return Err(Rejected::because("the host is missing"));
        }
        S::check(&url).map_err(Rejected::because)?;
        Ok(Self(Some(url), PhantomData))
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
        match &self.0 {
            None => f.write_str("memory:"),
            Some(url) => f.write_str(&redacted(url)),
        }
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
}
