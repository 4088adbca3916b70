//! Encrypted connections.

use std::{net::TcpListener, time::Duration};

use inbox_api::{
    ErrorKind, HandlerName, Kind, Message, MessageId, Receipt, Schema, Store, StoreExt,
};
use inbox_redis::{RedisOptions, RedisStore};
use test_servers::{Kind as ServerKind, find_own, or_skip};

/// A certificate for `localhost`, signed by itself, and its key.
fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

#[tokio::test]
async fn tls_is_used_and_the_certificate_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate_pem, key_pem) = certificate();
    let (certificate_file, key_file) = (folder.path().join("cert"), folder.path().join("key"));
    std::fs::write(&certificate_file, &certificate_pem).unwrap();
    std::fs::write(&key_file, &key_pem).unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let texts = [
        "--tls-port".to_owned(),
        port.to_string(),
        "--tls-cert-file".into(),
        certificate_file.display().to_string(),
        "--tls-key-file".into(),
        key_file.display().to_string(),
        "--tls-ca-cert-file".into(),
        certificate_file.display().to_string(),
        "--tls-auth-clients".into(),
        "no".into(),
    ];
    let found = tokio::task::spawn_blocking(move || {
        let arguments: Vec<&str> = texts.iter().map(String::as_str).collect();
        find_own(ServerKind::Redis, &arguments)
    });
    let Some(server) = or_skip(ServerKind::Redis, found.await.unwrap()).unwrap() else {
        return;
    };
    let options = |host: &str, ca: &str| {
        let url = format!("rediss://{host}:{port}?operation_timeout_ms=3000");
        RedisOptions::from_url(&url)
            .unwrap()
            .tls_certificates(ca.as_bytes().to_vec())
    };
    let store = RedisStore::connect(options("localhost", &certificate_pem))
        .await
        .unwrap();
    store.create().await.unwrap();
    // Wake-ups have their own connection.
    let handler = HandlerName::new("billing").unwrap();
    let mut subscription = store
        .subscribe(std::slice::from_ref(&handler))
        .await
        .unwrap();
    let message = Message::new(
        handler,
        MessageId::new("1").unwrap(),
        Kind::new("k").unwrap(),
        "x",
    );
    assert_eq!(
        store.receive_one(&message).await.unwrap(),
        Receipt::Accepted
    );
    tokio::time::timeout(Duration::from_secs(10), subscription.woken())
        .await
        .unwrap();

    // Not with a certificate that nobody trusts, nor for another name.
    let (other, _) = certificate();
    for refused in [
        options("localhost", &other),
        options("127.0.0.1", &certificate_pem),
    ] {
        let error = RedisStore::connect(refused).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    // A port without TLS waits for the end of what it takes for a command, and says nothing.
    let plain = server.url().replacen("redis", "rediss", 1) + "?operation_timeout_ms=500";
    let plain = RedisOptions::from_url(&plain).unwrap();
    let error = RedisStore::connect(plain).await.unwrap_err();
    assert!(error.context().contains("speak TLS"), "{error}");
    drop(server);
}
