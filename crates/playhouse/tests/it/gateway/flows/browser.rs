//! A minimal browser that signs in.

use std::collections::HashMap;

use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use url::Url;

use crate::form;

/// Keeps cookies, follows redirects and fills in the sign-in form.
#[derive(Clone, Default)]
pub(in crate::gateway) struct Browser {
    /// Cookies by name: browsers ignore ports, and all servers are on this machine.
    cookies: HashMap<String, String>,
    /// A URL prefix that is not visited.
    until: Option<String>,
}

impl Browser {
    pub(in crate::gateway) fn stopping_at(url: &str) -> Self {
        Self { until: Some(url.to_owned()), ..Self::default() }
    }

    /// Visits a URL and signs in with this name where a form asks for it. Returns the final URL.
    pub(in crate::gateway) async fn sign_in(&mut self, url: &str, name: &str) -> Url {
        let mut url = Url::parse(url).unwrap();
        let mut fields: Option<Vec<(&str, String)>> = None;
        for _ in 0..20 {
            if self.until.as_ref().is_some_and(|until| url.as_str().starts_with(until)) {
                return url;
            }
            let response = self.visit(&url, fields.take()).await;
            match response.headers().get(LOCATION) {
                Some(location) => url = url.join(location.to_str().unwrap()).unwrap(),
                None if url.path().starts_with("/interaction/") => {
                    fields = Some(vec![("login", name.to_owned()), ("go", String::new())]);
                }
                None => {
                    assert_eq!(response.status(), 200, "{url}: {}", response.text().await.unwrap());
                    return url;
                }
            }
        }
        panic!("too many redirects: {url}");
    }

    /// Requests one page, with the fields of a form if there are any.
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
