//! The TLS proxy.

use testkit::{Browser, TlsProxy, need};
use tokio::net::TcpStream;

use crate::pages::Pages;

const PAGE: &str = "200 OK\r\ncontent-type: text/html\r\n\
    set-cookie: __Host-session=1; Path=/; Secure; HttpOnly; SameSite=Lax\r\n\r\n\
    <link rel=icon href='data:,'><h1>Hello</h1>";

#[tokio::test]
async fn browsers_accept_host_cookies_only_over_tls() {
    let site = Pages::serve(&[("/", PAGE)]).await;
    let tls = need!(TlsProxy::to(site.addr).await);
    // Under another host name, because browsers treat loopback as secure.
    let rule = "--host-resolver-rules=MAP plain.test 127.0.0.1";
    let browser = need!(Browser::builder().accept_any_certificate().arg(rule).start().await);
    browser.goto(format!("http://plain.test:{}/", site.addr.port())).await;
    assert_eq!(browser.text("h1").await, "Hello");
    assert_eq!(browser.cookies().await, []);

    browser.goto(tls.url()).await;
    let cookies = browser.cookies().await;
    assert_eq!(cookies.len(), 1, "{cookies:?}");
    let cookie = &cookies[0];
    assert_eq!((cookie.name.as_str(), cookie.same_site.as_str()), ("__Host-session", "Lax"));
    assert!(cookie.secure && cookie.http_only, "{cookie:?}");
    browser.reload().await;
    let sent = site.requests("/").pop().unwrap();
    assert_eq!(sent.headers["cookie"], "__Host-session=1");
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
}

#[tokio::test]
async fn self_signed_certificate_is_refused_by_default() {
    let site = Pages::serve(&[("/", PAGE)]).await;
    let tls = need!(TlsProxy::to(site.addr).await);
    let browser = need!(Browser::start().await);
    let url = tls.url();
    let task = tokio::spawn(async move { browser.goto(url).await });
    let panic = task.await.unwrap_err().into_panic();
    let text = panic.downcast::<String>().unwrap();
    assert!(text.contains("CERT"), "{text}");
    assert!(site.requests("/").is_empty());
}

#[tokio::test]
async fn client_can_trust_the_certificate() {
    let site = Pages::serve(&[("/", PAGE)]).await;
    let tls = need!(TlsProxy::to(site.addr).await);
    let certificate = reqwest::Certificate::from_pem(tls.certificate().as_bytes()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([certificate]).no_proxy().build().unwrap();
    let answer = client.get(tls.url()).send().await.unwrap();
    assert!(answer.text().await.unwrap().contains("Hello"));

    let addr = tls.addr();
    drop(tls);
    assert!(TcpStream::connect(addr).await.is_err());
}
