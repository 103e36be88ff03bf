//! The host names of a listener, and the origins whose pages may send it changes.
//!
//! A foreign page in an operator's browser must not reach a listener. It could use DNS rebinding: its own name resolves to our
//! address, which the `Host` of its requests shows. Or it could post across origins, which the `Origin` shows.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ::http::header::{HOST, ORIGIN};
use ::http::{HeaderMap, Method, Request, Uri};
use base::Code;
use config::{InvalidValue, Setting, Value};

use super::Problem;

/// Paths that load balancers and monitoring call under any host name. They are read-only and have no personal data.
const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Domains that cannot be registered, so no foreign page has such a name: RFC 6761, RFC 6762, RFC 8375, and the private-use `internal`.
const PRIVATE: [&str; 4] = [".localhost", ".local", ".internal", ".home.arpa"];

/// A host name of a listener: `play.example.com`, `*.example.com` for all names below it, or `*` for any name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern(String);

impl HostPattern {
    /// Creates a pattern that matches one name.
    pub fn of(name: &str) -> Self {
        Self(name.to_ascii_lowercase())
    }

    fn matches(&self, name: &str) -> bool {
        match self.0.strip_prefix('*') {
            Some("") => true,
            Some(ending) => name.len() > ending.len() && name.ends_with(ending),
            None => self.0 == name,
        }
    }
}

impl Setting for HostPattern {
    fn expected() -> String {
        "the name of a host without a port, such as \"play.example.com\", \"*.example.com\" for all names below it, or \"*\" for any"
            .to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let text = String::parse(value)?.to_ascii_lowercase();
        let rest = text.strip_prefix("*.").unwrap_or(&text);
        let is_name = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
        };
        if text == "*" || is_name(rest) { Ok(Self(text)) } else { Err(InvalidValue::default()) }
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The names and origins of a listener. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Site {
    hosts: Arc<[HostPattern]>,
    origins: Origins,
}

/// The origins whose pages may send changes.
#[derive(Clone, Debug)]
enum Origins {
    /// The listener's own origin, and these.
    OwnAnd(Arc<[String]>),
    /// The routes check the origin themselves.
    CheckedByRoutes,
}

impl Site {
    /// Creates a site that accepts changes from its own pages and from those of `origins`.
    pub fn new(hosts: impl IntoIterator<Item = HostPattern>, origins: &[String]) -> Self {
        Self { hosts: hosts.into_iter().collect(), origins: Origins::OwnAnd(origins.into()) }
    }

    /// Creates a site whose routes check the origin themselves.
    pub fn with_checked_origins(hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        Self { hosts: hosts.into_iter().collect(), origins: Origins::CheckedByRoutes }
    }

    /// Refuses a request for an unknown host, or a change from a foreign page.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let (uri, headers) = (request.uri(), request.headers());
        if !PROBES.contains(&uri.path()) {
            self.check_host(uri, headers)?;
        }
        self.check_origin(request.method(), uri, headers)
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let named = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?"));
        // A client that sends no host is not a browser.
        for authority in uri.authority().map(|authority| authority.as_str()).into_iter().chain(named) {
            let host = host_of(authority);
            if !self.is_ours(host) {
                let detail = format!(
                    "This listener does not answer to the name {host:?}. Call it by its address, or add the name to \
                     `listen.allowed_hosts`."
                );
                return Err(Problem::new(Code::PermissionDenied).cause("unknown-host").detail(detail));
            }
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        if is_address(host) {
            return true;
        }
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        // A name without a dot is resolved only within the local network.
        !name.contains('.') && !name.is_empty()
            || PRIVATE.iter().any(|ending| name.ends_with(ending))
            || self.hosts.iter().any(|pattern| pattern.matches(&name))
    }

    fn check_origin(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let Origins::OwnAnd(known) = &self.origins else { return Ok(()) };
        let Some(origin) = headers.get(ORIGIN).filter(|_| !method.is_safe()) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or("?");
        let page = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let named = headers.get(HOST).and_then(|host| host.to_str().ok());
        let own = uri.authority().map(|authority| authority.as_str()).or(named);
        let is_own = page.zip(own).is_some_and(|(page, own)| page.eq_ignore_ascii_case(own));
        if is_own || known.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
            return Ok(());
        }
        let detail = format!(
            "Pages of the origin {origin:?} may not change anything here. If a proxy of yours serves this listener under that origin, \
             add it to `listen.allowed_origins`."
        );
        Err(Problem::new(Code::PermissionDenied).cause("foreign-origin").detail(detail))
    }
}

/// Returns the host of `HOST:PORT`, without the brackets of an IPv6 address.
fn host_of(authority: &str) -> &str {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, rest)| rest);
    if let Some((host, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return host;
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Returns whether the host is an IP address, which DNS rebinding cannot use.
fn is_address(host: &str) -> bool {
    host.parse::<Ipv4Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        let hosts = ["play.example.com", "*.games.example"].map(HostPattern::of);
        Site::new(hosts, &["https://console.example.com".to_owned()])
    }

    fn request(method: &str, host: &str, origin: Option<&str>) -> Request<()> {
        let mut request = Request::builder().method(method).uri("/outbox").header(HOST, host);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn registrable_names_are_refused_unless_configured() {
        for ours in [
            "127.0.0.1:8082",
            "10.1.2.3",
            "[::1]:8082",
            "[2001:db8::1]",
            "localhost:8082",
            "LOCALHOST",
            "a.localhost",
            "playhouse:8081",
            "playhouse.prod.svc.cluster.local",
            "ip-10-0-0-1.ec2.internal",
            "play.example.com",
            "PLAY.example.com.:443",
            "eu.games.example",
        ] {
            assert!(site().check(&request("GET", ours, None)).is_ok(), "{ours}");
        }
        for foreign in [
            "evil.example",
            "127.0.0.1.evil.example:8082",
            "localhost.evil.example",
            "notgames.example",
            "games.example",
            "play.example.com@evil.example",
            "",
            "evil.example:8082",
        ] {
            assert!(site().check(&request("GET", foreign, None)).is_err(), "{foreign}");
        }
        let both = Request::get("http://127.0.0.1/outbox").header(HOST, "evil.example").body(()).unwrap();
        assert!(site().check(&both).is_err(), "every name that a request has is checked");
        let without_host = Request::get("/outbox").body(()).unwrap();
        assert!(site().check(&without_host).is_ok(), "HTTP/1.0 needs no host, and browsers always send one");
    }

    #[test]
    fn probes_are_answered_under_any_name() {
        for path in PROBES {
            let request = Request::get(path).header(HOST, "lb.example.net").body(()).unwrap();
            assert!(site().check(&request).is_ok(), "{path}");
        }
    }

    #[test]
    fn only_own_and_configured_pages_may_send_changes() {
        let at = "127.0.0.1:8082";
        for (method, origin, allowed) in [
            ("POST", None, true),
            ("POST", Some("http://127.0.0.1:8082"), true),
            ("POST", Some("https://127.0.0.1:8082"), true),
            ("DELETE", Some("https://console.example.com"), true),
            ("GET", Some("https://evil.example"), true),
            ("POST", Some("https://evil.example"), false),
            ("POST", Some("http://127.0.0.1:9999"), false),
            ("POST", Some("http://127.0.0.1"), false),
            ("PUT", Some("null"), false),
            ("DELETE", Some(""), false),
        ] {
            assert_eq!(site().check(&request(method, at, origin)).is_ok(), allowed, "{method} {origin:?}");
        }
        let gateway = Site::with_checked_origins([]);
        assert!(gateway.check(&request("POST", at, Some("https://evil.example"))).is_ok());
        assert!(gateway.check(&request("POST", "evil.example", None)).is_err());
    }

    #[test]
    fn pattern_must_be_a_host_name() {
        let parse = |text: &str| HostPattern::parse(&Value::Text(text.to_owned()));
        for valid in ["*", "*.example.com", "Play.Example.com", "host_1"] {
            assert!(parse(valid).is_ok(), "{valid}");
        }
        for wrong in ["", "*.", "a*b", "https://a", "a:80", "a b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(HostPattern::of("*").matches("any.example"));
    }
}
