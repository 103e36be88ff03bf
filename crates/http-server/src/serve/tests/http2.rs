//! HTTP/2 clients that open no window, take back what they asked for, or send heads without an end.

use std::sync::atomic::AtomicUsize;

use testkit::raw_http2::{Frame, Kind, MAX_CONCURRENT_STREAMS, RawHttp2};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;

const SOON: Duration = Duration::from_millis(500);
/// So large a window is never used up.
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

async fn connect(world: &World, window: u32) -> RawHttp2 {
    RawHttp2::over(world.connect(1).await, window).await.unwrap()
}

/// Returns the first frame that is wanted; nothing if the connection ends before.
async fn until(client: &mut RawHttp2, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
    timeout(PATIENCE, client.until(wanted)).await.expect("a frame or the end").unwrap_or_default()
}

/// Reads an answer to its end; returns how long its body is.
async fn read_answer(client: &mut RawHttp2, stream: u32) -> usize {
    let mut length = 0;
    loop {
        let frame = until(client, |frame| frame.stream == stream).await.expect("an answer");
        assert_ne!(frame.kind, Kind::Reset, "after {length} bytes");
        length += if frame.kind == Kind::Data { frame.payload.len() } else { 0 };
        if frame.is_last() {
            return length;
        }
    }
}

#[tokio::test]
async fn a_stream_whose_window_stays_shut_is_reset_and_the_others_go_on() {
    let world = World::start(Limits { write_timeout: SOON, ..LIMITS }, router()).await;
    // With a window of one byte a part of the answer leaves, and the rest waits in the same way.
    for (window, path) in [(0, "/small"), (1, "/small"), (0, "/large"), (1, "/large"), (1, "/endless")] {
        let mut client = connect(&world, window).await;
        let asked = Instant::now();
        client.send(Frame::get(1, path, &[])).await.unwrap();
        let reset = until(&mut client, |frame| frame.kind == Kind::Reset).await.expect("a reset");
        assert_eq!((reset.stream, reset.code()), (1, Some(CANCEL)), "{path} with {window}");
        assert!(asked.elapsed() >= SOON, "{path} with {window}: {:?}", asked.elapsed());
        client.send_all([Frame::get(3, "/small", &[]), Frame::window(3, WIDE)]).await.unwrap();
        assert_eq!(read_answer(&mut client, 3).await, SMALL);
    }
    assert!(
        world.has("playhouse_http_streams_reset_total{listener=\"test\"} 5"),
        "{}",
        world.metrics.encode()
    );
}

#[tokio::test]
async fn a_byte_now_and_then_does_not_keep_an_answer_alive() {
    let world = World::start(Limits { write_timeout: 2 * SOON, ..LIMITS }, router()).await;
    let mut client = connect(&world, 0).await;
    client.send(Frame::get(1, "/small", &[])).await.unwrap();
    let asked = Instant::now();
    let reset = loop {
        client.send(Frame::window(1, 1)).await.unwrap();
        let wanted = |frame: &Frame| frame.kind == Kind::Reset;
        if let Ok(frame) = timeout(SOON / 5, client.until(wanted)).await {
            break frame.unwrap().expect("a reset");
        }
        assert!(asked.elapsed() < PATIENCE, "it is kept alive");
    };
    assert_eq!(reset.stream, 1);
}

#[tokio::test]
async fn a_client_that_takes_its_time_gets_everything() {
    const PIECE: u32 = 16 * 1024;
    let world = World::start(Limits { write_timeout: 2 * SOON, ..LIMITS }, router()).await;
    let mut client = connect(&world, 0).await;
    client.send(Frame::get(1, "/large", &[])).await.unwrap();
    let (mut length, asked) = (0, Instant::now());
    while length < LARGE {
        tokio::time::sleep(SOON / 4).await;
        client.send_all([Frame::window(0, PIECE), Frame::window(1, PIECE)]).await.unwrap();
        let data = until(&mut client, |frame| matches!(frame.kind, Kind::Data | Kind::Reset)).await.unwrap();
        assert_eq!(data.kind, Kind::Data, "after {length} bytes and {:?}", asked.elapsed());
        length += data.payload.len();
    }
    assert!(asked.elapsed() > 2 * SOON && length == LARGE, "{length}");
    assert!(world.has("playhouse_http_streams_reset_total{listener=\"test\"} 0"));
}

#[tokio::test]
async fn a_source_is_listened_to_though_the_window_is_shut() {
    let (tell, hear) = mpsc::channel::<&'static str>(1);
    let hear = std::sync::Mutex::new(Some(hear));
    let events = Arc::new(move || {
        let mut hear = hear.lock().unwrap().take().unwrap();
        Body::from_stream(stream::poll_fn(move |context| hear.poll_recv(context)).map(Ok::<_, io::Error>))
    });
    let world = World::start(LIMITS, Router::new().route("/events", get(async move || events()))).await;
    let mut client = connect(&world, 0).await;
    client.send(Frame::get(1, "/events", &[])).await.unwrap();
    until(&mut client, Frame::is_ok).await.expect("the head of the answer");
    for _ in 0..10 {
        timeout(SOON * 4, tell.send("data: x\n\n")).await.expect("the body is asked for more").unwrap();
    }
    drop(tell);
    client.send(Frame::window(1, WIDE)).await.unwrap();
    assert_eq!(read_answer(&mut client, 1).await, 10 * "data: x\n\n".len());
}

#[tokio::test]
async fn little_is_read_ahead_for_a_client_that_takes_nothing() {
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
    let world = World::start(
        Limits { write_timeout: SOON, ..LIMITS },
        Router::new().route("/endless", get(async move || endless())),
    )
    .await;
    let mut client = connect(&world, 1).await;
    client.send(Frame::get(1, "/endless", &[])).await.unwrap();
    until(&mut client, |frame| frame.kind == Kind::Reset).await.expect("a reset");
    assert!(read.load(Ordering::Relaxed) <= 64 * 1024, "{read:?}");
}

#[tokio::test]
async fn a_connection_whose_socket_takes_nothing_is_closed() {
    let world = World::start(Limits { write_timeout: SOON, ..LIMITS }, router()).await;
    let mut client = connect(&world, WIDE).await;
    client.send_all([Frame::window(0, WIDE), Frame::get(1, "/endless", &[])]).await.unwrap();
    world.until("playhouse_http_connections_cut_total{listener=\"test\"} 1").await;
    world.until("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn requests_that_are_taken_back_at_once_end_the_connection() {
    let world = World::start(LIMITS, router()).await;
    let mut client = connect(&world, WIDE).await;
    let streams = (0..200).map(|number| 2 * number + 1);
    client
        .send_all(streams.flat_map(|stream| [Frame::get(stream, "/stuck", &[]), Frame::reset(stream)]))
        .await
        .unwrap();
    let end = until(&mut client, |frame| frame.kind == Kind::GoAway).await.expect("the reason");
    assert_eq!(end.code(), Some(ENHANCE_YOUR_CALM));
    world.until("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn requests_that_are_taken_back_one_by_one_end_the_connection_too() {
    let world = World::start(LIMITS, router()).await;
    let mut client = connect(&world, WIDE).await;
    world.until("playhouse_http_connections{listener=\"test\"} 1").await;
    for number in 0..1_000 {
        let stream = 2 * number + 1;
        let sent = client.send(Frame::get(stream, "/stuck", &[])).await;
        // Its handler is at work before it is taken back.
        let entered = "http_server_active_requests{listener=\"test\"} 1";
        let closed = "playhouse_http_connections{listener=\"test\"} 0";
        eventually("the handler or the end", PATIENCE, || async { world.has(entered) || world.has(closed) })
            .await;
        if sent.is_err() || client.send(Frame::reset(stream)).await.is_err() || world.has(closed) {
            break;
        }
        world.until("http_server_active_requests{listener=\"test\"} 0").await;
    }
    let end = until(&mut client, |frame| frame.kind == Kind::GoAway).await;
    assert_eq!(end.expect("the reason").code(), Some(ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn a_client_that_takes_back_some_of_its_requests_is_served() {
    let world = World::start(LIMITS, router()).await;
    let mut client = connect(&world, WIDE).await;
    for number in 0..200 {
        let (stuck, first, second) = (6 * number + 1, 6 * number + 3, 6 * number + 5);
        let requests = [(stuck, "/stuck"), (first, "/small"), (second, "/small")];
        client.send_all(requests.map(|(stream, path)| Frame::get(stream, path, &[]))).await.unwrap();
        for answered in [first, second] {
            assert_eq!(read_answer(&mut client, answered).await, SMALL, "round {number}");
        }
        client.send_all([Frame::reset(stuck), Frame::window(0, 2 * SMALL as u32)]).await.unwrap();
    }
}

#[tokio::test]
async fn a_head_without_an_end_ends_the_connection() {
    let world = World::start(LIMITS, router()).await;
    for headers in [&[("a", "b")][..], &[]] {
        let mut client = connect(&world, WIDE).await;
        client.send(Frame::open_get(1, "/small")).await.unwrap();
        let mut sent = 0;
        while sent < 100_000 && client.send(Frame::continuation(1, headers)).await.is_ok() {
            sent += 1;
            if sent % 100 == 0 && world.has("playhouse_http_connections{listener=\"test\"} 0") {
                break;
            }
        }
        assert!(sent < 100_000, "the head may be without end");
        world.until("playhouse_http_connections{listener=\"test\"} 0").await;
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_of_a_connection_are_refused() {
    let world = World::start(Limits { max_streams: 10, ..LIMITS }, router()).await;
    let mut client = connect(&world, WIDE).await;
    let settings = until(&mut client, |frame| frame.kind == Kind::Settings).await.unwrap();
    assert_eq!(settings.setting(MAX_CONCURRENT_STREAMS), Some(10));
    let streams = (0..11).map(|number| 2 * number + 1);
    client.send_all(streams.map(|stream| Frame::get(stream, "/stuck", &[]))).await.unwrap();
    let refused = until(&mut client, |frame| frame.kind == Kind::Reset).await.unwrap();
    assert_eq!((refused.stream, refused.code()), (21, Some(REFUSED_STREAM)));
    world.until("http_server_active_requests{listener=\"test\"} 10").await;
}
