//! A fake frontend: it matches any two watchers, and can be configured to misbehave.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream, server};
use http::{HeaderMap, Request, Response};
use open_match_load::Target;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

/// How the frontend misbehaves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Behaviour {
    /// Never assigns anything.
    pub(crate) silent: bool,
    /// Answers every call with an error.
    pub(crate) refuse: bool,
    /// Assigns every ticket twice.
    pub(crate) twice: bool,
    /// Every how manyth match has two different connections; never if 0.
    pub(crate) apart_every: u64,
    /// Sends GOAWAY after this many calls on a connection; never if 0.
    pub(crate) goaway_after: u64,
    /// Streams per connection.
    pub(crate) max_streams: Option<u32>,
}

#[derive(Default)]
struct State {
    behaviour: Behaviour,
    tickets: Cell<u64>,
    matches: Cell<u64>,
    unmatched: RefCell<Option<oneshot::Sender<String>>>,
}

/// Starts the frontend on a separate thread, which lives as long as the process.
pub(crate) fn start(behaviour: Behaviour) -> Target {
    let (sender, receiver) = mpsc::channel::<SocketAddr>();
    std::thread::spawn(move || {
        let state = Rc::new(State { behaviour, ..State::default() });
        open_match_load::run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            while let Ok((socket, _)) = listener.accept().await {
                spawn_local(serve(socket, Rc::clone(&state)));
            }
        })
        .unwrap();
    });
    format!("http://{}", receiver.recv().unwrap()).parse().unwrap()
}

async fn serve(socket: TcpStream, state: Rc<State>) {
    socket.set_nodelay(true).unwrap();
    let mut builder = server::Builder::new();
    if let Some(max) = state.behaviour.max_streams {
        builder.max_concurrent_streams(max);
    }
    let mut connection = builder.handshake::<_, Bytes>(socket).await.unwrap();
    let mut calls = 0;
    while let Some(Ok((request, answer))) = connection.accept().await {
        calls += 1;
        if calls == state.behaviour.goaway_after {
            connection.graceful_shutdown();
        }
        let state = Rc::clone(&state);
        spawn_local(async move {
            // A stream that the client resets is not an error.
            let _ = handle_call(request, answer, &state).await;
        });
    }
}

async fn handle_call(
    request: Request<RecvStream>,
    mut answer: SendResponse<Bytes>,
    state: &State,
) -> Result<(), h2::Error> {
    if state.behaviour.refuse {
        let refusal = Response::builder().header("grpc-status", "14").header("grpc-message", "not now");
        answer.send_response(refusal.body(()).unwrap(), true)?;
        return Ok(());
    }
    let (head, mut body) = request.into_parts();
    let mut received = BytesMut::new();
    while let Some(data) = body.data().await {
        received.extend_from_slice(&data?);
    }
    if head.uri.path().ends_with("/CreateTicket") {
        assert_eq!(received[..], [0, 0, 0, 0, 4, 0x0a, 2, 0x22, 0]);
        let id = format!("ticket-{}", state.tickets.replace(state.tickets.get() + 1));
        let mut stream = answer.send_response(Response::new(()), false)?;
        stream.send_data(frame(&text(&id)), false)?;
        return stream.send_trailers(ok());
    }
    assert!(received[7..].starts_with(b"ticket-"));
    let opponent = state.unmatched.take();
    let connection = match opponent {
        _ if state.behaviour.silent => std::future::pending().await,
        Some(opponent) => {
            let number = state.matches.replace(state.matches.get() + 1);
            let _ = opponent.send(format!("match-{number}"));
            let apart = state.behaviour.apart_every;
            let suffix = if apart > 0 && number.is_multiple_of(apart) { "-elsewhere" } else { "" };
            format!("match-{number}{suffix}")
        }
        None => {
            let (sender, receiver) = oneshot::channel();
            state.unmatched.replace(Some(sender));
            receiver.await.unwrap()
        }
    };
    let mut stream = answer.send_response(Response::new(()), false)?;
    assign(&mut stream, &connection)?;
    if state.behaviour.twice {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assign(&mut stream, &format!("{connection}-again"))?;
    }
    let reason = std::future::poll_fn(|context| stream.poll_reset(context)).await?;
    assert_eq!(reason, Reason::CANCEL);
    Ok(())
}

fn assign(stream: &mut SendStream<Bytes>, connection: &str) -> Result<(), h2::Error> {
    let assignment = text(connection);
    let mut response = vec![0x0a, u8::try_from(assignment.len()).unwrap()];
    response.extend(assignment);
    stream.send_data(frame(&response), false)
}

/// Encodes a message whose field 1 is this text.
fn text(text: &str) -> Vec<u8> {
    [&[0x0a, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn frame(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

fn ok() -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())])
}
