//! Who is at the other end, when proxies are in between.

use std::net::{IpAddr, SocketAddr};

use config::Network;
use http::{HeaderMap, HeaderName};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the client: that of the connection, or what proxies of ours say of it in `X-Forwarded-For`.
///
/// Each proxy appends whom it was called by, so the list is read from its end, for as long as a proxy of ours wrote what
/// stands there. What is further left anybody may have made up. An entry that is no address ends the reading, and the last
/// one that was counts.
pub fn client_address(headers: &HeaderMap, peer: IpAddr, trusted: &[Network]) -> IpAddr {
    let is_ours = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
    let mut client = peer.to_canonical();
    // Several lines are one list.
    for line in headers.get_all(FORWARDED_FOR).iter().rev() {
        let Ok(line) = line.to_str() else { return client };
        for entry in line.rsplit(',') {
            if !is_ours(client) {
                return client;
            }
            let Some(address) = read(entry.trim()) else { return client };
            client = address;
        }
    }
    client
}

/// An address, perhaps with a port, as some proxies write it.
fn read(entry: &str) -> Option<IpAddr> {
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
    fn only_what_our_proxies_wrote_is_believed() {
        const OURS: &[&str] = &["10.0.0.0/8", "fd00::/8"];
        for (lines, peer, expected) in [
            // Nobody in between.
            (&[][..], "192.0.2.1", "192.0.2.1"),
            // A stranger says what they like.
            (&["198.51.100.1"][..], "192.0.2.1", "192.0.2.1"),
            (&["10.0.0.1, 10.0.0.2"], "192.0.2.1", "192.0.2.1"),
            // Our proxy says who called it.
            (&["198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            (&["198.51.100.1"], "::ffff:10.0.0.1", "198.51.100.1"),
            // What the client sent before it reached our proxy is not read.
            (&["203.0.113.9, 198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            (&["10.0.0.7, 198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            (&["203.0.113.9", "198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            (&["garbage, 198.51.100.1"], "10.0.0.1", "198.51.100.1"),
            // Several proxies of ours.
            (&["203.0.113.9, 198.51.100.1, 10.0.0.3,10.0.0.2"], "10.0.0.1", "198.51.100.1"),
            (&["203.0.113.9, 198.51.100.1", "10.0.0.3", "10.0.0.2"], "10.0.0.1", "198.51.100.1"),
            (&["2001:db8::1, fd00::2"], "10.0.0.1", "2001:db8::1"),
            // One of ours called by itself.
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.1", "10.0.0.3"),
            // An entry that is none ends the reading.
            (&["198.51.100.1, unknown"], "10.0.0.1", "10.0.0.1"),
            (&["198.51.100.1, garbage, 10.0.0.2"], "10.0.0.1", "10.0.0.2"),
            (&["198.51.100.1,"], "10.0.0.1", "10.0.0.1"),
            (&[""], "10.0.0.1", "10.0.0.1"),
            (&["198.51.100.1", ""], "10.0.0.1", "10.0.0.1"),
            // As some proxies write it.
            (&["198.51.100.1:4711"], "10.0.0.1", "198.51.100.1"),
            (&["[2001:db8::1]:4711"], "10.0.0.1", "2001:db8::1"),
            (&["[2001:db8::1]"], "10.0.0.1", "2001:db8::1"),
            (&["::ffff:198.51.100.1"], "10.0.0.1", "198.51.100.1"),
        ] {
            let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            assert_eq!(client(&bytes, peer, OURS), expected, "{lines:?} from {peer}");
        }
        assert_eq!(client(&[b"198.51.100.1"], "10.0.0.1", &[]), "10.0.0.1", "without proxies, nobody is");
        assert_eq!(client(&[b"198.51.100.1", b"\xff"], "10.0.0.1", OURS), "10.0.0.1");
    }
}
