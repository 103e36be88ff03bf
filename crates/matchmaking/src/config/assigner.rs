//! Settings of assigners.

use std::sync::Arc;
use std::time::Duration;

use ::config::{Choice, Reader, Secret, Section};
use base::Clock;
use url::Url;
use webhook::Secrets;

use crate::engine::{Assigner, PluginError, StaticList, Webhook, WebhookConfig};

#[derive(Clone, Debug)]
pub(super) struct AssignerConfig {
    pub(super) kind: AssignerKind,
    pub(super) addresses: Vec<String>,
    pub(super) url: Option<Url>,
    pub(super) abandon_url: Option<Url>,
    pub(super) secrets: Option<Secrets>,
    /// The timeout of one request.
    pub(super) timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AssignerKind {
    Static,
    Webhook,
}

impl Choice for AssignerKind {
    const WORDS: &'static [(&'static str, Self)] = &[("static", Self::Static), ("webhook", Self::Webhook)];
}

impl AssignerConfig {
    /// Builds the assigner. `limit` covers all attempts of a request.
    pub(super) fn build(
        &self,
        name: &str,
        limit: Duration,
        clock: &Clock,
    ) -> Result<Arc<dyn Assigner>, PluginError> {
        Ok(match (self.kind, &self.url) {
            (AssignerKind::Webhook, Some(url)) => {
                let config = WebhookConfig {
                    name: name.into(),
                    url: url.clone(),
                    abandon_url: self.abandon_url.clone().unwrap_or_else(|| url.clone()),
                    secrets: self.secrets.clone(),
                    timeout: self.timeout.unwrap_or(limit / 2),
                };
                Arc::new(Webhook::new(config, clock.clone())?)
            }
            _ => Arc::new(StaticList::new(self.addresses.clone())),
        })
    }
}

impl Section for AssignerConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        let secret: Option<Secret> = reader.optional("secret");
        let secrets = secret.as_ref().map(Secrets::from_text).transpose();
        if let Err(bad) = &secrets {
            reader.check(&["secret"], false, || bad.to_string());
        }
        let config = Self {
            kind: reader.get("kind"),
            addresses: reader.optional("addresses").unwrap_or_default(),
            url: reader.optional("url"),
            abandon_url: reader.optional("abandon_url"),
            timeout: reader.optional("timeout"),
            secrets: secrets.unwrap_or_default(),
        };
        let least = Duration::from_millis(1);
        reader.check(&["timeout"], config.timeout.is_none_or(|timeout| timeout >= least), || {
            "must be at least 1ms".to_owned()
        });
        match config.kind {
            AssignerKind::Static => reader.check(&["addresses"], !config.addresses.is_empty(), || {
                "a static assigner needs at least one address".to_owned()
            }),
            AssignerKind::Webhook => reader.check(&["url"], config.url.is_some(), || {
                "a webhook assigner needs the url of the service to call".to_owned()
            }),
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use ::config::{Layers, Loaded, load};

    use super::*;

    /// A section with assigners only.
    #[derive(Debug)]
    struct Assigners(BTreeMap<String, AssignerConfig>);

    impl Section for Assigners {
        fn read(reader: &mut Reader<'_>) -> Self {
            Self(reader.tables("assigners"))
        }
    }

    fn assigner(text: &str) -> Result<AssignerConfig, String> {
        let reference = "[assigners.NAME]\nkind = \"static\"\n# addresses = []\n# url = \"http://x\"\n# abandon_url = \"http://x\"\n# timeout = \"5s\"\n# secret = \"x\"\n";
        let text = format!("[assigners.fleet]\nkind = \"webhook\"\nurl = \"http://10.0.0.1/\"\n{text}");
        let loaded = load(Layers::new(reference).with_file_text(Path::new("play.toml"), &text));
        let assigners = loaded.map(|Loaded { config: Assigners(assigners), .. }| assigners);
        assigners.map(|assigners| assigners["fleet"].clone()).map_err(|problems| problems.to_string())
    }

    #[test]
    fn unreadable_secret_is_refused_and_not_shown() {
        assert!(assigner("").unwrap().secrets.is_none());
        for good in ["any text", "whsec_dGhpcyBpcyBub3QgcmVhbGx5IGEgc2VjcmV0"] {
            assert!(assigner(&format!("secret = {good:?}")).unwrap().secrets.is_some(), "{good}");
        }
        for (bad, why) in [("whsec_hush!", "must be base64"), ("whsec_aHVzaA==", "must be 24 to 64 bytes")] {
            let problem = assigner(&format!("secret = {bad:?}")).unwrap_err();
            assert!(problem.contains("assigners.fleet.secret: ") && problem.contains(why), "{problem}");
            assert!(!problem.contains("hush") && !problem.contains("aHVz"), "{problem}");
        }
    }
}
