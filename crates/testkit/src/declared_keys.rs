//! Whether Lua scripts touch only the keys that they declare.
//!
//! A proxy stands between a client and a Redis. It is signed in as a user of its own on the server. Before each script it allows
//! that user the keys in the call's `KEYS` and nothing else, so Redis itself refuses every other key.
//!
//! A script may learn ids while it runs. It then declares the stem of such keys, and its header says so: `KEYS[2] stem of …`.
//! Keys that begin with the stem and end with what the test calls a learned id are allowed too.

mod frame;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::Redis;
use crate::unique::unique;

const PASSWORD: &str = "declared";

/// The texts of all scripts that went through any proxy of this process, by their hash. A server keeps a script for every client,
/// so the proxy that sees a call need not be the one that saw the script.
static TEXTS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// A proxy to a Redis whose scripts reach the keys that they declare and no others.
#[derive(Debug)]
pub struct DeclaredKeys {
    addr: SocketAddr,
    seen: Arc<Seen>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Seen {
    server: String,
    /// What ids look like that scripts learn, as a glob pattern.
    learned: String,
    /// The texts of the scripts that were run.
    run: Mutex<BTreeSet<String>>,
    refused: Mutex<BTreeSet<String>>,
}

impl DeclaredKeys {
    /// Starts a proxy to this server, which is one of ours. `learned` is a glob pattern for the ids that scripts append to stems.
    ///
    /// # Panics
    /// When it cannot have a port or a thread.
    pub async fn of(redis: &Redis, learned: &str) -> Self {
        let seen = Arc::new(Seen {
            server: redis.url(),
            learned: learned.to_owned(),
            run: Mutex::default(),
            refused: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let (serving, target) = (Arc::clone(&seen), redis.addr());
        // A thread of its own, like the fault proxy: it depends on no test's runtime.
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port can be bound");
                let _ = ready.send(listener.local_addr().expect("a listener has an address"));
                tokio::select! {
                    _ = stopped => {}
                    () = serve(listener, target, serving) => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("declared-keys".to_owned()).spawn(work);
        let thread = Some(thread.expect("a thread can be started"));
        let addr = is_ready.await.expect("the proxy starts");
        Self { addr, seen, stop: Some(stop), thread }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://…` of the proxy.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Returns the keys that scripts touched without declaring them, also where the script went on after the refusal.
    pub fn undeclared(&self) -> Vec<String> {
        lock(&self.seen.refused).iter().cloned().collect()
    }

    /// Checks that no script touched a key that it does not declare.
    ///
    /// # Panics
    /// When one did.
    pub fn assert_none_undeclared(&self) {
        assert_eq!(self.undeclared(), [] as [&str; 0], "scripts touched keys that are not in their KEYS");
    }

    /// Checks that every script of this folder was run through the proxy.
    ///
    /// # Panics
    /// When one was not, or the folder cannot be read.
    pub fn assert_all_run(&self, folder: &Path) {
        let run = lock(&self.seen.run);
        let mut files = 0;
        for entry in std::fs::read_dir(folder).expect("a folder of scripts") {
            let path = entry.expect("a file").path();
            if path.extension().is_some_and(|extension| extension == "lua") {
                let text = std::fs::read_to_string(&path).expect("a script");
                assert!(run.iter().any(|run| run.ends_with(&text)), "{} was not run", path.display());
                files += 1;
            }
        }
        assert!(files > 0, "{} has no scripts", folder.display());
    }
}

impl Drop for DeclaredKeys {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, seen: Arc<Seen>) {
    while let Ok((client, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            // Each connection has its own user: what one may reach says nothing of the others.
            let user = unique();
            if let Ok(admin) = sign_in(&seen.server).await {
                let connection = Connection { admin, user, seen, is_confined: false };
                // A client that has left is no failure.
                let _ = connection.run(client, target).await;
            }
        });
    }
}

/// Connects as the default user. It waits as long as it takes: the client has its own timeout, and the machine may be busy.
async fn sign_in(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await
}

struct Connection {
    admin: MultiplexedConnection,
    user: String,
    seen: Arc<Seen>,
    /// Whether the user is confined to some keys.
    is_confined: bool,
}

impl Connection {
    async fn run(mut self, mut client: TcpStream, target: SocketAddr) -> io::Result<()> {
        let rules = ["on", &format!(">{PASSWORD}"), "allchannels", "allkeys", "+@all"].map(str::to_owned);
        self.allow(&rules).await?;
        let mut server = TcpStream::connect(target).await?;
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        let auth = ["AUTH", &self.user, PASSWORD].map(|word| format!("${}\r\n{word}\r\n", word.len()));
        server.write_all(format!("*3\r\n{}", auth.concat()).as_bytes()).await?;
        read_frame(&mut server, &mut answered).await?;
        loop {
            let frame = read_frame(&mut client, &mut asked).await?;
            let words = frame::command(&frame);
            let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
            if name.ends_with(b"SUBSCRIBE") {
                // From here on the server speaks unasked, and no script is run.
                server.write_all(&frame).await?;
                server.write_all(&asked).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await?;
                return Ok(());
            }
            if name == b"SCRIPT"
                && let [_, _, text] = words[..]
            {
                let text = String::from_utf8_lossy(text);
                lock(&TEXTS).insert(redis::Script::new(&text).get_hash().to_owned(), text.into_owned());
            }
            let text = match (&name[..], words.get(1)) {
                (b"EVALSHA", Some(hash)) => lock(&TEXTS).get(&*String::from_utf8_lossy(hash)).cloned(),
                (b"EVAL", Some(text)) => Some(String::from_utf8_lossy(text).into_owned()),
                _ => None,
            };
            let is_script = text.is_some();
            match text {
                Some(text) => self.confine(text, &words[2..]).await?,
                None => self.set_free().await?,
            }
            server.write_all(&frame).await?;
            let answer = read_frame(&mut server, &mut answered).await?;
            // Before the client has its answer, and asks the proxy what was refused.
            if is_script {
                self.look_for_refusals().await?;
            }
            client.write_all(&answer).await?;
        }
    }

    /// Confines the user to the keys of a call: `rest` is their number, the keys and the arguments.
    async fn confine(&mut self, text: String, rest: &[&[u8]]) -> io::Result<()> {
        let [count, keys @ ..] = rest else { return self.set_free().await };
        let count = String::from_utf8_lossy(count).parse().unwrap_or(0);
        let mut rules = vec!["resetkeys".to_owned()];
        for (at, key) in keys.iter().take(count).enumerate() {
            let key = literal(key);
            if text.contains(&format!("KEYS[{}] stem of", at + 1)) {
                rules.push(format!("~{key}{}", self.seen.learned));
            }
            rules.push(format!("~{key}"));
        }
        lock(&self.seen.run).insert(text);
        self.is_confined = true;
        self.allow(&rules).await
    }

    async fn set_free(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_confined) { self.allow(&["allkeys".to_owned()]).await } else { Ok(()) }
    }

    async fn allow(&mut self, rules: &[String]) -> io::Result<()> {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(&self.user).arg(rules);
        command.exec_async(&mut self.admin).await.map_err(io::Error::other)
    }

    /// Reads the refusals that Redis logged, those that a script caught included.
    async fn look_for_refusals(&mut self) -> io::Result<()> {
        let log = redis::cmd("ACL").arg("LOG").query_async(&mut self.admin).await;
        let log: Vec<HashMap<String, redis::Value>> = log.map_err(io::Error::other)?;
        let text = |value: Option<&redis::Value>| {
            value.and_then(|value| redis::from_redis_value_ref::<String>(value).ok()).unwrap_or_default()
        };
        let ours = log.iter().filter(|entry| text(entry.get("username")) == self.user);
        lock(&self.seen.refused).extend(ours.map(|entry| text(entry.get("object"))));
        Ok(())
    }
}

/// Reads one frame. What came after it stays in the buffer.
async fn read_frame(from: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    loop {
        if let Some(length) = frame::length(buffer) {
            let rest = buffer.split_off(length);
            return Ok(std::mem::replace(buffer, rest));
        }
        buffer.reserve(1 << 16);
        if from.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Returns the glob pattern that matches this key. Rules have no spaces.
fn literal(key: &[u8]) -> String {
    let mut pattern = String::new();
    for character in String::from_utf8_lossy(key).chars() {
        match character {
            '*' | '?' | '[' | ']' | '\\' => pattern.extend(['\\', character]),
            character if character.is_whitespace() => pattern.push('?'),
            character => pattern.push(character),
        }
    }
    pattern
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
