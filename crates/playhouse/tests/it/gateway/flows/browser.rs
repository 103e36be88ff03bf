//! Signing in, as a browser does it.

use std::collections::HashMap;

use reqwest::header::{CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use url::Url;

/// As much of a browser as it takes to sign in: it keeps cookies, follows redirects, and fills in the one form there is.
#[derive(Clone, Default)]
pub(in crate::gateway) struct Browser {
    /// Browsers do not tell ports apart here, and everybody is on this machine.
    cookies: HashMap<String, String>,
    /// Where it stops instead of going there.
    until: Option<String>,
}

impl Browser {
    pub(in crate::gateway) fn stopping_at(place: &str) -> Self {
        Self { until: Some(place.to_owned()), ..Self::default() }
    }

    /// Goes there and signs in with this name when it is asked to. Returns where that led.
    pub(in crate::gateway) async fn sign_in(&mut self, url: &str, name: &str) -> Url {
        let mut url = Url::parse(url).unwrap();
        let mut fields: Option<Vec<(&str, String)>> = None;
        for _ in 0..20 {
            if self.until.as_ref().is_some_and(|place| url.as_str().starts_with(place)) {
                return url;
            }
            let response = self.visit(&url, fields.take()).await;
            match response.headers().get(LOCATION) {
                Some(place) => url = url.join(place.to_str().unwrap()).unwrap(),
                None if url.path().starts_with("/interaction/") => {
                    fields = Some(vec![("login", name.to_owned()), ("go", String::new())]);
                }
                None => {
                    assert_eq!(response.status(), 200, "{url}: {}", response.text().await.unwrap());
                    return url;
                }
            }
        }
        panic!("that leads in circles: {url}");
    }

    /// Asks for one page, with the fields of a form if there are any.
    pub(in crate::gateway) async fn visit(
        &mut self,
        url: &Url,
        fields: Option<Vec<(&str, String)>>,
    ) -> Response {
        let client = Client::builder().redirect(Policy::none()).build().unwrap();
        let request = match &fields {
            None => client.get(url.clone()),
            Some(fields) => form(client.post(url.clone()), fields),
        };
        let jar = &mut self.cookies;
        let cookies: Vec<String> = jar.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let response = request.header(COOKIE, cookies.join("; ")).send().await.unwrap();
        for cookie in response.headers().get_all(SET_COOKIE) {
            let (name, rest) = cookie.to_str().unwrap().split_once('=').unwrap();
            match rest.split(';').next() {
                Some(value) if !value.is_empty() => jar.insert(name.to_owned(), value.to_owned()),
                _ => jar.remove(name),
            };
        }
        response
    }

    pub(in crate::gateway) fn cookie(&self, name: &str) -> Option<&str> {
        self.cookies.get(name).map(String::as_str)
    }
}

/// A request with the fields of a form.
pub(super) fn form(request: RequestBuilder, fields: &[(&str, impl AsRef<str>)]) -> RequestBuilder {
    let fields = fields.iter().map(|(name, value)| (*name, value.as_ref()));
    let body = Url::parse_with_params("http://form", fields).unwrap().query().unwrap().to_owned();
    request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
}
