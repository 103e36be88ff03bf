//! Checks that Lua scripts access only the keys that they declare.
//!
//! A proxy forwards the commands of clients to Redis. Each of its connections has a separate Redis user. Before each script the
//! proxy restricts that user to the keys in the call's `KEYS`, so Redis itself refuses every other key.
//!
//! A script may learn ids while it runs. It then declares the stem of such keys, and its header says so: `KEYS[2] stem of …`.
//! Keys that consist of the stem and a learned id, which the test describes by a pattern, are allowed too.

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

/// The texts of all scripts that passed any proxy of this process, by hash. A server shares scripts among its clients, so one proxy
/// may see the script and another the call.
static TEXTS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// A proxy to Redis that limits scripts to the keys that they declare. Dropping it stops it.
#[derive(Debug)]
pub struct DeclaredKeysProxy {
    addr: SocketAddr,
    log: Arc<KeyLog>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct KeyLog {
    server: String,
    /// A glob pattern for the ids that scripts learn.
    learned: String,
    /// The texts of the scripts that were run.
    run: Mutex<BTreeSet<String>>,
    refused: Mutex<BTreeSet<String>>,
}

impl DeclaredKeysProxy {
    /// Starts a proxy to this server, which must be a local one. `learned` is a glob pattern for the ids that scripts append to stems.
    ///
    /// # Panics
    /// If no port or thread is available.
    pub async fn start(redis: &Redis, learned: &str) -> Self {
        let log = Arc::new(KeyLog {
            server: redis.url(),
            learned: learned.to_owned(),
            run: Mutex::default(),
            refused: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let (serving, target) = (Arc::clone(&log), redis.addr());
        // On a separate thread, like the fault proxy, so that it does not depend on the runtime of a test.
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
        Self { addr, log, stop: Some(stop), thread }
    }

    /// Returns the address that the proxy listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the URL of the proxy: `redis://…`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Returns the keys that scripts accessed without declaring them, including refusals that the script ignored.
    pub fn undeclared_keys(&self) -> Vec<String> {
        lock(&self.log.refused).iter().cloned().collect()
    }

    /// Asserts that no script accessed a key that it does not declare.
    ///
    /// # Panics
    /// If one did.
    pub fn assert_no_undeclared_keys(&self) {
        assert_eq!(
            self.undeclared_keys(),
            [] as [&str; 0],
            "scripts accessed keys that are not in their KEYS"
        );
    }

    /// Asserts that every script of this folder was run through the proxy.
    ///
    /// # Panics
    /// If one was not, or if the folder cannot be read.
    pub fn assert_all_scripts_run(&self, folder: &Path) {
        let run = lock(&self.log.run);
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

impl Drop for DeclaredKeysProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, log: Arc<KeyLog>) {
    while let Ok((client, _)) = listener.accept().await {
        let log = Arc::clone(&log);
        tokio::spawn(async move {
            // Each connection has its own user, so that connections do not change each other's restrictions.
            let user = unique();
            if let Ok(admin) = sign_in(&log.server).await {
                let connection = Connection { admin, user, log, is_restricted: false };
                // An error here means that the client disconnected.
                let _ = connection.run(client, target).await;
            }
        });
    }
}

/// Connects as the default user, without a timeout: the client has its own, and the machine may be busy.
async fn sign_in(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

struct Connection {
    admin: MultiplexedConnection,
    user: String,
    log: Arc<KeyLog>,
    /// Whether the user is restricted to some keys.
    is_restricted: bool,
}

impl Connection {
    async fn run(mut self, mut client: TcpStream, target: SocketAddr) -> io::Result<()> {
        let rules = ["on", &format!(">{PASSWORD}"), "allchannels", "allkeys", "+@all"].map(str::to_owned);
        self.allow(&rules).await?;
        let mut server = TcpStream::connect(target).await?;
        let (mut received, mut reply) = (Vec::new(), Vec::new());
        let auth = ["AUTH", &self.user, PASSWORD].map(|word| format!("${}\r\n{word}\r\n", word.len()));
        server.write_all(format!("*3\r\n{}", auth.concat()).as_bytes()).await?;
        read_frame(&mut server, &mut reply).await?;
        loop {
            let frame = read_frame(&mut client, &mut received).await?;
            let words = frame::command(&frame);
            let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
            if name.ends_with(b"SUBSCRIBE") {
                // From here on the server pushes messages, and the client runs no script.
                server.write_all(&frame).await?;
                server.write_all(&received).await?;
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
                Some(text) => self.restrict_to(text, &words[2..]).await?,
                None => self.lift_restriction().await?,
            }
            server.write_all(&frame).await?;
            let answer = read_frame(&mut server, &mut reply).await?;
            // Before the client gets its response and asks the proxy for refused keys.
            if is_script {
                self.record_refusals().await?;
            }
            client.write_all(&answer).await?;
        }
    }

    /// Restricts the user to the keys of a call. `rest` is the number of keys, the keys and the arguments.
    async fn restrict_to(&mut self, text: String, rest: &[&[u8]]) -> io::Result<()> {
        let [count, keys @ ..] = rest else { return self.lift_restriction().await };
        let count = String::from_utf8_lossy(count).parse().unwrap_or(0);
        let mut rules = vec!["resetkeys".to_owned()];
        for (at, key) in keys.iter().take(count).enumerate() {
            let key = literal(key);
            if text.contains(&format!("KEYS[{}] stem of", at + 1)) {
                rules.push(format!("~{key}{}", self.log.learned));
            }
            rules.push(format!("~{key}"));
        }
        lock(&self.log.run).insert(text);
        self.is_restricted = true;
        self.allow(&rules).await
    }

    async fn lift_restriction(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_restricted) {
            self.allow(&["allkeys".to_owned()]).await
        } else {
            Ok(())
        }
    }

    async fn allow(&mut self, rules: &[String]) -> io::Result<()> {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(&self.user).arg(rules);
        command.exec_async(&mut self.admin).await.map_err(io::Error::other)
    }

    /// Records the refusals that Redis logged, including those that a script caught.
    async fn record_refusals(&mut self) -> io::Result<()> {
        let log = redis::cmd("ACL").arg("LOG").query_async(&mut self.admin).await;
        let log: Vec<HashMap<String, redis::Value>> = log.map_err(io::Error::other)?;
        let text = |value: Option<&redis::Value>| {
            value.and_then(|value| redis::from_redis_value_ref::<String>(value).ok()).unwrap_or_default()
        };
        let ours = log.iter().filter(|entry| text(entry.get("username")) == self.user);
        lock(&self.log.refused).extend(ours.map(|entry| text(entry.get("object"))));
        Ok(())
    }
}

/// Reads one frame. Bytes after it stay in the buffer.
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

/// Returns the glob pattern that matches this key. ACL rules cannot contain spaces, so `?` stands for them.
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
