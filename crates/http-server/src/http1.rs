//! A connection by HTTP/1: hyper's, until an answer stays open.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::Poll;

use ::http::header::CONNECTION;
use ::http::{HeaderValue, Request};
use axum::BoxError;
use axum::body::Body;
use axum::response::Response;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::lasting::{Handover, OpenAnswer};
use super::socket::Socket;
use super::{Limits, Served};
use runtime::lifecycle::Drain;

/// The least that hyper can be told for a head.
const LEAST_HEAD: usize = 8 * 1024;

/// Answers all requests of a connection, or until an answer stays open.
pub(super) async fn serve<S>(
    socket: TokioIo<Socket<S>>,
    served: Served,
    handover: Handover,
    limits: &Limits,
    drain: &Drain,
) -> Result<Option<OpenAnswer<Socket<S>>>, BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = Answering { served, handover: handover.clone(), drain: drain.clone() };
    let mut connection = builder(limits).serve_connection(socket, service);
    // Until then, requests on connections that rest are answered, and the answers say that there will be no more.
    let mut rested = std::pin::pin!(drain.requested_since(limits.idle_grace));
    let mut is_closing = false;
    let body = std::future::poll_fn(|context| {
        if !is_closing && rested.as_mut().poll(context).is_ready() {
            is_closing = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        match Pin::new(&mut connection).poll(context) {
            Poll::Ready(ended) => Poll::Ready(ended.map(|()| None)),
            // The head of an answer is written while hyper is polled, and at no other time.
            Poll::Pending => handover.taken().map_or(Poll::Pending, |body| Poll::Ready(Ok(Some(body)))),
        }
    });
    let Some(body) = body.await? else { return Ok(None) };
    let parts = connection.into_parts();
    Ok(Some(OpenAnswer::new(parts.io.into_inner(), body, !parts.read_buf.is_empty())))
}

fn builder(limits: &Limits) -> Builder {
    let max_head = usize::try_from(limits.max_head).unwrap_or(usize::MAX).max(LEAST_HEAD);
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(max_head);
    builder
}

/// What hyper asks for answers.
struct Answering {
    served: Served,
    handover: Handover,
    drain: Drain,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let handover = Handover::may_follow(&request).then(|| self.handover.clone());
        let (answering, drain) = (self.served.answer(request.map(Body::new)), self.drain.clone());
        Box::pin(async move {
            let mut response = answering.await;
            if drain.is_requested() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(match handover {
                Some(handover) => handover.keep(response),
                None => response,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::response::IntoResponse;
    use axum::routing::get;
    use base::Clock;
    use futures::stream;
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::{Serving, Site};
    use runtime::Metrics;

    const LIMITS: Limits = Limits {
        header_timeout: Duration::from_secs(20),
        write_timeout: Duration::from_secs(20),
        max_head: 16 * 1024,
        max_streams: 1,
        public_max_streams: 1,
        idle_grace: Duration::ZERO,
        max_connections: 1,
        max_connections_per_address: 0,
        trusted_proxies: Vec::new(),
    };

    #[tokio::test]
    async fn hyper_is_let_go_when_the_whole_head_is_written_and_not_before() {
        let events = || Body::from_stream(stream::iter([Ok::<_, Infallible>("hello")]));
        let answer = async move || ([("content-type", "text/event-stream")], events()).into_response();
        let routes = Router::new().route("/events", get(answer)).into();
        let served =
            Serving::new(Clock::system(), &Metrics::new("0")).wrap("test", Site::new([], &[]), routes);
        // The kernel has room for a part of a line.
        let (near, mut client) = duplex(16);
        let serving = tokio::spawn(async move {
            let handover = Handover::default();
            let socket = Socket::new(near, LIMITS.write_timeout, Counter::default(), handover.clone());
            let served = serve(TokioIo::new(socket), served, handover, &LIMITS, &Drain::new()).await;
            served.unwrap().expect("an answer that stays open").write().await
        });
        client.write_all(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nx-request-id: "), "{head}");
        assert_eq!(body, "5\r\nhello\r\n0\r\n\r\n");
        serving.await.unwrap().unwrap();
    }
}
