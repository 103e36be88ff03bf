//! HTTP/2 clients that keep their window closed, cancel their requests, or send endless heads.

use std::sync::atomic::AtomicUsize;

use testkit::raw_http2::{Frame, FrameKind, MAX_CONCURRENT_STREAMS, RawHttp2};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;

const SOON: Duration = Duration::from_millis(500);
/// A window that is never used up.
const WIDE: u32 = 1 << 30;
const SMALL: usize = 300;
const LARGE: usize = 256 * 1024;
/// Error codes of HTTP/2.
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

fn router() -> Router {
    let chunk = || Ok::<_, io::Error>(Bytes::from(vec![b'x'; 16 * 1024]));
    Router::new()
        .route("/small", get(async || "x".repeat(SMALL)))
        .route("/large", get(async || "x".repeat(LARGE)))
        .route("/stuck", get(std::future::pending::<&'static str>))
        .route("/endless", get(async move || Body::from_stream(stream::repeat_with(chunk))))
}

async fn connect(listener: &TestListener, window: u32) -> RawHttp2 {
    RawHttp2::over(listener.connect(1).await, window).await.unwrap()
}

/// Returns the first frame that is `wanted`, or none if the connection ends first.
async fn until(client: &mut RawHttp2, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
    timeout(PATIENCE, client.until(wanted)).await.expect("a frame or the end").unwrap_or_default()
}

/// Reads a response to its end. Returns the length of its body.
async fn read_response(client: &mut RawHttp2, stream: u32) -> usize {
    let mut length = 0;
    loop {
        let frame = until(client, |frame| frame.stream == stream).await.expect("a response");
        assert_ne!(frame.kind, FrameKind::Reset, "after {length} bytes");
        length += if frame.kind == FrameKind::Data { frame.payload.len() } else { 0 };
        if frame.is_last() {
            return length;
        }
    }
}

#[tokio::test]
async fn stream_with_a_closed_window_is_reset_without_affecting_others() {
    let listener = TestListener::start(Limits { write_timeout: SOON, ..LIMITS }, router()).await;
    // With a window of one byte, part of the response is sent and the rest waits just the same.
    for (window, path) in [(0, "/small"), (1, "/small"), (0, "/large"), (1, "/large"), (1, "/endless")] {
        let mut client = connect(&listener, window).await;
        let started = Instant::now();
        client.send(Frame::get(1, path, &[])).await.unwrap();
        let reset = until(&mut client, |frame| frame.kind == FrameKind::Reset).await.expect("a reset");
        assert_eq!((reset.stream, reset.code()), (1, Some(CANCEL)), "{path} with {window}");
        assert!(started.elapsed() >= SOON, "{path} with {window}: {:?}", started.elapsed());
        client.send_all([Frame::get(3, "/small", &[]), Frame::window(3, WIDE)]).await.unwrap();
        assert_eq!(read_response(&mut client, 3).await, SMALL);
    }
    assert!(
        listener.has_metric("playhouse_http_streams_reset_total{listener=\"test\"} 5"),
        "{}",
        listener.metrics.encode()
    );
}

#[tokio::test]
async fn single_bytes_of_window_do_not_keep_a_response_alive() {
    let listener = TestListener::start(Limits { write_timeout: 2 * SOON, ..LIMITS }, router()).await;
    let mut client = connect(&listener, 0).await;
    client.send(Frame::get(1, "/small", &[])).await.unwrap();
    let started = Instant::now();
    let reset = loop {
        client.send(Frame::window(1, 1)).await.unwrap();
        let wanted = |frame: &Frame| frame.kind == FrameKind::Reset;
        if let Ok(frame) = timeout(SOON / 5, client.until(wanted)).await {
            break frame.unwrap().expect("a reset");
        }
        assert!(started.elapsed() < PATIENCE, "the stream is kept alive");
    };
    assert_eq!(reset.stream, 1);
}

#[tokio::test]
async fn slow_client_receives_everything() {
    const PIECE: u32 = 16 * 1024;
    let listener = TestListener::start(Limits { write_timeout: 2 * SOON, ..LIMITS }, router()).await;
    let mut client = connect(&listener, 0).await;
    client.send(Frame::get(1, "/large", &[])).await.unwrap();
    let (mut length, started) = (0, Instant::now());
    while length < LARGE {
        tokio::time::sleep(SOON / 4).await;
        client.send_all([Frame::window(0, PIECE), Frame::window(1, PIECE)]).await.unwrap();
        let data = until(&mut client, |frame| matches!(frame.kind, FrameKind::Data | FrameKind::Reset))
            .await
            .unwrap();
        assert_eq!(data.kind, FrameKind::Data, "after {length} bytes and {:?}", started.elapsed());
        length += data.payload.len();
    }
    assert!(started.elapsed() > 2 * SOON && length == LARGE, "{length}");
    assert!(listener.has_metric("playhouse_http_streams_reset_total{listener=\"test\"} 0"));
}

#[tokio::test]
async fn body_is_polled_while_the_window_is_closed() {
    let (sender, receiver) = mpsc::channel::<&'static str>(1);
    let receiver = std::sync::Mutex::new(Some(receiver));
    let events = Arc::new(move || {
        let mut receiver = receiver.lock().unwrap().take().unwrap();
        Body::from_stream(stream::poll_fn(move |context| receiver.poll_recv(context)).map(Ok::<_, io::Error>))
    });
    let listener =
        TestListener::start(LIMITS, Router::new().route("/events", get(async move || events()))).await;
    let mut client = connect(&listener, 0).await;
    client.send(Frame::get(1, "/events", &[])).await.unwrap();
    until(&mut client, Frame::is_ok).await.expect("the head of the response");
    for _ in 0..10 {
        timeout(SOON * 4, sender.send("data: x\n\n")).await.expect("the body is polled").unwrap();
    }
    drop(sender);
    client.send(Frame::window(1, WIDE)).await.unwrap();
    assert_eq!(read_response(&mut client, 1).await, 10 * "data: x\n\n".len());
}

#[tokio::test]
async fn little_is_read_ahead_for_a_client_that_does_not_read() {
    const CHUNK: usize = 1024;
    let read = Arc::new(AtomicUsize::new(0));
    let counted = read.clone();
    let endless = move || {
        let counted = counted.clone();
        Body::from_stream(stream::repeat_with(move || {
            counted.fetch_add(CHUNK, Ordering::Relaxed);
            Ok::<_, io::Error>(Bytes::from(vec![b'x'; CHUNK]))
        }))
    };
    let listener = TestListener::start(
        Limits { write_timeout: SOON, ..LIMITS },
        Router::new().route("/endless", get(async move || endless())),
    )
    .await;
    let mut client = connect(&listener, 1).await;
    client.send(Frame::get(1, "/endless", &[])).await.unwrap();
    until(&mut client, |frame| frame.kind == FrameKind::Reset).await.expect("a reset");
    assert!(read.load(Ordering::Relaxed) <= 64 * 1024, "{read:?}");
}

#[tokio::test]
async fn connection_with_a_full_socket_is_closed() {
    let listener = TestListener::start(Limits { write_timeout: SOON, ..LIMITS }, router()).await;
    let mut client = connect(&listener, WIDE).await;
    client.send_all([Frame::window(0, WIDE), Frame::get(1, "/endless", &[])]).await.unwrap();
    listener.until_metric("playhouse_http_connections_cut_total{listener=\"test\"} 1").await;
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn requests_reset_at_once_end_the_connection() {
    let listener = TestListener::start(LIMITS, router()).await;
    let mut client = connect(&listener, WIDE).await;
    let streams = (0..200).map(|number| 2 * number + 1);
    client
        .send_all(streams.flat_map(|stream| [Frame::get(stream, "/stuck", &[]), Frame::reset(stream)]))
        .await
        .unwrap();
    let end = until(&mut client, |frame| frame.kind == FrameKind::GoAway).await.expect("the reason");
    assert_eq!(end.code(), Some(ENHANCE_YOUR_CALM));
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn requests_reset_after_they_started_end_the_connection() {
    let listener = TestListener::start(LIMITS, router()).await;
    let mut client = connect(&listener, WIDE).await;
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 1").await;
    for number in 0..1_000 {
        let stream = 2 * number + 1;
        let sent = client.send(Frame::get(stream, "/stuck", &[])).await;
        // The handler runs before the request is reset.
        let entered = "http_server_active_requests{listener=\"test\"} 1";
        let closed = "playhouse_http_connections{listener=\"test\"} 0";
        eventually("the handler or the end", PATIENCE, || async {
            listener.has_metric(entered) || listener.has_metric(closed)
        })
        .await;
        if sent.is_err() || client.send(Frame::reset(stream)).await.is_err() || listener.has_metric(closed) {
            break;
        }
        listener.until_metric("http_server_active_requests{listener=\"test\"} 0").await;
    }
    let end = until(&mut client, |frame| frame.kind == FrameKind::GoAway).await;
    assert_eq!(end.expect("the reason").code(), Some(ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn client_that_cancels_some_requests_is_served() {
    let listener = TestListener::start(LIMITS, router()).await;
    let mut client = connect(&listener, WIDE).await;
    for number in 0..200 {
        let (stuck, first, second) = (6 * number + 1, 6 * number + 3, 6 * number + 5);
        let requests = [(stuck, "/stuck"), (first, "/small"), (second, "/small")];
        client.send_all(requests.map(|(stream, path)| Frame::get(stream, path, &[]))).await.unwrap();
        for answered in [first, second] {
            assert_eq!(read_response(&mut client, answered).await, SMALL, "round {number}");
        }
        client.send_all([Frame::reset(stuck), Frame::window(0, 2 * SMALL as u32)]).await.unwrap();
    }
}

#[tokio::test]
async fn endless_head_ends_the_connection() {
    let listener = TestListener::start(LIMITS, router()).await;
    for headers in [&[("a", "b")][..], &[]] {
        let mut client = connect(&listener, WIDE).await;
        client.send(Frame::open_get(1, "/small")).await.unwrap();
        let mut sent = 0;
        while sent < 100_000 && client.send(Frame::continuation(1, headers)).await.is_ok() {
            sent += 1;
            if sent % 100 == 0 && listener.has_metric("playhouse_http_connections{listener=\"test\"} 0") {
                break;
            }
        }
        assert!(sent < 100_000, "the size of the head is not limited");
        listener.until_metric("playhouse_http_connections{listener=\"test\"} 0").await;
    }
}

#[tokio::test]
async fn requests_beyond_the_connection_limit_are_refused() {
    let listener = TestListener::start(Limits { max_streams: 10, ..LIMITS }, router()).await;
    let mut client = connect(&listener, WIDE).await;
    let settings = until(&mut client, |frame| frame.kind == FrameKind::Settings).await.unwrap();
    assert_eq!(settings.setting(MAX_CONCURRENT_STREAMS), Some(10));
    let streams = (0..11).map(|number| 2 * number + 1);
    client.send_all(streams.map(|stream| Frame::get(stream, "/stuck", &[]))).await.unwrap();
    let refused = until(&mut client, |frame| frame.kind == FrameKind::Reset).await.unwrap();
    assert_eq!((refused.stream, refused.code()), (21, Some(REFUSED_STREAM)));
    listener.until_metric("http_server_active_requests{listener=\"test\"} 10").await;
}
