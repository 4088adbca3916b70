//! Why no connection can be made.

use super::*;

use crate::common;

async fn cannot_connect(url: &str) -> String {
    let url = common::with(url, "serverSelectionTimeoutMS=1000");
    let url = url.replacen("://", "://app:secret@", 1);
    let options = MongoOptions::from_url(&url).unwrap();
    let error = MongoStore::connect(options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), inbox_api::Effect::None);
    assert!(!format!("{error:?}").contains("secret"));
    error.context().to_owned()
}

#[tokio::test]
async fn why_no_server_can_be_used_is_told() {
    let refused = cannot_connect("mongodb://127.0.0.1:9/").await;
    assert!(
        refused.contains("127.0.0.1:9: Connection refused"),
        "{refused}"
    );
    let nameless = cannot_connect("mongodb://nowhere.invalid/").await;
    assert!(
        nameless.contains("nowhere.invalid:27017: failed to lookup"),
        "{nameless}"
    );
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let silence = cannot_connect(&format!("mongodb://{address}/")).await;
    assert!(
        silence.contains(&format!("{address} has not answered")),
        "{silence}"
    );
}

#[tokio::test]
async fn why_a_server_cannot_be_used_is_told() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    if place.url.contains('?') || common::replicates(&place.url).await {
        println!("NOT CHECKED: the shared server is not a plain standalone server");
        return;
    }
    let tls = cannot_connect(&format!("{}?tls=true", place.url)).await;
    assert!(
        tls.contains("tls right?") || tls.contains("speak TLS"),
        "{tls}"
    );
    let set = cannot_connect(&format!("{}?replicaSet=rs0", place.url)).await;
    assert!(set.contains("a member of the replica set rs0"), "{set}");
}

#[tokio::test]
async fn tls_files_that_cannot_be_read_are_named() {
    for (setting, named) in [
        ("tlsCAFile", "/nowhere.pem"),
        ("tlsCertificateKeyFile", "tlsCertificateKeyFile"),
    ] {
        let url = format!("mongodb://127.0.0.1:9/?{setting}=/nowhere.pem");
        let options = MongoOptions::from_url(&url).unwrap();
        let error = MongoStore::connect(options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.context().contains(named), "{error}");
        assert!(error.context().contains("No such file"), "{error}");
    }
}
