//! HTTP/2 frames.

use bytes::{BufMut, BytesMut};

use crate::wire::Malformed;

/// The size of length, type, flags and stream id.
pub(crate) const FRAME_HEADER: usize = 9;
/// The error code of a reset by the client: the stream is no longer needed.
pub(crate) const CANCEL: u32 = 8;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// On HEADERS and DATA. On SETTINGS and PING the same bit is [`ACK`].
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
pub(crate) const PRIORITY: u8 = 0x20;

/// Writes the header of a frame.
pub(crate) fn put_frame_header(out: &mut BytesMut, length: usize, kind: u8, flags: u8, id: u32) {
    out.put_slice(&(length as u32).to_be_bytes()[1..]);
    out.put_u8(kind);
    out.put_u8(flags);
    out.put_u32(id);
}

/// Returns the payload without its padding.
pub(crate) fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], Malformed> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(Malformed("a frame that ends early"))?;
    let length = rest.len().checked_sub((*padding).into()).ok_or(Malformed("more padding than frame"))?;
    Ok(&rest[..length])
}

/// Reads the number at the beginning of the payload.
pub(crate) fn read_u32(payload: &[u8]) -> Result<u32, Malformed> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)).ok_or(Malformed("a frame that ends early"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_frames_do_not_panic() {
        let samples: [&[u8]; 3] = [&[3, b'a', b'b', 0, 0, 0], &[0, 0, 0, 8], &[255, 1, 2]];
        testkit::fuzz("http2-frames", &samples, |input| {
            let Some((flags, payload)) = input.split_first() else { return false };
            let rest = unpadded(*flags, payload);
            assert!(rest.as_ref().is_err() || rest.as_ref().is_ok_and(|rest| rest.len() <= payload.len()));
            let _ = read_u32(payload);
            rest.is_ok()
        });
    }
}
