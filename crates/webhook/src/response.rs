//! Reads a server's response: its cause for operators, and `Retry-After`.

use std::time::{Duration, UNIX_EPOCH};

use base::Timestamp;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use reqwest::Response;
use url::Url;

/// How many bytes of a response are read. The rest is not needed: the status decides.
pub(crate) const MAX_BODY: usize = 64 << 10;
/// How many characters of it are quoted.
const MAX_QUOTE: usize = 200;
/// From this length on a segment of the path may be a secret.
const LONG_SEGMENT: usize = 8;
/// From this length on a value in the query may be a secret.
const LONG_VALUE: usize = 4;

/// The longest `Retry-After` that is honoured.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Reads a body up to the limit, or until the connection breaks.
pub(crate) async fn read(response: &mut Response) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < MAX_BODY {
        let Ok(Some(chunk)) = response.chunk().await else { break };
        body.extend_from_slice(&chunk);
    }
    body.truncate(MAX_BODY);
    body
}

/// Describes a response that is no success.
pub(crate) fn cause(status: StatusCode, body: &[u8], url: &Url) -> String {
    let redirect = if status.is_redirection() {
        ", a redirect. Redirects are not followed: configure the final url"
    } else {
        ""
    };
    match quote(body, url) {
        quote if quote.is_empty() => format!("it answered {status}{redirect}"),
        quote => format!("it answered {status}{redirect}: {quote}"),
    }
}

/// Returns the beginning of a body in printable characters. Returns an empty text if the body repeats a secret of the URL.
fn quote(body: &[u8], url: &Url) -> String {
    let text = String::from_utf8_lossy(body);
    // A long segment of the path may be a token.
    let segments = url.path().split('/').filter(|segment| segment.len() >= LONG_SEGMENT);
    let given = [url.password(), url.query()].into_iter().flatten().filter(|secret| !secret.is_empty());
    let mut secrets = given.chain(segments);
    // A body may repeat a value without its name.
    let is_long = |value: &str| value.len() >= LONG_VALUE;
    let mut values = url.query_pairs().map(|(_, value)| value).filter(|value| is_long(value));
    if secrets.any(|secret| text.contains(secret)) || values.any(|value| text.contains(&*value)) {
        return String::new();
    }
    let is_printable = |c: char| matches!(c, '"' | '\'' | '\\') || c.escape_debug().count() == 1;
    let printable: String = text.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect();
    let words: Vec<&str> = printable.split_whitespace().collect();
    words.join(" ").chars().take(MAX_QUOTE).collect()
}

/// Reads `Retry-After`: a number of seconds, or a date.
pub(crate) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let requested = if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit means forever.
        text.parse().map_or(Duration::MAX, Duration::from_secs)
    } else {
        let date = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
        date.saturating_sub(Duration::from_millis(now.as_millis().try_into().unwrap_or_default()))
    };
    Some(requested.min(MAX_RETRY_AFTER)).filter(|_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        // Sun, 06 Nov 1994 08:49:37 GMT.
        let now = Timestamp::from_millis(784_111_777_000);
        let after = |text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(text).unwrap())]);
            retry_after(&headers, now).map(|after| after.as_secs())
        };
        for (text, seconds) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("86400", Some(3600)),
            ("99999999999999999999999", Some(3600)),
            ("Sun, 06 Nov 1994 08:51:37 GMT", Some(120)),
            ("Sunday, 06-Nov-94 08:51:37 GMT", Some(120)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(3600)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(after(text), seconds, "{text:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn body_is_quoted_printably_and_without_secrets() {
        let of_path = url("https://example.org/services/T0A1/aBcDeFgHiJkL");
        assert!(!cause(StatusCode::BAD_REQUEST, b"no aBcDeFgHiJkL here", &of_path).contains("aBcDeFgHiJkL"));
        let url = url("https://me:hush@example.org/hook?token=psst");
        let cause_of = |body: &[u8]| cause(StatusCode::BAD_REQUEST, body, &url);
        assert_eq!(cause_of(b""), "it answered 400 Bad Request");
        assert_eq!(
            cause_of(b"no\r\n\tsuch  \x1b[31mhook\0"),
            "it answered 400 Bad Request: no such [31mhook"
        );
        assert_eq!(
            cause_of("\"äh\" \u{202e}\u{200b}\\'".as_bytes()),
            "it answered 400 Bad Request: \"äh\" \\'"
        );
        assert_eq!(cause_of(b"\xff\xfe{}"), "it answered 400 Bad Request: \u{fffd}\u{fffd}{}");
        assert_eq!(cause_of(b"POST /hook?token=psst"), "it answered 400 Bad Request");
        assert_eq!(cause_of(b"hush!"), "it answered 400 Bad Request");
        assert_eq!(quote("ä".repeat(1_000).as_bytes(), &url).chars().count(), MAX_QUOTE);
        assert!(cause(StatusCode::FOUND, b"", &url).contains("302 Found, a redirect"));
    }

    #[test]
    fn response_reader_survives_any_input() {
        let url = url("https://me:hush@example.org/hook?token=psst");
        let samples = [
            r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"the token psst is wrong"}"#,
            "120\n<html><body>502 Bad Gateway</body></html>",
            "Wed, 21 Oct 2026 07:28:00 GMT\n\u{1b}[31mred\u{202e}",
        ];
        testkit::fuzz("problem-bodies", &samples, |input| {
            let (first, body) = input.split_at(input.iter().position(|byte| *byte == b'\n').unwrap_or(0));
            let text = cause(StatusCode::BAD_REQUEST, body, &url);
            assert!(!text.contains("hush") && !text.contains("psst"), "{text}");
            assert!(text.chars().count() <= MAX_QUOTE + 200 && !text.contains(char::is_control), "{text:?}");
            let mut headers = HeaderMap::new();
            let Ok(value) = HeaderValue::from_bytes(first) else { return false };
            headers.insert(RETRY_AFTER, value);
            let wait = retry_after(&headers, Timestamp::from_millis(1_772_366_400_000));
            assert!(wait.is_none_or(|wait| wait <= MAX_RETRY_AFTER));
            wait.is_some()
        });
    }
}
