//! Hand-written encoding of the few messages: protobuf in gRPC frames.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The size of the gRPC prefix: the compression flag and the length.
const PREFIX: usize = 5;
/// The longest accepted message. Responses of Open Match frontends are small.
const MAX_MESSAGE: usize = 4 << 20;
const LENGTH_DELIMITED: u64 = 2;

/// A response that Open Match does not send.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("malformed response: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Encodes `CreateTicketRequest { ticket: { search_fields: {} } }` in a frame.
pub(crate) fn create_ticket() -> Bytes {
    frame(&[field(1), 2, field(4), 0])
}

/// Encodes `WatchAssignmentsRequest { ticket_id }` in a frame.
pub(crate) fn watch_assignments(ticket: &[u8]) -> Bytes {
    let mut message = Vec::with_capacity(ticket.len() + 4);
    message.push(field(1));
    put_varint(&mut message, ticket.len() as u64);
    message.extend_from_slice(ticket);
    frame(&message)
}

/// Decodes the `id` of a `Ticket`.
pub(crate) fn ticket_id(ticket: &Bytes) -> Result<Bytes, Malformed> {
    last_field(ticket, 1)?.filter(|id| !id.is_empty()).ok_or(Malformed("a ticket without an id"))
}

/// Decodes `assignment.connection` of a `WatchAssignmentsResponse`. Returns `None` if nothing is assigned.
pub(crate) fn connection(response: &Bytes) -> Result<Option<Bytes>, Malformed> {
    match last_field(response, 1)? {
        Some(assignment) => assignment_connection(&assignment),
        None => Ok(None),
    }
}

/// Decodes the `connection` of an `Assignment`.
pub(crate) fn assignment_connection(assignment: &Bytes) -> Result<Option<Bytes>, Malformed> {
    Ok(last_field(assignment, 1)?.filter(|connection| !connection.is_empty()))
}

/// Takes the first complete message out of the received bytes.
pub(crate) fn take_message(received: &mut BytesMut) -> Result<Option<Bytes>, Malformed> {
    let Some(prefix) = received.first_chunk::<PREFIX>() else { return Ok(None) };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err(Malformed("a compressed message, which was not requested"));
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(Malformed("a message that is too long"));
    }
    if received.len() < PREFIX + length {
        return Ok(None);
    }
    received.advance(PREFIX);
    Ok(Some(received.split_to(length).freeze()))
}

/// Puts a message into a frame.
fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// Returns the tag of a length-delimited field (bytes, text or a message).
const fn field(number: u8) -> u8 {
    number << 3 | LENGTH_DELIMITED as u8
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Returns the value of a length-delimited field. If it is repeated, the last one counts.
fn last_field(message: &Bytes, number: u64) -> Result<Option<Bytes>, Malformed> {
    let mut rest = message.clone();
    let mut found = None;
    while rest.has_remaining() {
        let tag = varint(&mut rest)?;
        match tag & 7 {
            0 => {
                varint(&mut rest)?;
            }
            1 => skip(&mut rest, 8)?,
            LENGTH_DELIMITED => {
                let length = usize::try_from(varint(&mut rest)?).unwrap_or(usize::MAX);
                if length > rest.len() {
                    return Err(Malformed("a field that ends early"));
                }
                let value = rest.split_to(length);
                if tag >> 3 == number {
                    found = Some(value);
                }
            }
            5 => skip(&mut rest, 4)?,
            _ => return Err(Malformed("a field with an unknown wire type")),
        }
    }
    Ok(found)
}

fn varint(from: &mut Bytes) -> Result<u64, Malformed> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = from.try_get_u8().map_err(|_| Malformed("a number that ends early"))?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed("a number that is too long"))
}

fn skip(from: &mut Bytes, count: usize) -> Result<(), Malformed> {
    if count > from.len() {
        return Err(Malformed("a field that ends early"));
    }
    from.advance(count);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_framed_protobuf() {
        assert_eq!(create_ticket()[..], [0, 0, 0, 0, 4, 0x0a, 2, 0x22, 0]);
        assert_eq!(watch_assignments(b"abc")[..], [0, 0, 0, 0, 5, 0x0a, 3, b'a', b'b', b'c']);
        let long = watch_assignments(&[b'x'; 300]);
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 0x02]);
    }

    #[test]
    fn id_is_found_among_other_fields() {
        // search_fields, an unknown varint, a fixed64, a fixed32, then the id.
        let ticket = [
            &[0x22, 0, 0x50, 0x96, 0x01, 0x59, 0, 0, 0, 0, 0, 0, 0, 0, 0x65, 0, 0, 0, 0][..],
            &[0x0a, 2, b'i', b'd'],
        ];
        assert_eq!(ticket_id(&Bytes::from(ticket.concat())).unwrap(), "id");
        assert!(ticket_id(&Bytes::new()).is_err());
    }

    #[test]
    fn connection_may_be_absent() {
        let assigned = Bytes::from_static(&[0x0a, 5, 0x0a, 3, b'g', b's', b'1']);
        assert_eq!(connection(&assigned).unwrap().unwrap(), "gs1");
        assert_eq!(connection(&Bytes::new()).unwrap(), None);
        assert_eq!(connection(&Bytes::from_static(&[0x0a, 0])).unwrap(), None);
    }

    #[test]
    fn truncated_message_is_an_error() {
        for cut in [&[0x0a_u8][..], &[0x0a, 5, 1], &[0x51, 1], &[0x55, 1], &[0x80], &[0x0b], &[0xff; 11]] {
            assert!(last_field(&Bytes::copy_from_slice(cut), 1).is_err(), "{cut:?}");
        }
    }

    #[test]
    fn messages_are_taken_when_complete() {
        let mut received = BytesMut::new();
        for byte in [0, 0, 0, 0, 2, 7] {
            received.put_u8(byte);
            assert_eq!(take_message(&mut received).unwrap(), None);
        }
        received.put_slice(&[8, 0, 0, 0, 0, 0, 9]);
        assert_eq!(take_message(&mut received).unwrap().unwrap()[..], [7, 8]);
        assert!(take_message(&mut received).unwrap().unwrap().is_empty());
        assert_eq!(received[..], [9]);
        assert!(take_message(&mut BytesMut::from(&[1, 0, 0, 0, 0][..])).is_err());
        assert!(take_message(&mut BytesMut::from(&[0, 0xff, 0, 0, 0][..])).is_err());
    }
}
