//! An HTTP/2 client that does what no library allows: it opens no window, resets what it asked for, sends heads without an end.
//!
//! It writes single frames, and acknowledges settings and pings like any client, so that only what a test does on purpose is wrong.

use std::net::SocketAddr;

use tokio::io::{self, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD: usize = 9;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// The numbers of settings that tests use.
pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
pub const INITIAL_WINDOW_SIZE: u16 = 0x4;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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

impl Kind {
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

/// A frame, as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The head of a GET without a body, in one frame.
    pub fn get(stream: u32, path: &str, headers: &[(&str, &str)]) -> Self {
        let payload = head(&[("authority", "x"), ("path", path)], headers);
        Self { kind: Kind::Headers, flags: END_STREAM | END_HEADERS, stream, payload }
    }

    /// The same head without an end: it has to go on with [`continuation`](Self::continuation).
    pub fn open_get(stream: u32, path: &str) -> Self {
        Self { flags: END_STREAM, ..Self::get(stream, path, &[]) }
    }

    /// More of a head, which does not end with it.
    pub fn continuation(stream: u32, headers: &[(&str, &str)]) -> Self {
        let mut payload = Vec::new();
        headers.iter().for_each(|(name, value)| literal(&mut payload, name, value));
        Self { kind: Kind::Continuation, flags: 0, stream, payload }
    }

    /// Takes a request back.
    pub fn reset(stream: u32) -> Self {
        const CANCEL: u32 = 8;
        Self { kind: Kind::Reset, flags: 0, stream, payload: CANCEL.to_be_bytes().into() }
    }

    pub fn settings(settings: &[(u16, u32)]) -> Self {
        let setting =
            |(number, value): &(u16, u32)| [&number.to_be_bytes()[..], &value.to_be_bytes()].concat();
        Self {
            kind: Kind::Settings,
            flags: 0,
            stream: 0,
            payload: settings.iter().flat_map(setting).collect(),
        }
    }

    /// Opens the window of a stream, or with 0 that of the connection.
    pub fn window(stream: u32, more: u32) -> Self {
        Self { kind: Kind::WindowUpdate, flags: 0, stream, payload: more.to_be_bytes().into() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a short frame").to_be_bytes();
        let mut bytes = Vec::with_capacity(HEAD + self.payload.len());
        bytes.extend_from_slice(&length[1..]);
        bytes.extend_from_slice(&[self.kind.number(), self.flags]);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// Whether it is the last frame of its stream.
    pub fn is_last(&self) -> bool {
        matches!(self.kind, Kind::Data | Kind::Headers) && self.flags & END_STREAM != 0
    }

    /// Whether it is the head of an answer with the status 200.
    pub fn is_ok(&self) -> bool {
        const STATUS_200: u8 = 0x88;
        self.kind == Kind::Headers && self.payload.first() == Some(&STATUS_200)
    }

    /// The value of a setting, in a frame of settings.
    pub fn setting(&self, wanted: u16) -> Option<u32> {
        let settings = self.payload.chunks_exact(6).filter(|_| self.kind == Kind::Settings);
        let mut values = settings.filter_map(|setting| {
            let (number, value) = setting.split_at(2);
            (number == wanted.to_be_bytes()).then(|| value.try_into().map(u32::from_be_bytes).ok())
        });
        values.next().flatten()
    }

    /// The error code of a reset, or of the end of a connection.
    pub fn code(&self) -> Option<u32> {
        let at = match self.kind {
            Kind::Reset => 0,
            Kind::GoAway => 4,
            _ => return None,
        };
        self.payload.get(at..at + 4)?.try_into().map(u32::from_be_bytes).ok()
    }
}

/// One connection of such a client.
#[derive(Debug)]
pub struct RawHttp2 {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl RawHttp2 {
    /// Connects and says how much of each answer the server may send unasked.
    pub async fn connect(address: SocketAddr, window: u32) -> io::Result<Self> {
        Self::over(TcpStream::connect(address).await?, window).await
    }

    /// As [`connect`](Self::connect), on a connection that exists.
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

    /// Sends frames as one write, so that the server finds them together.
    pub async fn send_all(&mut self, frames: impl IntoIterator<Item = Frame>) -> io::Result<()> {
        let bytes: Vec<u8> = frames.into_iter().flat_map(|frame| frame.bytes()).collect();
        self.stream.write_all(&bytes).await
    }

    /// Returns the next frame, or nothing when the server has closed the connection. Acknowledges settings and pings.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        let Some(frame) = self.read().await? else { return Ok(None) };
        if matches!(frame.kind, Kind::Settings | Kind::Ping) && frame.flags & ACK == 0 {
            let payload = if frame.kind == Kind::Ping { frame.payload.clone() } else { Vec::new() };
            let answer = Frame { kind: frame.kind, flags: ACK, stream: 0, payload };
            // A server that closes does not wait for it; what it sent before is still to be read.
            let _ = self.send(answer).await;
        }
        Ok(Some(frame))
    }

    /// Returns the first frame that is wanted, or nothing when the connection ends before. The others are dropped.
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
        let (head, rest) = self.unread.split_at_checked(HEAD)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = rest.get(..length)?.to_vec();
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let frame = Frame { kind: Kind::of(head[3]), flags: head[4], stream, payload };
        self.unread.drain(..HEAD + length);
        Some(frame)
    }
}

/// The head of a request, nothing of it compressed.
fn head(pseudo: &[(&str, &str)], headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    literal(&mut block, ":method", "GET");
    literal(&mut block, ":scheme", "http");
    pseudo.iter().for_each(|(name, value)| literal(&mut block, &format!(":{name}"), value));
    headers.iter().for_each(|(name, value)| literal(&mut block, name, value));
    block
}

/// A header that no table remembers.
fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        integer(block, text.len());
        block.extend_from_slice(text.as_bytes());
    }
}

/// A length of HPACK: seven bits, and what they do not hold in groups of seven behind them.
fn integer(block: &mut Vec<u8>, length: usize) {
    const MOST: usize = 0x7f;
    let byte = |value: usize| u8::try_from(value).unwrap_or(u8::MAX);
    if length < MOST {
        return block.push(byte(length));
    }
    block.push(byte(MOST));
    let mut rest = length - MOST;
    while rest >= 0x80 {
        block.push(byte(rest & MOST) | 0x80);
        rest >>= 7;
    }
    block.push(byte(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_hpack_has_them() {
        for (length, expected) in [(10, &[10][..]), (126, &[126]), (127, &[127, 0]), (1337, &[127, 186, 9])] {
            let mut block = Vec::new();
            integer(&mut block, length);
            assert_eq!(block, expected, "{length}");
        }
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let settings = Frame::settings(&[(MAX_CONCURRENT_STREAMS, 7), (INITIAL_WINDOW_SIZE, 0)]);
        assert_eq!(settings.setting(INITIAL_WINDOW_SIZE), Some(0));
        assert_eq!(settings.setting(MAX_CONCURRENT_STREAMS), Some(7));
        let reset = Frame::reset(3);
        assert_eq!((reset.bytes(), reset.code()), (vec![0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 8], Some(8)));
    }
}
