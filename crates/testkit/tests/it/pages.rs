//! A web server with a few pages that records its requests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The server. It ends with the runtime of the test.
pub(crate) struct Pages {
    pub(crate) addr: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Pages {
    /// Serves pages by path: a status line with headers, an empty line, and the body.
    pub(crate) async fn serve(pages: &[(&str, &str)]) -> Self {
        let pages: HashMap<String, String> =
            pages.iter().map(|(path, page)| ((*path).to_owned(), (*page).to_owned())).collect();
        let pages = Arc::new(pages);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, requests) =
            (listener.local_addr().unwrap(), Arc::<Mutex<Vec<RecordedRequest>>>::default());
        let log = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(respond(client, Arc::clone(&pages), Arc::clone(&log)));
            }
        });
        Self { addr, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub(crate) fn requests(&self, path: &str) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().iter().filter(|request| request.path == path).cloned().collect()
    }
}

async fn respond(
    client: TcpStream,
    pages: Arc<HashMap<String, String>>,
    log: Arc<Mutex<Vec<RecordedRequest>>>,
) {
    let mut client = BufReader::new(client);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if client.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let mut first = head[0].split(' ');
    let (method, target) = (first.next().unwrap().to_owned(), first.next().unwrap());
    let path = target.split('?').next().unwrap().to_owned();
    let headers: HashMap<String, String> = head[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    client.read_exact(&mut body).await.unwrap();
    let body = String::from_utf8(body).unwrap();
    let page = pages.get(&path).cloned().unwrap_or_else(|| "404 Not Found\r\n\r\nnothing here".to_owned());
    log.lock().unwrap().push(RecordedRequest { method, path, headers, body });
    let _ = client.write_all(format!("HTTP/1.1 {page}").as_bytes()).await;
    let _ = client.shutdown().await;
}
