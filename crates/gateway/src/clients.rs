//! The differences between clients: which versions may still play, which features they have, which fields they do not see.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use ::config::{Reader, Rejected, Section, Setting, Value};
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
    /// Older ones are told to update.
    pub(crate) min_version: Option<Version>,
    /// Where.
    pub(crate) update_url: Option<Url>,
    /// What its clients do not see: `ROUTE.FIELD`, as in `me.roles`.
    pub(crate) hidden: Vec<HiddenField>,
}

/// Something that some clients have and others do not.
#[derive(Clone, Debug)]
pub(crate) struct Feature {
    pub(crate) on: bool,
    /// Of which platforms; none means all.
    pub(crate) platforms: Vec<String>,
    /// From which version on.
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

/// Numbers with dots between them. What is missing at the end is 0.
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
        let differs = (0..Self::PARTS).map(|at| self.part(at).cmp(&other.part(at)));
        differs.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
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

    /// `1.4.0`, also with something behind that is not compared: `1.4.0-beta.2+77`.
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

    fn parse(value: &Value) -> Result<Self, Rejected> {
        String::parse(value)?
            .parse()
            .map_err(|()| Rejected::because("it is not numbers with dots between them"))
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// A field of the answer of one route.
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

    /// Takes the field out of a value; out of every item, where a list is on the way.
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
        "a field of an answer such as \"me.roles\" or \"home.entitlements.data.next\"".to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        let text = String::parse(value)?;
        let mut words = text.split('.').map(str::to_owned);
        let route = words.next().filter(|route| !route.is_empty());
        let path: Vec<String> = words.collect();
        match route {
            Some(route) if !path.is_empty() && path.iter().all(|word| !word.is_empty()) => {
                Ok(Self { route, path })
            }
            _ => Err(Rejected::because("it is not ROUTE.FIELD")),
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

/// What a request says of the client that sent it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    pub(crate) platform: Option<String>,
    pub(crate) version: Option<Version>,
}

impl Clients {
    pub(crate) fn new(platforms: BTreeMap<String, Platform>, features: BTreeMap<String, Feature>) -> Self {
        Self { platforms, features }
    }

    /// Who is asking. One that says nothing of itself is as good as any.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Result<Client, Problem> {
        let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let version = text(&VERSION).map(|text| {
            text.parse().map_err(|()| {
                let detail = format!("{VERSION} must be numbers with dots between them, such as 1.4.0.");
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
        let Some(least) = &platform.min_version else { return Ok(()) };
        if client.version.as_ref().is_some_and(|version| version >= least) {
            return Ok(());
        }
        let place = platform.update_url.as_ref().map(|url| format!(": {url}")).unwrap_or_default();
        let detail =
            format!("This version can no longer play; the oldest that can is {least}. Update{place}");
        let problem =
            Problem::new(Code::UpgradeRequired).detail(detail).with("min_version", json!(least.to_string()));
        Err(match &platform.update_url {
            Some(url) => problem.with("update_url", json!(url.as_str())),
            None => problem,
        })
    }

    /// Which features the client has.
    pub(crate) fn features(&self, client: &Client) -> BTreeMap<&str, bool> {
        let has = |feature: &Feature| {
            let here = feature.platforms.is_empty()
                || client.platform.as_ref().is_some_and(|platform| feature.platforms.contains(platform));
            let new = feature
                .min_version
                .as_ref()
                .is_none_or(|least| client.version.as_ref().is_some_and(|version| version >= least));
            feature.on && here && new
        };
        self.features.iter().map(|(name, feature)| (name.as_str(), has(feature))).collect()
    }

    /// What is configured for the client's platform.
    pub(crate) fn of(&self, client: &Client) -> Option<&Platform> {
        self.platform(client)
    }

    /// The fields of this route's answer that the client does not see.
    pub(crate) fn hidden<'a>(
        &'a self,
        client: &Client,
        route: &'a str,
    ) -> impl Iterator<Item = &'a HiddenField> {
        let route = word(route);
        let fields = self.platform(client).map(|platform| platform.hidden.as_slice()).unwrap_or_default();
        fields.iter().filter(move |field| field.route == route)
    }
}

/// What a route is called where its fields are named: its last word that is fixed.
pub(crate) fn word(route: &str) -> &str {
    route.rsplit('/').find(|word| !word.starts_with('{')).unwrap_or_default()
}

/// Takes these fields out of an answer.
pub(crate) fn hide<'a>(fields: impl Iterator<Item = &'a HiddenField>, answer: &mut serde_json::Value) {
    for field in fields {
        HiddenField::remove(&field.path, answer);
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
    fn a_field_is_hidden_wherever_it_is() {
        let field = |text: &str| HiddenField::parse(&Value::Text(text.to_owned())).unwrap();
        let mut answer = json!({"a": [{"b": 1, "c": 2}, {"b": 3}], "b": 4});
        hide([field("home.a.b"), field("home.x.y"), field("home.b.c")].iter(), &mut answer);
        assert_eq!(answer, json!({"a": [{"c": 2}, {}], "b": 4}));
        for wrong in ["", "me", "me.", ".roles", "me..a"] {
            assert!(HiddenField::parse(&Value::Text(wrong.to_owned())).is_err(), "{wrong}");
        }
    }
}
