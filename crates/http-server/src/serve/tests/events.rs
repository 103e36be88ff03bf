//! Server-sent events, which stay open.

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

/// Routes with an answer of events that are sent from here; it knows when it is let go.
fn told() -> (Router, mpsc::Sender<&'static str>) {
    let (tell, hear) = mpsc::channel(1);
    let hear = std::sync::Mutex::new(Some(hear));
    let stream = move || {
        let mut hear: mpsc::Receiver<_> = hear.lock().unwrap().take().unwrap();
        events(stream::poll_fn(move |context| hear.poll_recv(context)))
    };
    let stream = Arc::new(stream);
    (Router::new().route("/events", get(async move || stream())), tell)
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")
}

/// Reads until there is this.
async fn until(client: &mut TcpStream, text: &str) -> String {
    let mut all = String::new();
    while !all.contains(text) {
        let more = ask(client, "").await;
        assert!(!more.is_empty(), "closed after {all}");
        all += &more;
    }
    all
}

#[tokio::test]
async fn events_come_when_they_happen_and_end_the_connection() {
    let (router, tell) = told();
    let world = World::start(LIMITS, router).await;
    let mut client = world.connect(1).await;
    client.write_all(request("/events").as_bytes()).await.unwrap();
    let head = until(&mut client, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    for line in ["transfer-encoding: chunked", "connection: close", "content-type: text/event-stream"] {
        assert!(head.lines().any(|said| said == line), "{head}");
    }
    for (event, expected) in [("data: one\n\n", "b\r\ndata: one\n\n\r\n"), (":\n\n", "3\r\n:\n\n\r\n")] {
        // Nothing is not the end.
        tell.send("").await.unwrap();
        tell.send(event).await.unwrap();
        assert_eq!(until(&mut client, expected).await, expected);
    }
    // What else it says is not listened to.
    client.write_all(request("/").as_bytes()).await.unwrap();
    for event in ["data: two\n\n", "data: three\n\n", "data: four\n\n"] {
        tell.send(event).await.unwrap();
        until(&mut client, event).await;
    }
    drop(tell);
    assert!(rest(&mut client).await.ends_with(b"0\r\n\r\n"));
    world.until("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn every_protocol_gets_all_events() {
    const COUNT: usize = 10_000;
    let many = async || events(stream::iter((0..COUNT).map(|_| "data: one of many\n\n")));
    let world = World::start(LIMITS, Router::new().route("/many", get(many))).await;
    let url = format!("http://{}/many", world.address);
    for client in [reqwest::Client::builder(), reqwest::Client::builder().http2_prior_knowledge()] {
        let client = client.build().unwrap();
        let answer = client.get(&url).send().await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "data: one of many\n\n".repeat(COUNT));
        let answer = client.head(&url).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (200, ""));
    }
    let mut old = world.connect(1).await;
    old.write_all(b"GET /many HTTP/1.0\r\n\r\n").await.unwrap();
    let answer = String::from_utf8(rest(&mut old).await).unwrap();
    assert!(answer.ends_with(&format!("\r\n\r\n{}", "data: one of many\n\n".repeat(COUNT))), "no chunks");
}

#[tokio::test]
async fn a_client_that_goes_is_noticed_while_nothing_happens() {
    let (router, tell) = told();
    let world = World::start(LIMITS, router).await;
    let mut client = world.connect(1).await;
    client.write_all(request("/events").as_bytes()).await.unwrap();
    until(&mut client, "\r\n\r\n").await;
    drop(client);
    timeout(PATIENCE, tell.closed()).await.expect("the body is let go");
    world.until("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn a_client_that_does_not_take_its_events_is_cut_off() {
    let endless = async || events(stream::repeat("data: again and again and again and again\n\n"));
    let limits = Limits { write_timeout: Duration::from_millis(300), ..LIMITS };
    let world = World::start(limits, Router::new().route("/endless", get(endless))).await;
    let mut stuck = world.connect(1).await;
    stuck.write_all(request("/endless").as_bytes()).await.unwrap();
    world.until("playhouse_http_connections_cut_total{listener=\"test\"} 1").await;
    world.until("playhouse_http_connections{listener=\"test\"} 0").await;
}

#[tokio::test]
async fn a_listener_that_stops_waits_for_the_last_event() {
    let (router, tell) = told();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let served =
        Serving::new(Clock::system(), &Metrics::new("0")).wrap("test", Site::new([], &[]), router.into());
    let drain = Drain::new();
    let serving = tokio::spawn(serve(listener, served, LIMITS, drain.clone(), TaskTracker::new()));
    client.write_all(request("/events").as_bytes()).await.unwrap();
    until(&mut client, "\r\n\r\n").await;
    drain.request();
    tell.send("data: last\n\n").await.unwrap();
    until(&mut client, "data: last").await;
    assert!(!serving.is_finished());
    drop(tell);
    assert!(rest(&mut client).await.ends_with(b"0\r\n\r\n"));
    timeout(PATIENCE, serving).await.expect("it stops").unwrap();
}

/// What an answer that stays open keeps beside its body. `cargo xtask bench gateway` tells what comes of it.
#[tokio::test]
async fn an_answer_that_stays_open_keeps_little() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (stream, _) =
        tokio::join!(listener.accept(), async { TcpStream::connect(listener.local_addr().unwrap()).await });
    let (stream, peer) = stream.unwrap();
    let metrics = Metrics::new("0");
    let served =
        Serving::new(Clock::system(), &metrics).wrap("test", Site::new([], &[]), Router::new().into());
    let admission = Admission::new(1, 0, Vec::new(), served.connections().clone());
    let seat = admission.admit(peer.ip()).unwrap();
    let arrival = Arrival { stream, connection: Connection::new(peer, Drain::new()), seat };
    let tasks = Tasks { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let task = tasks.until_stopped(connection(arrival, served, Arc::new(LIMITS), tasks.clone()));
    assert!(size_of_val(&task) <= 1024, "{}", size_of_val(&task));
}
