//! The settings of a destination.

use std::time::Duration;

use ::config::{Network, Reader, Section};
use base::Backoff;
use url::Url;

use crate::guard::AddressGuard;
use crate::secret::Secrets;

/// The settings of a destination.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: Url,
    pub secrets: Secrets,
    /// For the whole request, including the response.
    pub timeout: Duration,
    pub max_in_flight: u32,
    /// The backoff after failures.
    pub backoff: Backoff,
    /// Networks that requests may go to although they are not public.
    pub allow_networks: Vec<Network>,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (min, max) = (Duration::from_millis(10), Duration::from_secs(86_400));
        let config = Self {
            url: reader.required("url"),
            secrets: reader.required("secrets"),
            timeout: reader.get_within("timeout", min..=Duration::from_secs(300)),
            max_in_flight: reader.get_within("max_in_flight", 1..=1_000),
            backoff: Backoff::new(
                reader.get_within("retry_min", min..=max),
                reader.get_within("retry_max", min..=max),
            ),
            allow_networks: reader.get("allow_networks"),
        };
        reader.check(&["retry_min", "retry_max"], config.backoff.min <= config.backoff.max, || {
            "must not be longer than retry_max".to_owned()
        });
        let checked = AddressGuard::new(&config.allow_networks).check_url(&config.url);
        reader.check(&["url", "allow_networks"], checked.is_ok(), || {
            checked.err().map(|forbidden| forbidden.to_string()).unwrap_or_default()
        });
        config
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use ::config::{Layers, load};

    use super::*;

    const REFERENCE: &str = r#"
        [webhooks.NAME]
        # url = "https://example.org/hook"
        # secrets = ["whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCB0aGF0IHNpZ25z"]
        timeout = "15s"
        max_in_flight = 8
        retry_min = "1s"
        retry_max = "10m"
        allow_networks = []
    "#;
    const SECRETS: &str = "secrets = [\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]";

    struct All(BTreeMap<String, Config>);

    impl Section for All {
        fn read(reader: &mut Reader<'_>) -> Self {
            Self(reader.tables("webhooks"))
        }
    }

    fn read(text: &str) -> Result<Config, String> {
        let file = format!("[webhooks.shop]\n{text}");
        let layers = Layers::new(REFERENCE).with_file_text(Path::new("playhouse.toml"), &file);
        let loaded = load::<All>(layers).map_err(|problems| problems.to_string())?;
        Ok(loaded.config.0["shop"].clone())
    }

    #[test]
    fn destination_needs_a_url_and_a_secret() {
        let config = read(&format!("url = \"https://example.org/x\"\n{SECRETS}")).unwrap();
        assert_eq!(config.url.as_str(), "https://example.org/x");
        assert_eq!((config.timeout, config.max_in_flight), (Duration::from_secs(15), 8));
        assert_eq!(config.backoff, Backoff::new(Duration::from_secs(1), Duration::from_secs(600)));
        let missing = read("").unwrap_err();
        assert!(missing.contains("webhooks.shop.url: is required"), "{missing}");
        assert!(missing.contains("webhooks.shop.secrets: is required"), "{missing}");
    }

    #[test]
    fn invalid_secret_is_reported_but_not_shown() {
        for (secrets, reason) in [
            ("\"hush\"", "starts with whsec_ or whsk_"),
            ("\"whsec_aHVzaA==\"", "24 to 64 bytes"),
            ("", "there is no secret"),
        ] {
            let text = format!("url = \"https://example.org\"\nsecrets = [{secrets}]");
            let problem = read(&text).unwrap_err();
            assert!(problem.contains("webhooks.shop.secrets: expected a list of secrets"), "{problem}");
            assert!(problem.contains(reason), "{problem}");
            assert!(!problem.contains("hush") && !problem.contains("aHVz"), "{problem}");
        }
    }

    #[test]
    fn conflicting_settings_are_rejected() {
        let url = "url = \"http://10.0.0.1/\"";
        let problem = read(&format!("{url}\n{SECRETS}")).unwrap_err();
        assert!(problem.contains("webhooks.shop.url: 10.0.0.1 is private"), "{problem}");
        assert!(problem.contains("allow_networks"), "{problem}");
        assert!(read(&format!("{url}\n{SECRETS}\nallow_networks = [\"10.0.0.0/8\"]")).is_ok());
        for wrong in ["url = \"ftp://example.org\"", "url = \"https://example.org\"\nretry_min = \"11m\""] {
            assert!(read(&format!("{wrong}\n{SECRETS}")).is_err(), "{wrong}");
        }
    }
}
