//! The webhooks of the demo: one receiver that is well, and one that was removed and can be enabled again.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::config::Layers;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use uuid::Uuid;

/// The names of the webhook destinations.
pub(super) const ANALYTICS: &str = "demo-analytics";
pub(super) const PARTNER: &str = "demo-partner";

/// A listener on loopback that answers webhooks. The first request to the partner gets 410 Gone, so the destination is disabled. Later
/// ones succeed, so an operator can enable it and recover what was missed.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: TcpListener,
    address: SocketAddr,
}

impl Receiver {
    pub(crate) fn bind() -> std::io::Result<Self> {
        let socket = TcpListener::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        Ok(Self { address: socket.local_addr()?, socket })
    }

    /// Adds the destinations to the settings. They take the place of the configuration file, which `dev` does not read: flags cannot name
    /// tables.
    pub(crate) fn add_to(&self, layers: Layers) -> Layers {
        let table = |name: &str| {
            let url = format!("http://{}/{name}", self.address);
            // Secrets are base64, and so are 64 hexadecimal digits. The receiver does not verify them.
            let secret = format!("whsec_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
            format!(
                "[notification.webhooks.{name}]\nurl = \"{url}\"\nsecrets = [\"{secret}\"]\n\
                 allow_networks = [\"127.0.0.0/8\"]\n"
            )
        };
        layers.with_file_text(Path::new("--demo"), &[ANALYTICS, PARTNER].map(table).concat())
    }

    /// Answers until the process stops.
    pub(crate) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let was_gone = Arc::new(AtomicBool::new(false));
        let partner = move || {
            let status =
                if was_gone.swap(true, Ordering::Relaxed) { StatusCode::OK } else { StatusCode::GONE };
            std::future::ready(status)
        };
        let routes = Router::new()
            .route(&format!("/{ANALYTICS}"), post(async || StatusCode::OK))
            .route(&format!("/{PARTNER}"), post(partner));
        let socket = tokio::net::TcpListener::from_std(self.socket.try_clone()?)?;
        axum::serve(socket, routes).with_graceful_shutdown(async move { drain.requested().await }).await?;
        Ok(())
    }
}
