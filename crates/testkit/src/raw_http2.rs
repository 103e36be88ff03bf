//! An HTTP/2 client that can do what libraries do not allow: open no window, reset its requests, send header blocks without end.
//!
//! It writes single frames. It acknowledges settings and pings like any client, so the only errors are those of the test.

use std::net::SocketAddr;

use tokio::io::{self, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// The numbers of settings that tests use.
pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
pub const INITIAL_WINDOW_SIZE: u16 = 0x4;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    Data,
    Headers,
    Reset,
    Settings,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    Other(u8),
}

impl FrameKind {
    const fn number(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Headers => 1,
            Self::Reset => 3,
            Self::Settings => 4,
            Self::Ping => 6,
            Self::GoAway => 7,
            Self::WindowUpdate => 8,
            Self::Continuation => 9,
            Self::Other(number) => number,
        }
    }

    fn of(number: u8) -> Self {
        let known = [
            Self::Data,
            Self::Headers,
            Self::Reset,
            Self::Settings,
            Self::Ping,
            Self::GoAway,
            Self::WindowUpdate,
            Self::Continuation,
        ];
        known.into_iter().find(|kind| kind.number() == number).unwrap_or(Self::Other(number))
    }
}

/// A frame as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Creates the headers of a GET request, complete in one frame.
    pub fn get(stream: u32, path: &str, headers: &[(&str, &str)]) -> Self {
        let payload = header_block(&[("authority", "x"), ("path", path)], headers);
        Self { kind: FrameKind::Headers, flags: END_STREAM | END_HEADERS, stream, payload }
    }

    /// Creates the headers of a GET request that need a [`continuation`](Self::continuation).
    pub fn open_get(stream: u32, path: &str) -> Self {
        Self { flags: END_STREAM, ..Self::get(stream, path, &[]) }
    }

    /// Creates a continuation that does not end the header block.
    pub fn continuation(stream: u32, headers: &[(&str, &str)]) -> Self {
        let mut payload = Vec::new();
        headers.iter().for_each(|(name, value)| literal(&mut payload, name, value));
        Self { kind: FrameKind::Continuation, flags: 0, stream, payload }
    }

    /// Creates a reset, which cancels a request.
    pub fn reset(stream: u32) -> Self {
        const CANCEL: u32 = 8;
        Self { kind: FrameKind::Reset, flags: 0, stream, payload: CANCEL.to_be_bytes().into() }
    }

    pub fn settings(settings: &[(u16, u32)]) -> Self {
        let setting =
            |(number, value): &(u16, u32)| [&number.to_be_bytes()[..], &value.to_be_bytes()].concat();
        Self {
            kind: FrameKind::Settings,
            flags: 0,
            stream: 0,
            payload: settings.iter().flat_map(setting).collect(),
        }
    }

    /// Creates a window update of a stream, or of the connection if `stream` is 0.
    pub fn window(stream: u32, more: u32) -> Self {
        Self { kind: FrameKind::WindowUpdate, flags: 0, stream, payload: more.to_be_bytes().into() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a short frame").to_be_bytes();
        let mut bytes = Vec::with_capacity(FRAME_HEADER + self.payload.len());
        bytes.extend_from_slice(&length[1..]);
        bytes.extend_from_slice(&[self.kind.number(), self.flags]);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// Returns whether it is the last frame of its stream.
    pub fn is_last(&self) -> bool {
        matches!(self.kind, FrameKind::Data | FrameKind::Headers) && self.flags & END_STREAM != 0
    }

    /// Returns whether it holds the headers of a response with status 200.
    pub fn is_ok(&self) -> bool {
        const STATUS_200: u8 = 0x88;
        self.kind == FrameKind::Headers && self.payload.first() == Some(&STATUS_200)
    }

    /// Returns the value of a setting, if this is a settings frame that has it.
    pub fn setting(&self, wanted: u16) -> Option<u32> {
        let settings = self.payload.chunks_exact(6).filter(|_| self.kind == FrameKind::Settings);
        let mut values = settings.filter_map(|setting| {
            let (number, value) = setting.split_at(2);
            (number == wanted.to_be_bytes()).then(|| value.try_into().map(u32::from_be_bytes).ok())
        });
        values.next().flatten()
    }

    /// Returns the error code of a reset or a GOAWAY.
    pub fn code(&self) -> Option<u32> {
        let at = match self.kind {
            FrameKind::Reset => 0,
            FrameKind::GoAway => 4,
            _ => return None,
        };
        self.payload.get(at..at + 4)?.try_into().map(u32::from_be_bytes).ok()
    }
}

/// A connection of the client.
#[derive(Debug)]
pub struct RawHttp2 {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl RawHttp2 {
    /// Connects and sets the initial window of each stream.
    pub async fn connect(address: SocketAddr, window: u32) -> io::Result<Self> {
        Self::over(TcpStream::connect(address).await?, window).await
    }

    /// Like [`connect`](Self::connect), on an existing connection.
    pub async fn over(stream: TcpStream, window: u32) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let mut client = Self { stream, unread: Vec::new() };
        let settings = Frame::settings(&[(INITIAL_WINDOW_SIZE, window)]).bytes();
        client.stream.write_all(&[PREFACE, &settings].concat()).await?;
        Ok(client)
    }

    pub async fn send(&mut self, frame: Frame) -> io::Result<()> {
        self.stream.write_all(&frame.bytes()).await
    }

    /// Sends frames in one write, so that the server reads them together.
    pub async fn send_all(&mut self, frames: impl IntoIterator<Item = Frame>) -> io::Result<()> {
        let bytes: Vec<u8> = frames.into_iter().flat_map(|frame| frame.bytes()).collect();
        self.stream.write_all(&bytes).await
    }

    /// Returns the next frame, or `None` if the server has closed the connection. Acknowledges settings and pings.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        let Some(frame) = self.read().await? else { return Ok(None) };
        if matches!(frame.kind, FrameKind::Settings | FrameKind::Ping) && frame.flags & ACK == 0 {
            let payload = if frame.kind == FrameKind::Ping { frame.payload.clone() } else { Vec::new() };
            let answer = Frame { kind: frame.kind, flags: ACK, stream: 0, payload };
            // The write fails if the server has closed. Frames that it sent before can still be read.
            let _ = self.send(answer).await;
        }
        Ok(Some(frame))
    }

    /// Returns the first frame that matches, or `None` if the connection ends first. Drops the frames before it.
    pub async fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> io::Result<Option<Frame>> {
        while let Some(frame) = self.next().await? {
            if wanted(&frame) {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    async fn read(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take() {
                return Ok(Some(frame));
            }
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn take(&mut self) -> Option<Frame> {
        let (head, rest) = self.unread.split_at_checked(FRAME_HEADER)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = rest.get(..length)?.to_vec();
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let frame = Frame { kind: FrameKind::of(head[3]), flags: head[4], stream, payload };
        self.unread.drain(..FRAME_HEADER + length);
        Some(frame)
    }
}

/// Encodes a header block without compression.
fn header_block(pseudo: &[(&str, &str)], headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    literal(&mut block, ":method", "GET");
    literal(&mut block, ":scheme", "http");
    pseudo.iter().for_each(|(name, value)| literal(&mut block, &format!(":{name}"), value));
    headers.iter().for_each(|(name, value)| literal(&mut block, name, value));
    block
}

/// Encodes a literal header without indexing.
fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        integer(block, text.len());
        block.extend_from_slice(text.as_bytes());
    }
}

/// Encodes an HPACK integer with a prefix of seven bits.
fn integer(block: &mut Vec<u8>, length: usize) {
    const PREFIX_MAX: usize = 0x7f;
    let byte = |value: usize| u8::try_from(value).unwrap_or(u8::MAX);
    if length < PREFIX_MAX {
        return block.push(byte(length));
    }
    block.push(byte(PREFIX_MAX));
    let mut rest = length - PREFIX_MAX;
    while rest >= 0x80 {
        block.push(byte(rest & PREFIX_MAX) | 0x80);
        rest >>= 7;
    }
    block.push(byte(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_encoded_as_hpack_integers() {
        for (length, expected) in [(10, &[10][..]), (126, &[126]), (127, &[127, 0]), (1337, &[127, 186, 9])] {
            let mut block = Vec::new();
            integer(&mut block, length);
            assert_eq!(block, expected, "{length}");
        }
    }

    #[test]
    fn fields_of_a_frame_can_be_read_back() {
        let settings = Frame::settings(&[(MAX_CONCURRENT_STREAMS, 7), (INITIAL_WINDOW_SIZE, 0)]);
        assert_eq!(settings.setting(INITIAL_WINDOW_SIZE), Some(0));
        assert_eq!(settings.setting(MAX_CONCURRENT_STREAMS), Some(7));
        let reset = Frame::reset(3);
        assert_eq!((reset.bytes(), reset.code()), (vec![0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 8], Some(8)));
    }
}
