//! The fault proxy, tested with a real client and, where bytes are counted, with a plain socket.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use testkit::{ByteCounts, FaultProxy, Redis, eventually, need};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::{DEADLINE, SILENCE};

/// Starts an echo server behind a proxy.
async fn echo() -> FaultProxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = FaultProxy::to(listener.local_addr().unwrap()).await;
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = socket.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    proxy
}

async fn connect(proxy: &FaultProxy) -> TcpStream {
    TcpStream::connect(proxy.addr()).await.unwrap()
}

/// Sends bytes and expects them back.
async fn round_trip(socket: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    socket.write_all(bytes).await?;
    let mut back = vec![0; bytes.len()];
    socket.read_exact(&mut back).await?;
    assert_eq!(back, bytes);
    Ok(())
}

async fn is_silent(socket: &mut TcpStream) -> bool {
    timeout(SILENCE, socket.read_u8()).await.is_err()
}

async fn redis_through(proxy: &FaultProxy, redis: &Redis) -> redis::RedisResult<MultiplexedConnection> {
    // Without the client's own timeout, because the tests measure silence.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(proxy.url(&redis.url()))?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn ping(connection: &mut MultiplexedConnection) -> redis::RedisResult<()> {
    redis::cmd("PING").exec_async(connection).await
}

#[tokio::test]
async fn proxy_forwards_bytes_and_counts_them() {
    let proxy = echo().await;
    assert_eq!((proxy.connections(), proxy.bytes()), (0, ByteCounts::default()));
    let mut socket = connect(&proxy).await;
    round_trip(&mut socket, b"hello").await.unwrap();
    assert_eq!(proxy.connections(), 1);
    assert_eq!(proxy.bytes(), ByteCounts { to_server: 5, to_client: 5 });

    // More than all buffers hold, in both directions at once.
    let many: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let (mut from, mut to) = socket.into_split();
    let sent = many.clone();
    let sending = tokio::spawn(async move {
        to.write_all(&sent).await.unwrap();
        // One direction ends while the other still has bytes in flight.
        to.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    timeout(DEADLINE, from.read_to_end(&mut back)).await.unwrap().unwrap();
    sending.await.unwrap();
    assert!(back == many);
    eventually("the end of the connection", DEADLINE, || async { proxy.connections() == 0 }).await;
    assert_eq!(proxy.bytes(), ByteCounts { to_server: 3_000_005, to_client: 3_000_005 });
}

#[tokio::test]
async fn cut_resets_and_refuses_until_pass() {
    let proxy = echo().await;
    let mut socket = connect(&proxy).await;
    round_trip(&mut socket, b"hello").await.unwrap();

    proxy.cut().await;
    assert_eq!(proxy.connections(), 0);
    assert_eq!(socket.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let refused = TcpStream::connect(proxy.addr()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    proxy.cut().await;

    proxy.pass().await;
    round_trip(&mut connect(&proxy).await, b"hello").await.unwrap();
}

#[tokio::test]
async fn cut_works_while_all_buffers_are_full() {
    let proxy = echo().await;
    let mut socket = connect(&proxy).await;
    // The responses are not read, so all buffers fill up.
    let flood = vec![7; 1 << 20];
    while timeout(SILENCE, socket.write_all(&flood)).await.is_ok() {}
    timeout(DEADLINE, proxy.cut()).await.unwrap();
    assert_eq!(proxy.connections(), 0);
}

#[tokio::test]
async fn delay_is_added_to_each_direction() {
    let proxy = echo().await;
    let mut socket = connect(&proxy).await;
    proxy.delay(Duration::from_millis(100)).await;
    let started = Instant::now();
    round_trip(&mut socket, b"hello").await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(200), "{:?}", started.elapsed());

    // Bytes sent together arrive together: the delay is latency, not lower throughput.
    let started = Instant::now();
    for _ in 0..20 {
        socket.write_all(&[7; 1000]).await.unwrap();
        tokio::task::yield_now().await;
    }
    socket.read_exact(&mut [0; 20_000]).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());

    // Bytes in flight do not wait for a delay that was removed.
    proxy.delay(Duration::from_secs(3600)).await;
    socket.write_all(b"x").await.unwrap();
    assert!(is_silent(&mut socket).await);
    proxy.pass().await;
    assert_eq!(timeout(DEADLINE, socket.read_u8()).await.unwrap().unwrap(), b'x');
}

#[tokio::test]
async fn bandwidth_is_limited() {
    let proxy = echo().await;
    let mut socket = connect(&proxy).await;
    proxy.bandwidth(100_000).await;
    let started = Instant::now();
    round_trip(&mut socket, &[7; 50_000]).await.unwrap();
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(450), "{took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");

    proxy.pass().await;
    let started = Instant::now();
    round_trip(&mut socket, &[7; 50_000]).await.unwrap();
    assert!(started.elapsed() < took, "{:?}", started.elapsed());
}

#[tokio::test]
async fn half_open_connections_stay_and_are_silent() {
    let proxy = echo().await;
    let mut idle = connect(&proxy).await;
    let mut busy = connect(&proxy).await;
    for socket in [&mut idle, &mut busy] {
        round_trip(socket, b"hello").await.unwrap();
    }
    let before = proxy.bytes();
    proxy.half_open().await;
    busy.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut busy).await);
    let mut new = connect(&proxy).await;
    new.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut new).await);
    // The server does not learn that a client is gone, not even by a reset.
    let mut gone = connect(&proxy).await;
    gone.write_all(b"lost").await.unwrap();
    gone.set_zero_linger().unwrap();
    drop(gone);
    eventually("all connections", DEADLINE, || async { proxy.connections() == 4 }).await;
    assert!(is_silent(&mut busy).await);
    assert_eq!((proxy.connections(), proxy.bytes()), (4, before));

    proxy.pass().await;
    // Connections that lost bytes are reset; the others continue.
    assert_eq!(proxy.connections(), 1);
    for socket in [&mut busy, &mut new] {
        assert_eq!(socket.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    round_trip(&mut idle, b"hello").await.unwrap();
}

#[tokio::test]
async fn half_open_drops_bytes_in_flight() {
    let proxy = echo().await;
    let mut socket = connect(&proxy).await;
    proxy.delay(Duration::from_secs(3600)).await;
    socket.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut socket).await);
    proxy.half_open().await;
    proxy.pass().await;
    assert_eq!(socket.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn missing_server_is_a_reset_or_in_half_open_mode_silence() {
    let proxy = FaultProxy::to("127.0.0.1:1".parse().unwrap()).await;
    // The reset may arrive before the client's connect has returned.
    let read = async { TcpStream::connect(proxy.addr()).await?.read_u8().await };
    assert!(read.await.is_err());
    proxy.half_open().await;
    let mut socket = connect(&proxy).await;
    assert!(is_silent(&mut socket).await);
    proxy.pass().await;
    assert!(socket.read_u8().await.is_err());
}

#[tokio::test]
async fn dropping_the_proxy_closes_everything() {
    let proxy = echo().await;
    let mut socket = connect(&proxy).await;
    round_trip(&mut socket, b"hello").await.unwrap();
    let address = proxy.addr();
    drop(proxy);
    assert!(matches!(socket.read(&mut [0]).await, Ok(0) | Err(_)));
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn real_client_sees_the_faults() {
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let mut connection = redis_through(&proxy, &redis).await.unwrap();
    ping(&mut connection).await.unwrap();

    proxy.delay(Duration::from_millis(50)).await;
    let started = Instant::now();
    ping(&mut connection).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(100));

    proxy.half_open().await;
    assert!(timeout(SILENCE, ping(&mut connection)).await.is_err());
    proxy.pass().await;
    assert!(ping(&mut connection).await.is_err());

    let mut connection = redis_through(&proxy, &redis).await.unwrap();
    ping(&mut connection).await.unwrap();
    proxy.cut().await;
    assert!(ping(&mut connection).await.is_err());
    assert!(redis_through(&proxy, &redis).await.is_err());

    proxy.pass().await;
    let again = || async { ping(&mut redis_through(&proxy, &redis).await?).await };
    eventually("an answer", DEADLINE, again).await;
}
