//! As much of HTTP/2 as a gRPC client of two small methods needs. `h2` takes about 1.5 times the processor time (ADR 15).
//!
//! One task per connection reads and writes. Calls put their frames into a buffer, which is written when all tasks that could
//! run have run, so that players who come together go out together.

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
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_HEAD, GOAWAY, HEADERS, PING, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, four, put_head, unpadded,
};
use crate::hpack::{Decoder, Encoder, TABLE};
use crate::wire::{self, Malformed};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// So large that no stream ever waits for us to say that we have read something.
const WINDOW: u32 = 8 << 20;
const DEFAULT_WINDOW: u32 = 65_535;
/// We never ask for more.
const LONGEST_FRAME: usize = 16_384;
/// The calling side of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Link(Rc<RefCell<State>>);

/// The working side of a connection: a future that ends with it.
#[derive(Debug)]
pub(crate) struct Driver {
    socket: TcpStream,
    received: BytesMut,
    link: Link,
}

/// A call whose request has been sent. Dropping it cancels what has not ended.
#[derive(Debug)]
pub(crate) struct Call {
    link: Link,
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
    /// Unknown until the server has said it.
    max_streams: Option<usize>,
    /// How much we may send.
    window: i64,
    /// Requests that wait until we may send more.
    blocked: VecDeque<(u32, Bytes)>,
    /// What we have received and not acknowledged.
    owed: u32,
    /// Headers that go on in the next frame.
    unfinished: Option<(u32, u8, Vec<u8>)>,
    /// Why no call can be made any more.
    over: Option<Failure>,
    /// Whether there is nobody left to write.
    gone: bool,
}

#[derive(Debug, Default)]
struct Stream {
    received: BytesMut,
    end: Option<Result<(), Failure>>,
    caller: Option<Waker>,
}

/// Opens a connection, and waits until the server has said how many streams it allows.
pub(crate) async fn connect(authority: &str) -> Result<(Link, Driver), Failure> {
    let socket = TcpStream::connect(authority).await?;
    socket.set_nodelay(true)?;
    let mut out = BytesMut::from(PREFACE);
    // No push, and the window of each stream.
    put_head(&mut out, 12, SETTINGS, 0, 0);
    out.put_u16(2);
    out.put_u32(0);
    out.put_u16(4);
    out.put_u32(WINDOW);
    put_head(&mut out, 4, WINDOW_UPDATE, 0, 0);
    out.put_u32(WINDOW - DEFAULT_WINDOW);
    let link = Link(Rc::new(RefCell::new(State {
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
        owed: 0,
        unfinished: None,
        over: None,
        gone: false,
    })));
    let mut driver = Driver { socket, received: BytesMut::new(), link: link.clone() };
    poll_fn(|context| {
        let ended = Pin::new(&mut driver).poll(context);
        let state = link.0.borrow();
        match (state.max_streams, &state.over, ended) {
            (_, Some(failure), _) => Poll::Ready(Err(failure.clone())),
            (Some(_), ..) => Poll::Ready(Ok(())),
            (None, None, _) => Poll::Pending,
        }
    })
    .await?;
    Ok((link, driver))
}

impl Link {
    /// Whether no call can be made any more.
    pub(crate) fn is_over(&self) -> bool {
        self.0.borrow().over.is_some()
    }

    /// How many streams the server allows now.
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
        put_head(&mut state.out, 0, HEADERS, END_HEADERS, id);
        state.encoder.request(path, &state.authority, &mut state.out);
        let length = (state.out.len() - head_at - FRAME_HEAD) as u32;
        state.out[head_at..head_at + 3].copy_from_slice(&length.to_be_bytes()[1..]);
        state.blocked.push_back((id, body.clone()));
        state.send_blocked();
        state.streams.insert(id, Stream::default());
        Ok(Call { link: self.clone(), id })
    }
}

impl Call {
    /// The next message; `None` after the last one of a call that ended well.
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
        self.link.0.borrow_mut()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.stream();
        let stream = state.streams.remove(&self.id);
        if !state.gone && stream.is_some_and(|stream| stream.end.is_none()) {
            state.blocked.retain(|(id, _)| *id != self.id);
            put_head(&mut state.out, 4, RST_STREAM, 0, self.id);
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
        let mut state = self.link.0.borrow_mut();
        state.gone = true;
        state.over.get_or_insert(failure.clone());
        for stream in state.streams.values_mut() {
            stream.finish(Err(failure.clone()));
        }
        Poll::Ready(())
    }
}

impl Driver {
    /// Reads what there is, then writes what there is to be said.
    fn work(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut chunk = [std::mem::MaybeUninit::uninit(); LONGEST_FRAME];
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
        let mut state = self.link.0.borrow_mut();
        while !state.out.is_empty() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(context, &state.out))?;
            state.out.advance(written);
        }
        state.driver = Some(context.waker().clone());
        // After the server has said goodbye, whoever looks last closes the door.
        if state.over.is_some() && state.streams.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn take_frames(&mut self) -> Result<(), Failure> {
        let mut state = self.link.0.borrow_mut();
        let mut rest = &self.received[..];
        while let Some(([a, b, c, kind, flags, id @ ..], after)) = rest.split_first_chunk::<FRAME_HEAD>() {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if length > LONGEST_FRAME {
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
                self.owed += payload.len() as u32;
                if self.owed > WINDOW / 2 {
                    put_head(&mut self.out, 4, WINDOW_UPDATE, 0, 0);
                    self.out.put_u32(std::mem::take(&mut self.owed));
                }
                let payload = unpadded(flags, payload)?;
                // Whoever has cancelled does not want it any more.
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
                let code = four(payload)?;
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream
                        .finish(Err(Failure::Connection(format!("stream reset by the server, code {code}"))));
                }
            }
            SETTINGS if flags & ACK == 0 => self.settings(payload)?,
            PING if flags & ACK == 0 => {
                put_head(&mut self.out, payload.len(), PING, ACK, 0);
                self.out.put_slice(payload);
            }
            GOAWAY => {
                let last = four(payload)? & 0x7fff_ffff;
                let failure = Failure::Connection("the server said goodbye".to_owned());
                for (_, stream) in self.streams.iter_mut().filter(|(id, _)| **id > last) {
                    stream.finish(Err(failure.clone()));
                }
                self.over = Some(failure);
            }
            WINDOW_UPDATE if id == 0 => {
                self.window += i64::from(four(payload)?);
                self.send_blocked();
            }
            // Windows of streams: our requests are smaller than the smallest. Priorities, and what we do not know.
            _ => {}
        }
        Ok(())
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        let mut max_streams = self.max_streams.unwrap_or(usize::MAX);
        for [a, b, value @ ..] in payload.as_chunks::<6>().0 {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*a, *b]) {
                // Before the first request, or it would be too late to change our mind.
                1 if self.max_streams.is_none() => self.encoder = Encoder::new(value as usize),
                1 if (value as usize) < TABLE => return Err(Malformed("a header table that has shrunk")),
                3 => max_streams = value as usize,
                4 if value < 1024 => return Err(Malformed("a window that no request fits into")),
                _ => {}
            }
        }
        self.max_streams = Some(max_streams);
        put_head(&mut self.out, 0, SETTINGS, ACK, 0);
        Ok(())
    }

    fn headers(&mut self, id: u32, flags: u8, block: &[u8]) -> Result<(), Malformed> {
        let (mut http, mut code, mut message) = (None, None, None);
        // Read in any case: what comes next may build upon it.
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
            put_head(&mut self.out, body.len(), DATA, END_STREAM, id);
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
