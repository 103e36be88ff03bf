//! Encoded tickets and queries, and the plain check of a ticket as a scan does it.

use redis::aio::MultiplexedConnection;

/// How many tickets are written at a time.
const BATCH: u32 = 5_000;

fn field(number: u8, kind: u8) -> u8 {
    number << 3 | kind
}

/// Encodes a field with a length.
pub(crate) fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
    let (mut encoded, mut length) = (vec![field(number, 2)], value.len());
    while length >= 128 {
        encoded.push(length as u8 | 128);
        length >>= 7;
    }
    encoded.push(length as u8);
    encoded.extend_from_slice(value);
    encoded
}

fn double(number: u8, value: f64) -> Vec<u8> {
    [&[field(number, 1)][..], &value.to_le_bytes()].concat()
}

fn entry(number: u8, name: &str, value: &[u8]) -> Vec<u8> {
    bytes(number, &[&bytes(1, name.as_bytes()), value].concat())
}

/// Returns the search fields of ticket number `n`: a rating of `n`, a latency, a mode, a region, and a tag.
pub(crate) fn search_fields(number: u32) -> Vec<u8> {
    let fields = [
        entry(1, "mmr", &double(2, f64::from(number))),
        entry(1, "latency", &double(2, f64::from(number % 97))),
        entry(2, "mode", &bytes(2, ["duel", "team", "royale"][number as usize % 3].as_bytes())),
        entry(
            2,
            "region",
            &bytes(2, ["eu-west", "eu-north", "us-east", "us-west"][number as usize % 4].as_bytes()),
        ),
        bytes(3, b"beta"),
    ];
    bytes(4, &fields.concat())
}

pub(crate) fn id(number: u32) -> String {
    format!("bench{number:015}")
}

/// Returns a query for the tickets with a rating from `min` and below `max`.
pub(crate) fn query(min: f64, max: f64) -> Vec<u8> {
    let range = [bytes(1, b"mmr"), double(2, max), double(3, min), vec![field(4, 0), 2]].concat();
    bytes(1, &bytes(2, &range))
}

/// Writes tickets as the product does.
pub(crate) async fn fill(redis: &mut MultiplexedConnection, count: u32) {
    for first in (0..count).step_by(BATCH as usize) {
        let numbers = first..(first + BATCH).min(count);
        let mut pipe = redis::pipe();
        let ids: Vec<String> = numbers.clone().map(id).collect();
        for (number, id) in numbers.zip(&ids) {
            let ticket = [bytes(1, id.as_bytes()), search_fields(number)].concat();
            pipe.cmd("SET").arg(id).arg(ticket).arg("EX").arg(3600).ignore();
            pipe.cmd("ZADD").arg("ticketQueue").arg(number).arg(id).ignore();
        }
        pipe.cmd("SADD").arg("allTickets").arg(ids).ignore();
        pipe.query_async::<()>(redis).await.unwrap();
    }
}

/// Returns the value of field `number`, and reads nothing else of the message.
pub(crate) fn find<'a>(mut message: &'a [u8], number: u8, mut handle: impl FnMut(&'a [u8])) {
    while let Some((key, rest)) = message.split_first() {
        let (length, rest) = match key & 7 {
            1 => (8, rest),
            2 => {
                let (mut length, mut shift, mut rest) = (0, 0, rest);
                while let Some((byte, more)) = rest.split_first() {
                    length |= usize::from(byte & 127) << shift;
                    (shift, rest) = (shift + 7, more);
                    if byte & 128 == 0 {
                        break;
                    }
                }
                (length, rest)
            }
            kind => panic!("field kind {kind}"),
        };
        if key >> 3 == number {
            handle(&rest[..length]);
        }
        message = &rest[length..];
    }
}

/// Returns whether the rating of a ticket is in the range. A scan cannot do less.
pub(crate) fn is_in(ticket: &[u8], min: f64, max: f64) -> bool {
    let mut is_in = false;
    find(ticket, 4, |fields| {
        find(fields, 1, |entry| {
            let (mut is_rating, mut value) = (false, f64::NAN);
            find(entry, 1, |name| is_rating = name == b"mmr");
            find(entry, 2, |bytes| value = f64::from_le_bytes(bytes.try_into().unwrap()));
            is_in |= is_rating && min <= value && value < max;
        });
    });
    is_in
}
