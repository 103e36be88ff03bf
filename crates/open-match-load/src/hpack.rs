//! HPACK, the header compression of HTTP/2 (RFC 7541): an encoder for the requests and a decoder for the responses.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use crate::wire::Malformed;

/// The default size of both dynamic tables. This client does not change it.
pub(crate) const TABLE: usize = 4096;
/// The size of an entry in addition to its name and value.
const OVERHEAD: usize = 32;
/// The names of the static table.
const STATIC: [&str; 61] = [
    ":authority",
    ":method",
    ":method",
    ":path",
    ":path",
    ":scheme",
    ":scheme",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "accept",
    "access-control-allow-origin",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "refresh",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "user-agent",
    "vary",
    "via",
    "www-authenticate",
];
/// The values of the static entries 8 to 14, the only values that are used.
const STATUSES: [&str; 7] = ["200", "204", "206", "304", "400", "404", "500"];
/// The characters of each code length. Codes are canonical, so the lengths define them. Characters with longer codes are omitted,
/// because no header of interest contains them.
const HUFFMAN: [(u32, &[u8]); 10] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
];

/// Encodes the headers of the two requests. Each header is sent once per connection and then by its index.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// The values in the dynamic table, oldest first.
    sent: Vec<Bytes>,
    /// Whether the server's table is large enough to be used.
    indexed: bool,
    /// Whether the first block must set the table size to zero.
    announce: bool,
}

impl Encoder {
    pub(crate) fn new(server_table: usize) -> Self {
        let indexed = server_table >= TABLE;
        Self { sent: Vec::new(), indexed, announce: !indexed }
    }

    /// Encodes `POST path` with the headers of gRPC.
    pub(crate) fn request(&mut self, path: &'static str, authority: &Bytes, to: &mut BytesMut) {
        if std::mem::take(&mut self.announce) {
            to.put_u8(0x20);
        }
        // :method POST, :scheme http
        to.put_slice(&[0x83, 0x86]);
        self.field(4, b"", &Bytes::from_static(path.as_bytes()), to);
        self.field(1, b"", authority, to);
        self.field(31, b"", &Bytes::from_static(b"application/grpc"), to);
        self.field(0, b"te", &Bytes::from_static(b"trailers"), to);
    }

    /// Encodes a field. Its name is a static entry, or a literal if `static_name` is 0. Different fields have different values.
    fn field(&mut self, static_name: u8, name: &[u8], value: &Bytes, to: &mut BytesMut) {
        if let Some(position) = self.sent.iter().position(|sent| sent == value) {
            let age = self.sent.len() - 1 - position;
            // The few entries fit into seven bits.
            to.put_u8(0x80 | (STATIC.len() + 1 + age) as u8);
            return;
        }
        if self.indexed {
            self.sent.push(value.clone());
            put_number(0x40, 6, static_name.into(), to);
        } else {
            put_number(0, 4, static_name.into(), to);
        }
        if static_name == 0 {
            put_number(0, 7, name.len(), to);
            to.put_slice(name);
        }
        put_number(0, 7, value.len(), to);
        to.put_slice(value);
    }
}

/// Decodes headers.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// Newest first.
    table: VecDeque<(Bytes, Bytes)>,
    size: usize,
    limit: usize,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self { table: VecDeque::new(), size: 0, limit: TABLE }
    }

    /// Decodes a block and calls `show` with the name and value of each header.
    pub(crate) fn read(
        &mut self,
        mut block: &[u8],
        mut show: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Malformed> {
        while let Some(first) = block.first() {
            match first.leading_zeros() {
                0 => {
                    let index = number(&mut block, 7)?;
                    match self.table.get(index.wrapping_sub(STATIC.len() + 1)) {
                        Some((name, value)) => show(name, value),
                        None => {
                            let value = STATUSES.get(index.wrapping_sub(8)).copied().unwrap_or_default();
                            show(static_name(index)?, value.as_bytes());
                        }
                    }
                }
                1 => {
                    let (name, value) = self.literal(&mut block, 6)?;
                    show(&name, &value);
                    self.size += name.len() + value.len() + OVERHEAD;
                    self.table.push_front((name, value));
                    self.shrink();
                }
                2 => {
                    self.limit = number(&mut block, 5)?;
                    if self.limit > TABLE {
                        return Err(Malformed("a header table that is larger than allowed"));
                    }
                    self.shrink();
                }
                _ => {
                    let (name, value) = self.literal(&mut block, 4)?;
                    show(&name, &value);
                }
            }
        }
        Ok(())
    }

    fn literal(&self, block: &mut &[u8], bits: u32) -> Result<(Bytes, Bytes), Malformed> {
        let name = match number(block, bits)? {
            0 => text(block)?,
            index => match self.table.get(index.wrapping_sub(STATIC.len() + 1)) {
                Some((name, _)) => name.clone(),
                None => Bytes::from_static(static_name(index)?),
            },
        };
        Ok((name, text(block)?))
    }

    fn shrink(&mut self) {
        while self.size > self.limit
            && let Some((name, value)) = self.table.pop_back()
        {
            self.size -= name.len() + value.len() + OVERHEAD;
        }
    }
}

fn static_name(index: usize) -> Result<&'static [u8], Malformed> {
    let name = STATIC.get(index.wrapping_sub(1)).ok_or(Malformed("a header with an unknown index"))?;
    Ok(name.as_bytes())
}

fn put_number(first: u8, bits: u32, mut number: usize, to: &mut BytesMut) {
    let most = (1 << bits) - 1;
    if number < most {
        to.put_u8(first | number as u8);
        return;
    }
    to.put_u8(first | most as u8);
    number -= most;
    while number >= 0x80 {
        to.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    to.put_u8(number as u8);
}

fn number(from: &mut &[u8], bits: u32) -> Result<usize, Malformed> {
    const TRUNCATED: Malformed = Malformed("a header that ends early");
    let most = (1 << bits) - 1;
    let mut value = usize::from(*from.split_off_first().ok_or(TRUNCATED)?) & most;
    if value < most {
        return Ok(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*from.split_off_first().ok_or(TRUNCATED)?);
        value += (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed("a header with a number that is too long"))
}

fn text(from: &mut &[u8]) -> Result<Bytes, Malformed> {
    let packed = from.first().is_some_and(|first| *first >= 0x80);
    let length = number(from, 7)?;
    let text = from.split_off(..length).ok_or(Malformed("a header that ends early"))?;
    if packed { huffman_decode(text) } else { Ok(Bytes::copy_from_slice(text)) }
}

/// Decodes the Huffman code bit by bit. Speed does not matter, because servers send each header text once.
fn huffman_decode(text: &[u8]) -> Result<Bytes, Malformed> {
    let mut unpacked = Vec::with_capacity(text.len() * 2);
    let (mut code, mut length) = (0_u32, 0);
    for bit in text.iter().flat_map(|byte| (0..8).rev().map(move |bit| u32::from(byte >> bit & 1))) {
        (code, length) = (code << 1 | bit, length + 1);
        let mut first = 0;
        let mut last_length = HUFFMAN[0].0;
        for (of_length, symbols) in HUFFMAN {
            first <<= of_length - last_length;
            last_length = of_length;
            if of_length == length
                && let Some(symbol) = code.checked_sub(first).and_then(|nth| symbols.get(nth as usize))
            {
                unpacked.push(*symbol);
                (code, length) = (0, 0);
                break;
            }
            first += symbols.len() as u32;
        }
    }
    // The last byte is padded with ones.
    if length > 7 || code != (1 << length) - 1 {
        return Err(Malformed("a header with an unsupported Huffman code"));
    }
    Ok(unpacked.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut seen = Vec::new();
        decoder.read(block, |name, value| seen.push((text(name), text(value)))).unwrap();
        seen
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// The examples of RFC 7541, C.6.1 to C.6.2: a table of 256 bytes, values in Huffman code.
    #[test]
    fn examples_of_the_standard_are_decoded() {
        let mut decoder = Decoder { limit: 256, ..Decoder::new() };
        let first = [
            &[0x48, 0x82, 0x64, 0x02, 0x58, 0x85, 0xae, 0xc3, 0x77, 0x1a, 0x4b, 0x61, 0x96, 0xd0, 0x7a, 0xbe]
                [..],
            &[0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04, 0x0b, 0x81, 0x66, 0xe0, 0x82, 0xa6],
            &[0x2d, 0x1b, 0xff, 0x6e, 0x91, 0x9d, 0x29, 0xad, 0x17, 0x18, 0x63, 0xc7, 0x8f, 0x0b, 0x97, 0xc8],
            &[0xe9, 0xae, 0x82, 0xae, 0x43, 0xd3],
        ];
        let common = [
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ];
        let expected = [&[(":status", "302")][..], &common].concat();
        assert_eq!(read(&mut decoder, &first.concat()), pairs(&expected));
        assert_eq!(decoder.size, 222);
        let expected = [&[(":status", "307")][..], &common].concat();
        assert_eq!(read(&mut decoder, &[0x48, 0x83, 0x64, 0x0e, 0xff, 0xc1, 0xc0, 0xbf]), pairs(&expected));
        // The oldest entry was evicted.
        assert_eq!((decoder.size, decoder.table.len()), (222, 4));
    }

    #[test]
    fn static_entries_and_new_limits_are_decoded() {
        let mut decoder = Decoder::new();
        assert_eq!(read(&mut decoder, &[0x88, 0x20, 0x8e]), pairs(&[(":status", "200"), (":status", "500")]));
        assert_eq!(decoder.limit, 0);
        let literal = [0x40, 1, b'a', 1, b'b'];
        assert_eq!(read(&mut decoder, &literal), pairs(&[("a", "b")]));
        assert!(decoder.table.is_empty());
    }

    #[test]
    fn repeated_requests_are_short() {
        let authority = Bytes::from_static(b"host:1");
        for (table, length) in [(TABLE, 6), (0, 46)] {
            let mut decoder = Decoder::new();
            let mut encoder = Encoder::new(table);
            for (nth, path) in ["/a", "/b", "/a", "/b", "/a"].into_iter().enumerate() {
                let mut block = BytesMut::new();
                encoder.request(path, &authority, &mut block);
                let seen = read(&mut decoder, &block);
                let expected = [
                    (":path", path),
                    (":authority", "host:1"),
                    ("content-type", "application/grpc"),
                    ("te", "trailers"),
                ];
                assert_eq!(seen[2..], pairs(&expected));
                if nth >= 2 {
                    assert_eq!(block.len(), length);
                }
            }
        }
    }

    #[test]
    fn malformed_blocks_are_errors() {
        for block in [
            &[0xff][..],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0xc0],
            &[0x40, 5, b'a'],
            &[0x3f, 0xff, 0x7f],
        ] {
            assert!(Decoder::new().read(block, |_, _| {}).is_err(), "{block:?}");
        }
        assert!(huffman_decode(&[0xff, 0xff]).is_err());
        assert!(huffman_decode(&[0x00]).is_err());
    }

    #[test]
    fn malformed_blocks_do_not_panic() {
        let samples: [&[u8]; 4] = [
            &[0x88, 0x40, 5, b'a', b'b', b'c', b'd', b'e', 3, b'x', b'y', b'z', 0xbe],
            &[0x48, 0x82, 0x64, 0x02, 0x58, 0x85, 0xae, 0xc3, 0x77, 0x1a, 0x4b, 0x3f, 0xe1, 0x1f],
            &[
                0x61, 0x96, 0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04,
                0x0b, 0x81, 0x66,
            ],
            &[0x3f, 0xe1, 0x1f, 0x10, 1, b'n', 1, b'v', 0x0f, 0x0d, 0x01, b'0'],
        ];
        testkit::fuzz("hpack", &samples, |input| {
            // The table of one connection is shared by its blocks.
            let mut decoder = Decoder::new();
            let mut shown = 0;
            let mut is_read = true;
            for block in input.chunks(64) {
                is_read &= decoder.read(block, |name, value| shown += name.len() + value.len()).is_ok();
                assert!(decoder.size <= TABLE, "the table is bounded");
            }
            // A byte can stand for an entry of the whole table, and a number of bits for a symbol.
            assert!(shown <= input.len() * (TABLE + 2), "{shown}");
            is_read
        });
    }
}
