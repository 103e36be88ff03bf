//! Differences between clients: the minimum versions, features and hidden fields of each platform.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use ::config::{InvalidValue, Reader, Section, Setting, Value};
use ::http::{HeaderMap, HeaderName};
use base::Code;
use http_server::Problem;
use serde_json::json;
use url::Url;

pub(crate) const PLATFORM: HeaderName = HeaderName::from_static("x-client-platform");
pub(crate) const VERSION: HeaderName = HeaderName::from_static("x-client-version");

/// A kind of client.
#[derive(Clone, Debug)]
pub(crate) struct Platform {
    /// The oldest version that may play. Older clients get 426.
    pub(crate) min_version: Option<Version>,
    /// Where players find a newer version.
    pub(crate) update_url: Option<Url>,
    /// Fields that its clients do not see: `ROUTE.FIELD`, for example `me.roles`.
    pub(crate) hidden: Vec<HiddenField>,
}

/// A feature that is switched on for some clients.
#[derive(Clone, Debug)]
pub(crate) struct Feature {
    pub(crate) on: bool,
    /// The platforms that have it; empty means all.
    pub(crate) platforms: Vec<String>,
    /// The oldest version that has it.
    pub(crate) min_version: Option<Version>,
}

impl Section for Platform {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            min_version: reader.optional("min_version"),
            update_url: reader.optional("update_url"),
            hidden: reader.get("hidden"),
        }
    }
}

impl Section for Feature {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            on: reader.get("on"),
            platforms: reader.get("platforms"),
            min_version: reader.optional("min_version"),
        }
    }
}

/// A version of up to six numbers. Missing numbers at the end are 0.
#[derive(Clone, Debug)]
pub(crate) struct Version(Vec<u64>);

impl Version {
    const PARTS: usize = 6;

    fn part(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let orders = (0..Self::PARTS).map(|at| self.part(at).cmp(&other.part(at)));
        orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Version {}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&parts.join("."))
    }
}

impl FromStr for Version {
    type Err = ();

    /// Parses `1.4.0`. A suffix, as in `1.4.0-beta.2+77`, is ignored.
    fn from_str(text: &str) -> Result<Self, ()> {
        let numbers = text.split(['-', '+']).next().unwrap_or_default();
        let part = |part: &str| {
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().map_err(drop).and_then(|number| if digits { Ok(number) } else { Err(()) })
        };
        let parts: Vec<u64> = numbers.split('.').map(part).collect::<Result<_, _>>()?;
        if parts.len() <= Self::PARTS { Ok(Self(parts)) } else { Err(()) }
    }
}

impl Setting for Version {
    fn expected() -> String {
        "a version such as \"1.4.0\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        String::parse(value)?
            .parse()
            .map_err(|()| InvalidValue::with_reason("it is not a list of numbers separated by dots"))
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// A field of the response of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HiddenField {
    /// The last word of the route: `me` for `/v1/me`.
    route: String,
    path: Vec<String>,
}

impl HiddenField {
    pub(crate) fn route(&self) -> &str {
        &self.route
    }

    /// Removes the field from a value. Removes it from each item of a list on the path.
    fn remove(path: &[String], value: &mut serde_json::Value) {
        match (path, value) {
            (path, serde_json::Value::Array(items)) => {
                items.iter_mut().for_each(|item| Self::remove(path, item));
            }
            ([name], serde_json::Value::Object(fields)) => {
                fields.remove(name);
            }
            ([name, rest @ ..], serde_json::Value::Object(fields)) => {
                if let Some(value) = fields.get_mut(name) {
                    Self::remove(rest, value);
                }
            }
            _ => {}
        }
    }
}

impl fmt::Display for HiddenField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.route, self.path.join("."))
    }
}

impl Setting for HiddenField {
    fn expected() -> String {
        "a field of a response such as \"me.roles\" or \"home.entitlements.data.next\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let text = String::parse(value)?;
        let mut words = text.split('.').map(str::to_owned);
        let route = words.next().filter(|route| !route.is_empty());
        let path: Vec<String> = words.collect();
        match route {
            Some(route) if !path.is_empty() && path.iter().all(|word| !word.is_empty()) => {
                Ok(Self { route, path })
            }
            _ => Err(InvalidValue::with_reason("it is not ROUTE.FIELD")),
        }
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// All platforms and features.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    platforms: BTreeMap<String, Platform>,
    features: BTreeMap<String, Feature>,
}

/// The platform and version that a request reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    pub(crate) platform: Option<String>,
    pub(crate) version: Option<Version>,
}

impl Clients {
    pub(crate) fn new(platforms: BTreeMap<String, Platform>, features: BTreeMap<String, Feature>) -> Self {
        Self { platforms, features }
    }

    /// Reads the platform and version of the client. Both are optional.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Result<Client, Problem> {
        let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let version = text(&VERSION).map(|text| {
            text.parse().map_err(|()| {
                let detail = format!("{VERSION} must be numbers separated by dots, such as 1.4.0.");
                Problem::new(Code::InvalidArgument).detail(detail)
            })
        });
        Ok(Client { platform: text(&PLATFORM).map(ToOwned::to_owned), version: version.transpose()? })
    }

    fn platform(&self, client: &Client) -> Option<&Platform> {
        self.platforms.get(client.platform.as_deref()?)
    }

    /// Refuses a client that is too old.
    pub(crate) fn check_version(&self, client: &Client) -> Result<(), Problem> {
        let Some(platform) = self.platform(client) else { return Ok(()) };
        let Some(min_version) = &platform.min_version else { return Ok(()) };
        if client.version.as_ref().is_some_and(|version| version >= min_version) {
            return Ok(());
        }
        let place = platform.update_url.as_ref().map(|url| format!(": {url}")).unwrap_or_default();
        let detail =
            format!("This version is too old; the oldest supported version is {min_version}. Update{place}");
        let problem = Problem::new(Code::UpgradeRequired)
            .detail(detail)
            .with("min_version", json!(min_version.to_string()));
        Err(match &platform.update_url {
            Some(url) => problem.with("update_url", json!(url.as_str())),
            None => problem,
        })
    }

    /// Returns for each feature whether the client has it.
    pub(crate) fn features(&self, client: &Client) -> BTreeMap<&str, bool> {
        let has = |feature: &Feature| {
            let is_on_platform = feature.platforms.is_empty()
                || client.platform.as_ref().is_some_and(|platform| feature.platforms.contains(platform));
            let is_new_enough = feature
                .min_version
                .as_ref()
                .is_none_or(|min| client.version.as_ref().is_some_and(|version| version >= min));
            feature.on && is_on_platform && is_new_enough
        };
        self.features.iter().map(|(name, feature)| (name.as_str(), has(feature))).collect()
    }

    /// Returns the configuration of the client's platform.
    pub(crate) fn platform_of(&self, client: &Client) -> Option<&Platform> {
        self.platform(client)
    }

    /// Returns the fields of the route's response that the client does not see.
    pub(crate) fn hidden<'a>(
        &'a self,
        client: &Client,
        route: &'a str,
    ) -> impl Iterator<Item = &'a HiddenField> {
        let route = route_name(route);
        let fields = self.platform(client).map(|platform| platform.hidden.as_slice()).unwrap_or_default();
        fields.iter().filter(move |field| field.route == route)
    }
}

/// Returns the name of a route in `ROUTE.FIELD`: the last segment of its path that is not a parameter.
pub(crate) fn route_name(route: &str) -> &str {
    route.rsplit('/').find(|segment| !segment.starts_with('{')).unwrap_or_default()
}

/// Removes these fields from a response.
pub(crate) fn hide<'a>(fields: impl Iterator<Item = &'a HiddenField>, response: &mut serde_json::Value) {
    for field in fields {
        HiddenField::remove(&field.path, response);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_compared_number_by_number() {
        assert!(version("1.10") > version("1.9.9"));
        assert!(version("2") >= version("2.0.0") && version("2") <= version("2.0.0"));
        assert!(version("1.2.3-beta+5") == version("1.2.3"));
        for wrong in ["", "1.", "v1", "1.x", "1..2", "-1", "+1", "1.2.3.4.5.6.7", "99999999999999999999"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn field_is_hidden_at_any_depth() {
        let field = |text: &str| HiddenField::parse(&Value::Text(text.to_owned())).unwrap();
        let mut response = json!({"a": [{"b": 1, "c": 2}, {"b": 3}], "b": 4});
        hide([field("home.a.b"), field("home.x.y"), field("home.b.c")].iter(), &mut response);
        assert_eq!(response, json!({"a": [{"c": 2}, {}], "b": 4}));
        for wrong in ["", "me", "me.", ".roles", "me..a"] {
            assert!(HiddenField::parse(&Value::Text(wrong.to_owned())).is_err(), "{wrong}");
        }
    }
}
