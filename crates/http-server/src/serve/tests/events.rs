//! Server-sent events: responses that stay open.

use ::http::header::CONTENT_TYPE;
use futures::Stream;
use tokio::sync::mpsc;

use super::*;

const EVENTS: [(::http::HeaderName, &str); 1] = [(CONTENT_TYPE, "text/event-stream")];

fn events<S>(events: S) -> axum::response::Response
where
    S: Stream<Item = &'static str> + Send + 'static,
{
    (EVENTS, Body::from_stream(events.map(Ok::<_, io::Error>))).into_response()
}

/// Returns a route that streams events, and the sender of these events. The sender is closed when the response is dropped.
fn event_route() -> (Router, mpsc::Sender<&'static str>) {
    let (sender, receiver) = mpsc::channel(1);
    let receiver = std::sync::Mutex::new(Some(receiver));
    let stream = move || {
        let mut receiver: mpsc::Receiver<_> = receiver.lock().unwrap().take().unwrap();
        events(stream::poll_fn(move |context| receiver.poll_recv(context)))
    };
    let stream = Arc::new(stream);
    (Router::new().route("/events", get(async move || stream())), sender)
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")
}

/// Reads read_until `text` was received. Returns everything read.
async fn read_until(client: &mut TcpStream, text: &str) -> String {
    let mut all = String::new();
    while !all.contains(text) {
        let more = exchange(client, "").await;
        assert!(!more.is_empty(), "closed after {all}");
        all += &more;
    }
    all
}

#[tokio::test]
async fn events_arrive_when_sent_and_the_end_closes_the_connection() {
    let (router, sender) = event_route();
    let listener = TestListener::start(LIMITS, router).await;
    let mut client = listener.connect(1).await;
    client.write_all(request("/events").as_bytes()).await.unwrap();
    let head = read_until(&mut client, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    for line in ["transfer-encoding: chunked", "connection: close", "content-type: text/event-stream"] {
        assert!(head.lines().any(|header| header == line), "{head}");
    }
    for (event, expected) in [("data: one\n\n", "b\r\ndata: one\n\n\r\n"), (":\n\n", "3\r\n:\n\n\r\n")] {
        // An empty event must not become the empty chunk that ends the response.
        sender.send("").await.unwrap();
        sender.send(event).await.unwrap();
        assert_eq!(read_until(&mut client, expected).await, expected);
    }
    // A second request on the connection is ignored.
    client.write_all(request("/").as_bytes()).await.unwrap();
    for event in ["data: two\n\n", "data: three\n\n", "data: four\n\n"] {
        sender.send(event).await.unwrap();
        read_until(&mut client, event).await;
    }
    drop(sender);
    assert!(read_to_end(&mut client).await.ends_with(b"0\r\n\r\n"));
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn every_protocol_delivers_all_events() {
    const COUNT: usize = 10_000;
    let many = async || events(stream::iter((0..COUNT).map(|_| "data: one of many\n\n")));
    let listener = TestListener::start(LIMITS, Router::new().route("/many", get(many))).await;
    let url = format!("http://{}/many", listener.address);
    for client in [reqwest::Client::builder(), reqwest::Client::builder().http2_prior_knowledge()] {
        let client = client.build().unwrap();
        let response = client.get(&url).send().await.unwrap();
        assert_eq!(response.text().await.unwrap(), "data: one of many\n\n".repeat(COUNT));
        let response = client.head(&url).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.text().await.unwrap().as_str()), (200, ""));
    }
    let mut old = listener.connect(1).await;
    old.write_all(b"GET /many HTTP/1.0\r\n\r\n").await.unwrap();
    let response = String::from_utf8(read_to_end(&mut old).await).unwrap();
    assert!(response.ends_with(&format!("\r\n\r\n{}", "data: one of many\n\n".repeat(COUNT))), "no chunks");
}

#[tokio::test]
async fn disconnect_is_noticed_while_the_stream_is_idle() {
    let (router, sender) = event_route();
    let listener = TestListener::start(LIMITS, router).await;
    let mut client = listener.connect(1).await;
    client.write_all(request("/events").as_bytes()).await.unwrap();
    read_until(&mut client, "\r\n\r\n").await;
    drop(client);
    timeout(PATIENCE, sender.closed()).await.expect("the body is dropped");
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn client_that_does_not_read_its_events_is_disconnected() {
    let endless = async || events(stream::repeat("data: again and again and again and again\n\n"));
    let limits = Limits { write_timeout: Duration::from_millis(300), ..LIMITS };
    let listener = TestListener::start(limits, Router::new().route("/endless", get(endless))).await;
    let mut stuck = listener.connect(1).await;
    stuck.write_all(request("/endless").as_bytes()).await.unwrap();
    listener.until_metric("playhouse_http_connections_cut_total{listener=\"test\"} 1").await;
    listener.until_metric("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn stopping_listener_waits_for_the_last_event() {
    let (router, sender) = event_route();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let routes =
        Middleware::new(Clock::system(), &Metrics::new("0")).wrap("test", Site::new([], &[]), router.into());
    let drain = Drain::new();
    let serving = tokio::spawn(serve(listener, routes, LIMITS, drain.clone(), TaskTracker::new()));
    client.write_all(request("/events").as_bytes()).await.unwrap();
    read_until(&mut client, "\r\n\r\n").await;
    drain.request();
    sender.send("data: last\n\n").await.unwrap();
    read_until(&mut client, "data: last").await;
    assert!(!serving.is_finished());
    drop(sender);
    assert!(read_to_end(&mut client).await.ends_with(b"0\r\n\r\n"));
    timeout(PATIENCE, serving).await.expect("the listener stops").unwrap();
}

/// Bounds the size of a connection with an open response, besides its body. `cargo xtask bench gateway` measures the effect.
#[tokio::test]
async fn open_response_uses_little_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (stream, _) =
        tokio::join!(listener.accept(), async { TcpStream::connect(listener.local_addr().unwrap()).await });
    let (stream, peer) = stream.unwrap();
    let metrics = Metrics::new("0");
    let routes =
        Middleware::new(Clock::system(), &metrics).wrap("test", Site::new([], &[]), Router::new().into());
    let limiter = ConnectionLimiter::new(1, 0, Vec::new(), routes.connections().clone());
    let permit = limiter.admit(peer.ip()).unwrap();
    let accepted = AcceptedConnection { stream, connection: Connection::new(peer, Drain::new()), permit };
    let tasks = Tasks { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let task = tasks.until_stopped(connection(accepted, routes, Arc::new(LIMITS), tasks.clone()));
    assert!(size_of_val(&task) <= 1024, "{}", size_of_val(&task));
}
