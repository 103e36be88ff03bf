//! What the index keeps of a ticket or a backfill: what pools filter it by, and its encoded data as a query returns it.

use buffa::Message;
use bytes::Bytes;

use crate::model::{Moment, SearchFields, TicketId};
use crate::store::BackfillData;
use crate::wire;

/// The key of field 1 with a length.
const FIELD_1: u8 = 10;

/// A ticket or a backfill, as it was read from the store.
#[derive(Clone, Debug, Default)]
pub(in crate::query) struct Document {
    pub(super) fields: SearchFields,
    pub(super) created: Moment,
    /// When a ticket's data expires. That of a backfill is known from its acknowledgements.
    pub(super) expires: Option<Moment>,
    /// Field 1 of a response.
    pub(super) frame: Box<[u8]>,
}

impl Document {
    /// Returns `None` if the data is unreadable.
    pub(in crate::query) fn of_ticket(id: &TicketId, data: &Bytes) -> Option<Self> {
        let ticket = wire::decode_ticket(id.clone(), data).ok()?;
        let name = id.as_str().as_bytes();
        let starts_with_id = data.len() > name.len() + 1
            && data[0] == FIELD_1
            && usize::from(data[1]) == name.len()
            && &data[2..2 + name.len()] == name;
        // Another program may encode the fields in another order, or store a ticket under another id.
        let data = if starts_with_id { data.clone() } else { wire::ticket_with_id(id, data)? };
        Some(Self {
            fields: ticket.fields,
            created: ticket.created,
            expires: ticket.expires,
            frame: frame(&data),
        })
    }

    /// Returns `None` if the data is unreadable.
    pub(in crate::query) fn of_backfill(data: &BackfillData) -> Option<Self> {
        let backfill = wire::backfill_from_parts(data)?;
        let (fields, created) = wire::backfill_filter_input(&backfill);
        Some(Self { fields, created, expires: None, frame: frame(&backfill.encode_to_bytes()) })
    }
}

/// Encodes a ticket or a backfill as field 1 of a response. Either starts with its id, also in field 1.
fn frame(data: &[u8]) -> Box<[u8]> {
    let mut frame = Vec::with_capacity(data.len() + 4);
    frame.push(FIELD_1);
    let mut length = data.len();
    while length >= 128 {
        frame.push(length as u8 | 128);
        length >>= 7;
    }
    frame.push(length as u8);
    frame.extend_from_slice(data);
    frame.into()
}

/// Returns the first field within field 1 of a frame: the key, length and text of the id. It is also field 1 of a
/// `QueryTicketIdsResponse`.
pub(super) fn field_1(frame: &[u8]) -> &[u8] {
    let length = frame[1..].iter().take_while(|byte| **byte >= 128).count() + 1;
    let document = &frame[1 + length..];
    &document[..2 + usize::from(document[1])]
}

pub(super) fn id_of_frame(frame: &[u8]) -> &[u8] {
    &field_1(frame)[2..]
}
