//! A build of the command without TLS to Kafka, by hand: `cargo test -p inbox-cli --features kafka --test it tls::kafka`.

use crate::support::Place;

#[test]
fn a_client_without_tls_says_so() {
    let from = "kafka://u:S3cret@localhost:1/?topic=t&group=g&rejected=stop&sasl=plain&tls=true";
    let output = Place::new().inbox(&["receive", "--from", from]).exits(1);
    assert!(!output.stderr.contains("S3cret"), "{output:?}");
    output.complains("TLS needs a build with it (the feature `tls`, of the command `kafka-tls`)");
}
