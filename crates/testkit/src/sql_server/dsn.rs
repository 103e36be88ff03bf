//! Parsing of `MYSQL_DSN`: a URL, or a DSN of Go's MySQL driver.

use url::Url;

use crate::external::parse_url;

const SCHEME: &str = "mysql";
const DEFAULT_PORT: u16 = 3306;

/// Returns the server's URL as `mysql://user:password@host:port`, without a database.
///
/// Accepts `mysql://user:password@host:port/…` and `user:password@tcp(host:port)/…`. The text may contain a password, so errors do
/// not repeat it.
pub(super) fn parse(text: &str) -> Result<Url, String> {
    if text.starts_with("mysql://") || text.starts_with("mariadb://") {
        let mut url = parse_url(text, SCHEME)?;
        // Each test creates its own database; the named one is not used.
        url.set_path("");
        return Ok(url);
    }
    parse_go(text)
}

/// `[user[:password]@][tcp[(host[:port])]]/database[?parameters]`
fn parse_go(text: &str) -> Result<Url, String> {
    // Parsed from the end, because the password may contain any of the separators.
    let (server, rest) =
        text.rsplit_once('/').ok_or("neither a mysql:// URL nor user:password@tcp(host:port)/")?;
    let (account, server) = server.rsplit_once('@').unwrap_or(("", server));
    let (user, password) = account.split_once(':').unwrap_or((account, ""));
    let address = match server {
        "" | "tcp" => "",
        _ => server
            .strip_prefix("tcp(")
            .and_then(|inside| inside.strip_suffix(')'))
            .ok_or("only tcp(host:port) is supported")?,
    };
    let address = if address.is_empty() { "127.0.0.1" } else { address };

    let base = format!("{SCHEME}://{address}");
    let mut url = Url::parse(&base).map_err(|error| format!("not an address in tcp(…) ({error})"))?;
    let port = url.port().unwrap_or(DEFAULT_PORT);
    let refused = |()| "not an address in tcp(…)".to_owned();
    url.set_port(Some(port)).map_err(refused)?;
    url.set_username(if user.is_empty() { "root" } else { user }).map_err(refused)?;
    url.set_password((!password.is_empty()).then_some(password)).map_err(refused)?;
    url.set_query(tls(rest).map(|mode| format!("ssl-mode={mode}")).as_deref());
    Ok(url)
}

/// Returns the TLS mode. The other parameters do not affect whether the server accepts the connection.
fn tls(database_and_parameters: &str) -> Option<&'static str> {
    let (_, parameters) = database_and_parameters.split_once('?')?;
    match parameters.split('&').find_map(|parameter| parameter.strip_prefix("tls="))? {
        "true" => Some("verify_identity"),
        "skip-verify" => Some("required"),
        "preferred" => Some("preferred"),
        _ => Some("disabled"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_url(dsn: &str, url: &str) {
        assert_eq!(parse(dsn).unwrap().as_str(), url);
    }

    #[test]
    fn urls_are_accepted() {
        assert_url("mysql://root@127.0.0.1:3307/app", "mysql://root@127.0.0.1:3307");
        assert_url("mysql://u:p%40ss@db/app?ssl-mode=required", "mysql://u:p%40ss@db?ssl-mode=required");
        assert_url("mysql://u@[::1]:3306/", "mysql://u@[::1]:3306");
    }

    #[test]
    fn go_dsns_are_accepted() {
        assert_url("root@tcp(127.0.0.1:3307)/app", "mysql://root@127.0.0.1:3307");
        assert_url("u:p@tcp(db.example:3306)/?parseTime=true", "mysql://u:p@db.example:3306");
        assert_url("u:p@tcp(db)/app", "mysql://u:p@db:3306");
        assert_url("u:p@tcp([::1]:3306)/app", "mysql://u:p@[::1]:3306");
        assert_url("/app", "mysql://root@127.0.0.1:3306");
        assert_url("u@tcp/app?tls=skip-verify", "mysql://u@127.0.0.1:3306?ssl-mode=required");
    }

    #[test]
    fn passwords_may_contain_separators() {
        let url = parse("u:a@b:c/d(e)@tcp(db:3306)/app").unwrap();
        assert_eq!(url.as_str(), "mysql://u:a%40b%3Ac%2Fd(e)@db:3306");
        assert_eq!(url.host_str(), Some("db"));
    }

    #[test]
    fn other_texts_are_refused_without_repeating_them() {
        for dsn in [
            "",
            "secret",
            "u:secret@unix(/run/sock)/app",
            "u:secret@tcp(db/app",
            "mysql:///secret",
            "u:secret@tcp(a b)/x",
        ] {
            let why = parse(dsn).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
