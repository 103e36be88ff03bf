//! The part of the Redis protocol that the proxy needs.

/// Returns the length of the first frame, or none while it is incomplete.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    let (kind, number, start) = head(bytes)?;
    let count = match kind {
        b'$' | b'=' | b'!' => {
            let Ok(body) = usize::try_from(number?) else { return Some(start) };
            let end = start + body + 2;
            return (bytes.len() >= end).then_some(end);
        }
        b'*' | b'~' | b'>' => number?,
        b'%' => 2 * number?,
        // Attributes belong to the value after them.
        b'|' => 2 * number? + 1,
        _ => return Some(start),
    };
    (0..count).try_fold(start, |at, _| Some(at + length(&bytes[at..])?))
}

/// Parses a command: its name and its arguments. Returns an empty list for any other frame.
pub(super) fn command(frame: &[u8]) -> Vec<&[u8]> {
    let Some((b'*', Some(count), mut at)) = head(frame) else { return Vec::new() };
    let mut words = Vec::new();
    for _ in 0..count {
        let Some(end) = length(&frame[at..]) else { return Vec::new() };
        let Some((b'$', _, start)) = head(&frame[at..]) else { return Vec::new() };
        words.push(&frame[at + start..at + end - 2]);
        at += end;
    }
    words
}

/// Parses the first line: the kind, the number if there is one, and the start of the next line.
fn head(bytes: &[u8]) -> Option<(u8, Option<i64>, usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (kind, line) = bytes[..end].split_first()?;
    Some((*kind, std::str::from_utf8(line).ok().and_then(|line| line.parse().ok()), end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_a_frame_includes_all_its_parts() {
        for frame in [
            "+OK\r\n",
            "$3\r\n\r\n1\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*2\r\n$1\r\na\r\n*1\r\n:5\r\n",
            "%1\r\n+a\r\n#t\r\n",
            "|1\r\n+a\r\n+b\r\n_\r\n",
        ] {
            let more = format!("{frame}+next\r\n");
            assert_eq!(length(more.as_bytes()), Some(frame.len()), "{frame:?}");
            assert_eq!(length(&frame.as_bytes()[..frame.len() - 1]), None, "{frame:?}");
        }
        assert_eq!(length(b""), None);
    }

    #[test]
    fn command_is_a_list_of_bulk_strings() {
        assert_eq!(command(b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n"), [&b"GET"[..], b"\r\n"]);
        assert!(command(b"+OK\r\n").is_empty());
    }
}
