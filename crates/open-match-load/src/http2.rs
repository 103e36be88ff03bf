//! The part of HTTP/2 that a gRPC client of two small methods needs. `h2` takes about 1.5 times the processor time (ADR 15).
//!
//! One task per connection reads and writes. Calls append their frames to a buffer, which is written after all runnable tasks
//! have run, so that concurrent requests share a write.

use std::cell::{RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::call::Failure;
use crate::frame::{
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_HEADER, GOAWAY, HEADERS, PING, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, put_frame_header, read_u32, unpadded,
};
use crate::hpack::{Decoder, Encoder, TABLE};
use crate::wire::{self, Malformed};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// So large that no stream ever waits for a window update.
const WINDOW: u32 = 8 << 20;
const DEFAULT_WINDOW: u32 = 65_535;
/// The default of HTTP/2, which this client does not change.
const MAX_FRAME: usize = 16_384;
/// A connection on which calls can be made. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct Http2Client(Rc<RefCell<State>>);

/// A future that reads and writes the connection. It completes when the connection ends.
#[derive(Debug)]
pub(crate) struct Driver {
    socket: TcpStream,
    received: BytesMut,
    client: Http2Client,
}

/// A call whose request was sent. Dropping it cancels the call.
#[derive(Debug)]
pub(crate) struct Call {
    client: Http2Client,
    id: u32,
}

#[derive(Debug)]
struct State {
    authority: Bytes,
    out: BytesMut,
    driver: Option<Waker>,
    streams: HashMap<u32, Stream>,
    next_id: u32,
    encoder: Encoder,
    decoder: Decoder,
    /// `None` until the server has sent its settings.
    max_streams: Option<usize>,
    /// How many bytes may be sent.
    window: i64,
    /// Requests that wait for the window.
    blocked: VecDeque<(u32, Bytes)>,
    /// Received bytes for which no window update was sent.
    unacknowledged: u32,
    /// Headers that continue in the next frame.
    unfinished: Option<(u32, u8, Vec<u8>)>,
    /// Why no further call can be made.
    over: Option<Failure>,
    /// Whether the driver has ended.
    driver_ended: bool,
}

#[derive(Debug, Default)]
struct Stream {
    received: BytesMut,
    end: Option<Result<(), Failure>>,
    caller: Option<Waker>,
}

/// Opens a connection and waits for the server's settings, which limit the number of streams.
pub(crate) async fn connect(authority: &str) -> Result<(Http2Client, Driver), Failure> {
    let socket = TcpStream::connect(authority).await?;
    socket.set_nodelay(true)?;
    let mut out = BytesMut::from(PREFACE);
    // Settings: no push, and the initial window of streams.
    put_frame_header(&mut out, 12, SETTINGS, 0, 0);
    out.put_u16(2);
    out.put_u32(0);
    out.put_u16(4);
    out.put_u32(WINDOW);
    put_frame_header(&mut out, 4, WINDOW_UPDATE, 0, 0);
    out.put_u32(WINDOW - DEFAULT_WINDOW);
    let client = Http2Client(Rc::new(RefCell::new(State {
        authority: Bytes::copy_from_slice(authority.as_bytes()),
        out,
        driver: None,
        streams: HashMap::new(),
        next_id: 1,
        encoder: Encoder::new(TABLE),
        decoder: Decoder::new(),
        max_streams: None,
        window: DEFAULT_WINDOW.into(),
        blocked: VecDeque::new(),
        unacknowledged: 0,
        unfinished: None,
        over: None,
        driver_ended: false,
    })));
    let mut driver = Driver { socket, received: BytesMut::new(), client: client.clone() };
    poll_fn(|context| {
        let ended = Pin::new(&mut driver).poll(context);
        let state = client.0.borrow();
        match (state.max_streams, &state.over, ended) {
            (_, Some(failure), _) => Poll::Ready(Err(failure.clone())),
            (Some(_), ..) => Poll::Ready(Ok(())),
            (None, None, _) => Poll::Pending,
        }
    })
    .await?;
    Ok((client, driver))
}

impl Http2Client {
    /// Returns whether no further call can be made.
    pub(crate) fn is_over(&self) -> bool {
        self.0.borrow().over.is_some()
    }

    /// Returns how many streams the server allows now.
    pub(crate) fn max_streams(&self) -> usize {
        let state = self.0.borrow();
        if state.over.is_some() { 0 } else { state.max_streams.unwrap_or(0) }
    }

    /// Calls a method with one message.
    pub(crate) fn call(&self, path: &'static str, body: &Bytes) -> Result<Call, Failure> {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        if let Some(failure) = &state.over {
            return Err(failure.clone());
        }
        let id = state.next_id;
        state.next_id += 2;
        let head_at = state.out.len();
        put_frame_header(&mut state.out, 0, HEADERS, END_HEADERS, id);
        state.encoder.request(path, &state.authority, &mut state.out);
        let length = (state.out.len() - head_at - FRAME_HEADER) as u32;
        state.out[head_at..head_at + 3].copy_from_slice(&length.to_be_bytes()[1..]);
        state.blocked.push_back((id, body.clone()));
        state.send_blocked();
        state.streams.insert(id, Stream::default());
        Ok(Call { client: self.clone(), id })
    }
}

impl Call {
    /// Returns the next message, or `None` at the end of a successful call.
    pub(crate) async fn message(&mut self) -> Result<Option<Bytes>, Failure> {
        poll_fn(|context| {
            let mut state = self.stream();
            let stream = state.streams.entry(self.id).or_default();
            if let Some(message) = wire::take_message(&mut stream.received)? {
                return Poll::Ready(Ok(Some(message)));
            }
            if let Some(end) = &stream.end {
                return Poll::Ready(end.clone().map(|()| None));
            }
            stream.caller = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn stream(&self) -> RefMut<'_, State> {
        self.client.0.borrow_mut()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.stream();
        let stream = state.streams.remove(&self.id);
        if !state.driver_ended && stream.is_some_and(|stream| stream.end.is_none()) {
            state.blocked.retain(|(id, _)| *id != self.id);
            put_frame_header(&mut state.out, 4, RST_STREAM, 0, self.id);
            state.out.put_u32(CANCEL);
            state.wake_driver();
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let failure = match self.work(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) => Failure::Connection("closed by the server".to_owned()),
            Poll::Ready(Err(failure)) => failure,
        };
        let mut state = self.client.0.borrow_mut();
        state.driver_ended = true;
        state.over.get_or_insert(failure.clone());
        for stream in state.streams.values_mut() {
            stream.finish(Err(failure.clone()));
        }
        Poll::Ready(())
    }
}

impl Driver {
    /// Reads and handles all available frames, then writes the buffered ones.
    fn work(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut chunk = [std::mem::MaybeUninit::uninit(); MAX_FRAME];
        loop {
            let mut chunk = ReadBuf::uninit(&mut chunk);
            match Pin::new(&mut self.socket).poll_read(context, &mut chunk) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Ready(Ok(())) if chunk.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => self.received.extend_from_slice(chunk.filled()),
            }
            self.take_frames()?;
        }
        let mut state = self.client.0.borrow_mut();
        while !state.out.is_empty() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(context, &state.out))?;
            state.out.advance(written);
        }
        state.driver = Some(context.waker().clone());
        // After GOAWAY the connection is closed when its last stream has ended.
        if state.over.is_some() && state.streams.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn take_frames(&mut self) -> Result<(), Failure> {
        let mut state = self.client.0.borrow_mut();
        let mut rest = &self.received[..];
        while let Some(([a, b, c, kind, flags, id @ ..], after)) = rest.split_first_chunk::<FRAME_HEADER>() {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if length > MAX_FRAME {
                return Err(Malformed("a frame that is too long").into());
            }
            let Some((payload, after)) = after.split_at_checked(length) else { break };
            let id = u32::from_be_bytes(*id) & 0x7fff_ffff;
            state.frame(*kind, *flags, id, payload)?;
            rest = after;
        }
        let taken = self.received.len() - rest.len();
        drop(state);
        self.received.advance(taken);
        Ok(())
    }
}

impl State {
    fn frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> Result<(), Malformed> {
        match kind {
            DATA => {
                self.unacknowledged += payload.len() as u32;
                if self.unacknowledged > WINDOW / 2 {
                    put_frame_header(&mut self.out, 4, WINDOW_UPDATE, 0, 0);
                    self.out.put_u32(std::mem::take(&mut self.unacknowledged));
                }
                let payload = unpadded(flags, payload)?;
                // The stream is absent if the call was cancelled.
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.received.extend_from_slice(payload);
                    stream.wake();
                    if flags & END_STREAM != 0 {
                        stream.finish(Ok(()));
                    }
                }
            }
            HEADERS => {
                let mut block = unpadded(flags, payload)?;
                if flags & PRIORITY != 0 {
                    block = block.get(5..).ok_or(Malformed("headers that end early"))?;
                }
                if flags & END_HEADERS != 0 {
                    return self.headers(id, flags, block);
                }
                self.unfinished = Some((id, flags, block.to_vec()));
            }
            CONTINUATION => {
                let (id, first_flags, mut block) =
                    self.unfinished.take().ok_or(Malformed("headers without a beginning"))?;
                block.extend_from_slice(payload);
                if flags & END_HEADERS != 0 {
                    return self.headers(id, first_flags, &block);
                }
                self.unfinished = Some((id, first_flags, block));
            }
            RST_STREAM => {
                let code = read_u32(payload)?;
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream
                        .finish(Err(Failure::Connection(format!("stream reset by the server, code {code}"))));
                }
            }
            SETTINGS if flags & ACK == 0 => self.settings(payload)?,
            PING if flags & ACK == 0 => {
                put_frame_header(&mut self.out, payload.len(), PING, ACK, 0);
                self.out.put_slice(payload);
            }
            GOAWAY => {
                let last = read_u32(payload)? & 0x7fff_ffff;
                let failure = Failure::Connection("the server sent GOAWAY".to_owned());
                for (_, stream) in self.streams.iter_mut().filter(|(id, _)| **id > last) {
                    stream.finish(Err(failure.clone()));
                }
                self.over = Some(failure);
            }
            WINDOW_UPDATE if id == 0 => {
                self.window += i64::from(read_u32(payload)?);
                self.send_blocked();
            }
            // Ignores stream windows, because requests are smaller than the smallest window, and priorities and unknown frames.
            _ => {}
        }
        Ok(())
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        let mut max_streams = self.max_streams.unwrap_or(usize::MAX);
        for [a, b, value @ ..] in payload.as_chunks::<6>().0 {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*a, *b]) {
                // The table size can change only before the first request.
                1 if self.max_streams.is_none() => self.encoder = Encoder::new(value as usize),
                1 if (value as usize) < TABLE => return Err(Malformed("a header table that has shrunk")),
                3 => max_streams = value as usize,
                4 if value < 1024 => return Err(Malformed("a window smaller than a request")),
                _ => {}
            }
        }
        self.max_streams = Some(max_streams);
        put_frame_header(&mut self.out, 0, SETTINGS, ACK, 0);
        Ok(())
    }

    fn headers(&mut self, id: u32, flags: u8, block: &[u8]) -> Result<(), Malformed> {
        let (mut http, mut code, mut message) = (None, None, None);
        // Decoded even if the stream is gone, because later blocks depend on the table.
        self.decoder.read(block, |name, value| {
            let text = || Some(String::from_utf8_lossy(value).into_owned());
            match name {
                b":status" if value != b"200" => http = text(),
                b"grpc-status" if value != b"0" => code = text(),
                b"grpc-message" if !value.is_empty() => message = text(),
                _ => {}
            }
        })?;
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        match (http, code) {
            (Some(status), _) => stream.finish(Err(Failure::Malformed(format!("HTTP status {status}")))),
            (None, Some(code)) => {
                stream.finish(Err(Failure::Status { code, message: message.unwrap_or_default() }));
            }
            (None, None) if flags & END_STREAM != 0 => stream.finish(Ok(())),
            (None, None) => {}
        }
        Ok(())
    }

    /// Sends the messages that fit into the window.
    fn send_blocked(&mut self) {
        while let Some((id, body)) = self.blocked.pop_front_if(|(_, body)| body.len() as i64 <= self.window) {
            self.window -= body.len() as i64;
            put_frame_header(&mut self.out, body.len(), DATA, END_STREAM, id);
            self.out.put_slice(&body);
        }
        self.wake_driver();
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }
}

impl Stream {
    fn finish(&mut self, end: Result<(), Failure>) {
        self.end.get_or_insert(end);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(caller) = self.caller.take() {
            caller.wake();
        }
    }
}
