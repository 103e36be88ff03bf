//! The address of a client behind proxies.

use std::net::{IpAddr, SocketAddr};

use config::Network;
use http::{HeaderMap, HeaderName};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns the address of the client: the peer of the connection, or the address that trusted proxies report in `X-Forwarded-For`.
///
/// Each proxy appends the address of its caller. The list is read from its end while the address that wrote the entry is
/// trusted. Entries further left may be forged. An entry that is not an address stops the search; the last address found counts.
pub fn client_address(headers: &HeaderMap, peer: IpAddr, trusted: &[Network]) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
    let mut client = peer.to_canonical();
    // Several header lines form one list.
    for line in headers.get_all(FORWARDED_FOR).iter().rev() {
        let Ok(line) = line.to_str() else { return client };
        for entry in line.rsplit(',') {
            if !is_trusted(client) {
                return client;
            }
            let Some(address) = parse(entry.trim()) else { return client };
            client = address;
        }
    }
    client
}

/// Parses an address, with or without a port.
fn parse(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']')).unwrap_or(entry);
    let address = bare.parse().or_else(|_| entry.parse().map(|address: SocketAddr| address.ip())).ok()?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn client(lines: &[&[u8]], peer: &str, trusted: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
        }
        let trusted: Vec<Network> = trusted.iter().map(|network| network.parse().unwrap()).collect();
        client_address(&headers, peer.parse().unwrap(), &trusted).to_string()
    }

    #[test]
    fn only_entries_of_trusted_proxies_count() {
        const TRUSTED: &[&str] = &["10.0.0.0/8", "fd00::/8"];
        for (lines, peer, expected) in [
            // No proxy.
            (&[][..], "192.0.2.1", "192.0.2.1"),
            // An untrusted peer sends a forged header.
            (&["198.51.100.1"][..], "192.0.2.1", "192.0.2.1"),
            (&["10.0.0.1, 10.0.0.2"], "192.0.2.1", "192.0.2.1"),
            // A trusted proxy reports its caller.
            (&["198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            (&["198.51.100.1"], "::ffff:10.0.0.1", "198.51.100.1"),
            // Entries that the client itself sent are ignored.
            (&["203.0.113.9, 198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            (&["10.0.0.7, 198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            (&["203.0.113.9", "198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            (&["garbage, 198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            // Several trusted proxies.
            (&["203.0.113.9, 198.51.100.1, 10.0.0.3,10.0.0.2"], "10.0.0.1", "198.51.100.1"),
            (&["203.0.113.9, 198.51.100.1", "10.0.0.3", "10.0.0.2"], "10.0.0.1", "198.51.100.1"),
            (&["2001:db8::1, fd00::2"], "10.0.0.1", "2001:db8::1"),
            // A trusted proxy is the client.
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.1", "10.0.0.3"),
            // An entry that is not an address stops the search.
            (&["198.51.100.1, unknown"], "10.0.0.1", "10.0.0.1"),
            (&["198.51.100.1, garbage, 10.0.0.2"], "10.0.0.1", "10.0.0.2"),
            (&["198.51.100.1,"], "10.0.0.1", "10.0.0.1"),
            (&[""], "10.0.0.1", "10.0.0.1"),
            (&["198.51.100.1", ""], "10.0.0.1", "10.0.0.1"),
            // With a port or in brackets, as some proxies write it.
            (&["198.51.100.1:4711"], "10.0.0.1", "198.51.100.1"),
            (&["[2001:db8::1]:4711"], "10.0.0.1", "2001:db8::1"),
            (&["[2001:db8::1]"], "10.0.0.1", "2001:db8::1"),
            (&["::ffff:198.51.100.1"], "10.0.0.1", "198.51.100.1"),
        ] {
            let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            assert_eq!(client(&bytes, peer, TRUSTED), expected, "{lines:?} from {peer}");
        }
        assert_eq!(client(&[b"198.51.100.1"], "10.0.0.1", &[]), "10.0.0.1", "no proxy is trusted");
        assert_eq!(client(&[b"198.51.100.1", b"\xff"], "10.0.0.1", TRUSTED), "10.0.0.1");
    }
}
