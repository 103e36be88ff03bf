//! The reference: the same hops with bare clients. Commit a row, publish with acknowledgement, receive, commit a row, write to a socket.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{self, stream};
use futures::StreamExt;
use sqlx::mysql::MySqlConnection;
use sqlx::{Connection, Executor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fleet::Fleet;

/// About the size of an event and of an inbox row.
const PAYLOAD: usize = 500;

pub(crate) struct Bare {
    sql: MySqlConnection,
    jetstream: jetstream::Context,
    messages: pull::Stream,
    near: TcpStream,
    far: TcpStream,
}

impl Bare {
    /// Connects to the servers of the product.
    pub(crate) async fn open(fleet: &Fleet) -> Self {
        let mut sql = MySqlConnection::connect(fleet.database.url()).await.unwrap();
        let table =
            "CREATE TABLE IF NOT EXISTS bare (id BIGINT PRIMARY KEY AUTO_INCREMENT, data VARBINARY(2000))";
        sql.execute(table).await.unwrap();
        let client = async_nats::connect(fleet.nats.url()).await.unwrap();
        let jetstream = jetstream::new(client);
        let config = stream::Config {
            name: "BARE".to_owned(),
            subjects: vec!["bare.>".to_owned()],
            ..stream::Config::default()
        };
        let stream = jetstream.get_or_create_stream(config).await.unwrap();
        let consumer = pull::Config { durable_name: Some("bare".to_owned()), ..pull::Config::default() };
        let messages = stream.create_consumer(consumer).await.unwrap().messages().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        near.set_nodelay(true).unwrap();
        Self { sql, jetstream, messages, near, far }
    }

    /// Runs all hops once. Returns the duration of the first commit and the total.
    pub(crate) async fn run(&mut self) -> (Duration, Duration) {
        let payload = vec![b'x'; PAYLOAD];
        let began = Instant::now();
        self.commit(&payload).await;
        let committed = began.elapsed();
        let published = self.jetstream.publish("bare.event", payload.clone().into()).await.unwrap();
        published.await.unwrap();
        let message = self.messages.next().await.unwrap().unwrap();
        self.commit(&payload).await;
        self.near.write_all(&payload).await.unwrap();
        let mut read = vec![0; PAYLOAD];
        self.far.read_exact(&mut read).await.unwrap();
        let took = began.elapsed();
        message.double_ack().await.unwrap();
        (committed, took)
    }

    async fn commit(&mut self, payload: &[u8]) {
        sqlx::query("INSERT INTO bare (data) VALUES (?)").bind(payload).execute(&mut self.sql).await.unwrap();
    }
}
