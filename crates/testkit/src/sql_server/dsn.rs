//! `MYSQL_DSN`, which comes as a URL or in the form that Go's driver has made common.

use url::Url;

use crate::external::parse_url;

const SCHEME: &str = "mysql";
const DEFAULT_PORT: u16 = 3306;

/// The server's address as `mysql://user:password@host:port`, without a database.
///
/// Takes `mysql://user:password@host:port/…` and `user:password@tcp(host:port)/…`. The text holds a
/// password, so errors do not repeat it.
pub(super) fn parse(text: &str) -> Result<Url, String> {
    if text.starts_with("mysql://") || text.starts_with("mariadb://") {
        let mut url = parse_url(text, SCHEME)?;
        // Each test gets a database of its own; the one that was named is not touched.
        url.set_path("");
        return Ok(url);
    }
    parse_go(text)
}

/// `[user[:password]@][tcp[(host[:port])]]/database[?parameters]`
fn parse_go(text: &str) -> Result<Url, String> {
    // The password may hold any of the marks, what follows it may not: look from the end.
    let (server, rest) =
        text.rsplit_once('/').ok_or("neither a mysql:// URL nor user:password@tcp(host:port)/")?;
    let (account, server) = server.rsplit_once('@').unwrap_or(("", server));
    let (user, password) = account.split_once(':').unwrap_or((account, ""));
    let address = match server {
        "" | "tcp" => "",
        _ => server
            .strip_prefix("tcp(")
            .and_then(|inside| inside.strip_suffix(')'))
            .ok_or("only tcp(host:port) is understood")?,
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

/// Of all parameters the one that decides whether the server lets us in.
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
    fn gives(dsn: &str, url: &str) {
        assert_eq!(parse(dsn).unwrap().as_str(), url);
    }

    #[test]
    fn urls() {
        gives("mysql://root@127.0.0.1:3307/app", "mysql://root@127.0.0.1:3307");
        gives("mysql://u:p%40ss@db/app?ssl-mode=required", "mysql://u:p%40ss@db?ssl-mode=required");
        gives("mysql://u@[::1]:3306/", "mysql://u@[::1]:3306");
    }

    #[test]
    fn the_form_of_gos_driver() {
        gives("root@tcp(127.0.0.1:3307)/app", "mysql://root@127.0.0.1:3307");
        gives("u:p@tcp(db.example:3306)/?parseTime=true", "mysql://u:p@db.example:3306");
        gives("u:p@tcp(db)/app", "mysql://u:p@db:3306");
        gives("u:p@tcp([::1]:3306)/app", "mysql://u:p@[::1]:3306");
        gives("/app", "mysql://root@127.0.0.1:3306");
        gives("u@tcp/app?tls=skip-verify", "mysql://u@127.0.0.1:3306?ssl-mode=required");
    }

    #[test]
    fn passwords_may_hold_anything() {
        let url = parse("u:a@b:c/d(e)@tcp(db:3306)/app").unwrap();
        assert_eq!(url.as_str(), "mysql://u:a%40b%3Ac%2Fd(e)@db:3306");
        assert_eq!(url.host_str(), Some("db"));
    }

    #[test]
    fn what_is_neither_is_refused_without_repeating_it() {
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
