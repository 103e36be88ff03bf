//! A TLS proxy in front of a plain server, like a load balancer.
//!
//! Browsers accept cookies that are `Secure`, or whose names begin with `__Host-`, only over TLS. The proxy forwards the bytes
//! unchanged and adds no header. The program `openssl` makes a self-signed certificate for `localhost` and 127.0.0.1.
//!
//! Like [`FaultProxy`](crate::FaultProxy) it has its own thread and runtime.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::folder::Folder;
use crate::process::Launch;
use crate::{Error, cache, installed};

/// With the system's settings the certificate would be a CA certificate, which clients refuse for a server.
const OPENSSL: &str = "\
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = localhost
[extensions]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:localhost, DNS:*.localhost, IP:127.0.0.1
";

/// A TLS proxy in front of a server. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct TlsProxy {
    addr: SocketAddr,
    certificate: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TlsProxy {
    /// Starts a proxy to `target` on a free loopback port.
    pub async fn to(target: SocketAddr) -> Result<Self, Error> {
        Self::at(0, target).await
    }

    /// Starts a proxy on this port, for servers that must know their public address before they start.
    pub async fn at(port: u16, target: SocketAddr) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::failed("the TLS proxy", error);
        let making = tokio::task::spawn_blocking(make_certificate);
        let (certificate, key) = making.await.map_err(|stopped| Error::Failed(stopped.to_string()))??;
        let config = config(&certificate, &key).map_err(|why| Error::failed("the TLS proxy", why))?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(async move {
                let listener = TcpListener::from_std(listener).expect("the runtime accepts the listener");
                tokio::select! {
                    () = serve(listener, TlsAcceptor::from(Arc::new(config)), target) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("tls-proxy".to_owned()).spawn(work).map_err(failed)?;
        Ok(Self { addr, certificate, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address of the listener.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `https://localhost:…`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.addr.port())
    }

    /// Returns its certificate in PEM format, for clients that can be configured to trust it.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, target: SocketAddr) {
    let mut live = JoinSet::new();
    loop {
        tokio::select! {
            Ok((client, _)) = listener.accept() => {
                live.spawn(pass(client, acceptor.clone(), target));
            }
            Some(_) = live.join_next() => {}
        }
    }
}

async fn pass(client: TcpStream, acceptor: TlsAcceptor, target: SocketAddr) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = acceptor.accept(client).await?;
    let mut server = TcpStream::connect(target).await?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

fn config(certificate: &str, key: &str) -> Result<ServerConfig, String> {
    let certificates = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| e.to_string())?;
    // The provider is explicit, because a test binary may link two and then there is no default.
    ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder.with_no_client_auth().with_single_cert(certificates.unwrap_or_default(), key)
        })
        .map_err(|e| e.to_string())
}

/// Creates a certificate and its key. Blocks.
fn make_certificate() -> Result<(String, String), Error> {
    let failed = |error: io::Error| Error::failed("a certificate", error);
    let openssl = installed::find(&["openssl"])
        .ok_or(Error::Missing { program: "openssl", remedy: "`cargo xtask test` installs it" })?;
    let folder = Folder::fresh().map_err(failed)?;
    let (certificate, key) = (folder.path().join("certificate"), folder.path().join("key"));
    let settings = folder.path().join("settings");
    fs::write(&settings, OPENSSL).map_err(failed)?;
    let make = Launch::new(openssl)
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-config"])
        .arg(&settings)
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    cache::run("openssl", &make, &folder.path().join("log"))?;
    let read = |path| fs::read_to_string(path).map_err(failed);
    Ok((read(&certificate)?, read(&key)?))
}
