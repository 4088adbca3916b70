//! What a user sees of a broker whose certificate is trusted, and of one whose certificate is not.

use std::{
    fs::File,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use inbox::receiver::{Envelope, Publisher};
use nix::sys::signal::Signal;
use tokio::runtime::Runtime;

use super::certificates::{Certificates, NAME};
use crate::support::{Output, Place, signal, wait_for};

/// How long the command may take until it says why it receives nothing.
const SOON: Duration = Duration::from_secs(30);

/// How the command is told whom to trust.
#[derive(Clone, Copy)]
pub(super) enum Trust {
    /// As everything on the machine is, here by the environment.
    System,
    /// In the URL.
    Url,
}

/// A broker with a port for TLS and one without.
pub(super) struct Broker<'a> {
    pub(super) certificates: &'a Certificates,
    pub(super) trust: Trust,
    pub(super) tls_port: u16,
    pub(super) plain_port: u16,
    /// What the command says of a port without TLS.
    pub(super) without_tls: &'a str,
    /// What stands before the host, if the broker asks for a password.
    pub(super) credentials: &'a str,
    /// The URL for `--from`, given what stands between `://` and the path.
    pub(super) from: &'a dyn Fn(&str) -> String,
    /// Sends a message with this id, and says whether the broker has it.
    pub(super) send: &'a dyn Fn(&str) -> bool,
}

impl Broker<'_> {
    /// What is behind a certificate that is trusted is received once, and behind another one not at all.
    pub(super) fn is_received_from_if_it_is_trusted(&self) {
        let (authority, other) = (
            self.certificates.authority(),
            self.certificates.other_authority(),
        );
        let place = Place::new();
        let child = self.start_trusting(&place, self.trust);
        // Where it declares a queue, there is one only now.
        wait_for("a place for messages", || (self.send)("first"));
        let output = receive_until("first", child, &place);
        assert_eq!(output.json()[0]["accepted"], 1, "{output:?}");
        assert!((self.send)("second"));

        self.is_refused(NAME, self.tls_port, &other, "certificate");
        self.is_refused("127.0.0.1", self.tls_port, &authority, " name");
        self.is_refused(NAME, self.plain_port, &authority, self.without_tls);

        let child = self.start_trusting(&place, Trust::System);
        let output = receive_until("second", child, &place);
        assert_eq!(output.json()[0]["received"], 1, "{output:?}");
    }

    /// Nothing is received. The command says why by this word, and no password, and tries again until it is told to end.
    fn is_refused(&self, host: &str, port: u16, authority: &str, word: &str) {
        let place = Place::new();
        let server = format!("app:S3cret@{host}:{port}");
        let child = self.start(&place, &server, authority, self.trust);
        let started = Instant::now();
        let said = || place.read("stderr");
        while !said().contains("source unavailable; retrying") {
            assert!(started.elapsed() < SOON, "it said only {:?}", said());
            thread::sleep(Duration::from_millis(20));
        }
        let output = end(child, &place).complains(word);
        assert!(!output.stderr.contains("S3cret"), "{output:?}");
        assert_eq!(output.json()[0]["received"], 0, "{output:?}");
    }

    fn start_trusting(&self, place: &Place, trust: Trust) -> Child {
        let server = format!("{}{NAME}:{}", self.credentials, self.tls_port);
        self.start(place, &server, &self.certificates.authority(), trust)
    }

    fn start(&self, place: &Place, server: &str, authority: &str, trust: Trust) -> Child {
        let mut from = (self.from)(server);
        if let Trust::Url = trust {
            from.push_str(&format!("&tls_ca_file={authority}"));
        }
        let mut command = place.command(&["receive", "--json", "--from", &from]);
        if let Trust::System = trust {
            command
                .env("SSL_CERT_FILE", authority)
                .env_remove("SSL_CERT_DIR");
        }
        let file = |name| File::create(place.path(name)).unwrap();
        let command = command.stdout(file("stdout")).stderr(file("stderr"));
        command.spawn().unwrap()
    }
}

/// Waits until the message is stored, and ends the command.
fn receive_until(id: &str, child: Child, place: &Place) -> Output {
    wait_for(id, || {
        place.inbox(&["show", &format!("default/{id}")]).code == Some(0)
    });
    end(child, place)
}

/// Ends the command as a supervisor does, and in order.
#[track_caller]
fn end(mut child: Child, place: &Place) -> Output {
    signal(&child, Signal::SIGTERM);
    wait_for("the end", || child.try_wait().unwrap().is_some());
    let output = Output {
        code: child.wait().unwrap().code(),
        stdout: place.read("stdout"),
        stderr: place.read("stderr"),
    };
    output.exits(0)
}

/// Publishes a message with this id to `address`, and says whether the broker has it.
pub(super) fn publish(
    runtime: &Runtime,
    publisher: &impl Publisher,
    address: &str,
    id: &str,
) -> bool {
    let mut message = Envelope::new(address, "{}");
    message.id = Some(id.to_owned());
    let answers = runtime.block_on(publisher.publish(&[message]));
    answers.iter().all(Result::is_ok)
}
