//! What a server's answer says: in words for operators, and how long to stay away.

use std::time::{Duration, UNIX_EPOCH};

use base::Timestamp;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use reqwest::Response;
use url::Url;

/// How much of an answer is read. What is beyond is only cut off: the status has said all that counts.
pub(crate) const MAX_ANSWER: usize = 64 << 10;
/// How much of it is repeated.
const MAX_WORDS: usize = 200;
/// From this length on a part of a path may be a secret.
const LONG_PART: usize = 8;
/// From this length on a value of the query may be a secret.
const LONG_VALUE: usize = 4;

/// The longest time that a server can ask to be left alone for.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Reads an answer up to the limit, or until it breaks off.
pub(crate) async fn read(answer: &mut Response) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < MAX_ANSWER {
        let Ok(Some(chunk)) = answer.chunk().await else { break };
        body.extend_from_slice(&chunk);
    }
    body.truncate(MAX_ANSWER);
    body
}

/// What an answer that is no success says.
pub(crate) fn cause(status: StatusCode, body: &[u8], url: &Url) -> String {
    let redirect = if status.is_redirection() {
        ", a redirect, and redirects are not followed: the url must be the one that answers"
    } else {
        ""
    };
    match words(body, url) {
        words if words.is_empty() => format!("it answered {status}{redirect}"),
        words => format!("it answered {status}{redirect}: {words}"),
    }
}

/// The beginning of an answer, fit for a log. Nothing if it repeats what is secret in the URL.
fn words(body: &[u8], url: &Url) -> String {
    let text = String::from_utf8_lossy(body);
    // Long parts of the path may be what keeps others from posting there.
    let parts = url.path().split('/').filter(|part| part.len() >= LONG_PART);
    let given = [url.password(), url.query()].into_iter().flatten().filter(|secret| !secret.is_empty());
    let mut secrets = given.chain(parts);
    // A value may be repeated without its name.
    let is_long = |value: &str| value.len() >= LONG_VALUE;
    let mut values = url.query_pairs().map(|(_, value)| value).filter(|value| is_long(value));
    if secrets.any(|secret| text.contains(secret)) || values.any(|value| text.contains(&*value)) {
        return String::new();
    }
    let is_printable = |c: char| matches!(c, '"' | '\'' | '\\') || c.escape_debug().count() == 1;
    let printable: String = text.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect();
    let words: Vec<&str> = printable.split_whitespace().collect();
    words.join(" ").chars().take(MAX_WORDS).collect()
}

/// How long the server asks to be left alone: a number of seconds, or a date.
pub(crate) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // So large a number that it is none means for ever.
        text.parse().map_or(Duration::MAX, Duration::from_secs)
    } else {
        let date = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
        date.saturating_sub(Duration::from_millis(now.as_millis().try_into().unwrap_or_default()))
    };
    Some(asked.min(MAX_RETRY_AFTER)).filter(|_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn a_server_may_ask_for_time_in_two_ways() {
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
    fn what_a_server_says_is_made_fit_for_a_log() {
        let of_path = url("https://example.org/services/T0A1/aBcDeFgHiJkL");
        assert!(!cause(StatusCode::BAD_REQUEST, b"no aBcDeFgHiJkL here", &of_path).contains("aBcDeFgHiJkL"));
        let url = url("https://me:hush@example.org/hook?token=psst");
        let said = |body: &[u8]| cause(StatusCode::BAD_REQUEST, body, &url);
        assert_eq!(said(b""), "it answered 400 Bad Request");
        assert_eq!(said(b"no\r\n\tsuch  \x1b[31mhook\0"), "it answered 400 Bad Request: no such [31mhook");
        assert_eq!(said("\"äh\" \u{202e}\u{200b}\\'".as_bytes()), "it answered 400 Bad Request: \"äh\" \\'");
        assert_eq!(said(b"\xff\xfe{}"), "it answered 400 Bad Request: \u{fffd}\u{fffd}{}");
        assert_eq!(said(b"POST /hook?token=psst"), "it answered 400 Bad Request");
        assert_eq!(said(b"hush!"), "it answered 400 Bad Request");
        assert_eq!(words("ä".repeat(1_000).as_bytes(), &url).chars().count(), MAX_WORDS);
        assert!(cause(StatusCode::FOUND, b"", &url).contains("302 Found, a redirect"));
    }

    #[test]
    fn no_answer_breaks_its_reading() {
        let url = url("https://me:hush@example.org/hook?token=psst");
        let samples = [
            r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"the token psst is wrong"}"#,
            "120\n<html><body>502 Bad Gateway</body></html>",
            "Wed, 21 Oct 2026 07:28:00 GMT\n\u{1b}[31mred\u{202e}",
        ];
        testkit::fuzz("problem-bodies", &samples, |input| {
            let (first, body) = input.split_at(input.iter().position(|byte| *byte == b'\n').unwrap_or(0));
            let said = cause(StatusCode::BAD_REQUEST, body, &url);
            assert!(!said.contains("hush") && !said.contains("psst"), "{said}");
            assert!(said.chars().count() <= MAX_WORDS + 200 && !said.contains(char::is_control), "{said:?}");
            let mut headers = HeaderMap::new();
            let Ok(value) = HeaderValue::from_bytes(first) else { return false };
            headers.insert(RETRY_AFTER, value);
            let wait = retry_after(&headers, Timestamp::from_millis(1_772_366_400_000));
            assert!(wait.is_none_or(|wait| wait <= MAX_RETRY_AFTER));
            wait.is_some()
        });
    }
}
