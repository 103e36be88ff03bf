//! Cookies of a request.

use ::http::HeaderMap;
use ::http::header::COOKIE;

/// Returns the value of a cookie. Returns none if there are several of that name: an attacker may have planted one.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut found = cookies(headers).filter(|(found, _)| *found == name).map(|(_, value)| value);
    found.next().filter(|value| !value.is_empty() && found.next().is_none())
}

/// Returns the names and values of all cookies.
pub fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

#[cfg(test)]
mod tests {
    use ::http::HeaderValue;

    use super::*;

    #[test]
    fn cookie_is_found_by_its_exact_name() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; playhouse=x=y ;b=2"));
        headers.append(COOKIE, HeaderValue::from_static("c=3; c=4; d="));
        assert_eq!(cookie(&headers, "playhouse"), Some("x=y"));
        assert_eq!(cookie(&headers, "b"), Some("2"));
        for none in ["play", "c", "d", "e", ""] {
            assert_eq!(cookie(&headers, none), None, "{none}");
        }
    }
}
