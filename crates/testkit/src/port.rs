//! Free ports on the loopback interface.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

const RANGE_FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Services seldom use ports above this one.
const LOWEST: u16 = 15_000;
/// Enough ports that two processes seldom choose the same one.
const MIN_PORTS: u16 = 2_000;

/// The ports that this process has handed out. Tests bind their ports later, so two concurrent tests must not get the same one.
static HANDED_OUT: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Returns a port that was free a moment ago and that no other test of this process gets.
///
/// It is outside the kernel's ephemeral range. During a server's restart an outgoing connection could take an ephemeral port, and
/// a client that retries the port could even connect to itself.
pub fn free_port() -> io::Result<u16> {
    let ephemeral = fs::read_to_string(RANGE_FILE).ok().and_then(|text| parse(&text));
    if let Some(range) = ephemeral.and_then(outside) {
        for _ in 0..100 {
            let port = fastrand::u16(range.clone());
            let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
            close(listener);
            if is_first(port) {
                return Ok(port);
            }
        }
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    close(listener);
    Ok(port)
}

/// Returns whether the port is handed out for the first time.
fn is_first(port: u16) -> bool {
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    handed_out.get_or_insert_default().insert(port)
}

/// Stops listening immediately.
///
/// Closing the socket is not enough: a child process that another thread is starting holds a copy of it until `exec`, so the port
/// would keep listening until then.
pub(crate) fn close(listener: TcpListener) {
    // Only the type of streams has `shutdown`.
    let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
}

fn parse(text: &str) -> Option<Range<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some(numbers.next()?.ok()?..numbers.next()?.ok()?)
}

/// Returns the larger range beside the ephemeral ports, if it is large enough.
fn outside(ephemeral: Range<u16>) -> Option<Range<u16>> {
    let below = LOWEST..ephemeral.start.max(LOWEST);
    let above = ephemeral.end.saturating_add(1).max(LOWEST)..u16::MAX;
    let larger = if below.len() >= above.len() { below } else { above };
    (larger.len() >= usize::from(MIN_PORTS)).then_some(larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_outside_the_ephemeral_range() {
        assert_eq!(outside(parse("32768\t60999\n").unwrap()), Some(15_000..32_768));
        assert_eq!(outside(10_000..30_000), Some(30_001..65_535));
        assert_eq!(outside(1_024..65_535), None);
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn closed_port_refuses_even_if_the_socket_has_a_copy() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port().unwrap())).unwrap();
        let (addr, _copy) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
        close(listener);
        assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(TcpListener::bind(addr).is_ok());
    }

    #[test]
    fn no_port_is_handed_out_twice() {
        let ports: HashSet<u16> = (0..1_000).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 1_000);
    }

    #[test]
    fn free_port_can_be_bound() {
        let port = free_port().unwrap();
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}
