//! HTTP/1 connections: served by hyper until a response stays open.

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

use super::open_response::{Handover, OpenResponse};
use super::socket::Socket;
use super::{Limits, ListenerRoutes};
use runtime::lifecycle::Drain;

/// The smallest head limit that hyper accepts.
const MIN_HEAD: usize = 8 * 1024;

/// Answers the requests of a connection. Returns early with a response that stays open.
pub(super) async fn serve<S>(
    socket: TokioIo<Socket<S>>,
    routes: ListenerRoutes,
    handover: Handover,
    limits: &Limits,
    drain: &Drain,
) -> Result<Option<OpenResponse<Socket<S>>>, BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = ConnectionService { routes, handover: handover.clone(), drain: drain.clone() };
    let mut connection = builder(limits).serve_connection(socket, service);
    // Until then, requests on idle connections are answered, with `Connection: close`.
    let mut idle_grace_over = std::pin::pin!(drain.requested_since(limits.idle_grace));
    let mut is_closing = false;
    let body = std::future::poll_fn(|context| {
        if !is_closing && idle_grace_over.as_mut().poll(context).is_ready() {
            is_closing = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        match Pin::new(&mut connection).poll(context) {
            Poll::Ready(ended) => Poll::Ready(ended.map(|()| None)),
            // Hyper writes the head only while it is polled.
            Poll::Pending => handover.take_body().map_or(Poll::Pending, |body| Poll::Ready(Ok(Some(body)))),
        }
    });
    let Some(body) = body.await? else { return Ok(None) };
    let parts = connection.into_parts();
    Ok(Some(OpenResponse::new(parts.io.into_inner(), body, !parts.read_buf.is_empty())))
}

fn builder(limits: &Limits) -> Builder {
    let max_head = usize::try_from(limits.max_head).unwrap_or(usize::MAX).max(MIN_HEAD);
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(max_head);
    builder
}

/// Answers the requests of one connection for hyper.
struct ConnectionService {
    routes: ListenerRoutes,
    handover: Handover,
    drain: Drain,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let handover = Handover::is_possible(&request).then(|| self.handover.clone());
        let (response, drain) = (self.routes.answer(request.map(Body::new)), self.drain.clone());
        Box::pin(async move {
            let mut response = response.await;
            if drain.is_requested() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(match handover {
                Some(handover) => handover.keep_body(response),
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
    use crate::{Middleware, Site};
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
    async fn hyper_is_dropped_only_after_the_whole_head_is_written() {
        let events = || Body::from_stream(stream::iter([Ok::<_, Infallible>("hello")]));
        let respond = async move || ([("content-type", "text/event-stream")], events()).into_response();
        let routes = Router::new().route("/events", get(respond)).into();
        let routes =
            Middleware::new(Clock::system(), &Metrics::new("0")).wrap("test", Site::new([], &[]), routes);
        // The buffer is smaller than a header line.
        let (near, mut client) = duplex(16);
        let serving = tokio::spawn(async move {
            let handover = Handover::default();
            let socket = Socket::new(near, LIMITS.write_timeout, Counter::default(), handover.clone());
            let open = serve(TokioIo::new(socket), routes, handover, &LIMITS, &Drain::new()).await;
            open.unwrap().expect("an open response").write().await
        });
        client.write_all(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        let (head, body) = response.split_once("\r\n\r\n").expect(&response);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nx-request-id: "), "{head}");
        assert_eq!(body, "5\r\nhello\r\n0\r\n\r\n");
        serving.await.unwrap().unwrap();
    }
}
