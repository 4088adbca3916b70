//! What the network and TLS say of a connection that failed, for the errors of sources and publishers.

use std::{error::Error, io, iter};

/// What rustls says, in part, and what there is to look at.
const ADVICE: [(&str, &str); 4] = [
    (
        "UnknownIssuer",
        "the authority that issued it is not trusted here",
    ),
    (
        "CaUsedAsEndEntity",
        "it is made for an authority (CA:TRUE), and no server can use it",
    ),
    // The answer is of another protocol, or the server hangs up.
    ("received corrupt message", SPEAKS_TLS),
    ("tls handshake eof", SPEAKS_TLS),
];
const SPEAKS_TLS: &str = "does the server speak TLS at this port?";

/// The words of the operating system or of TLS, if they are behind `error`, with [advice](advise). Clients hide them behind
/// words of their own, which do not tell a refused certificate from a host that is not there.
#[must_use]
pub fn reason(error: &(dyn Error + 'static)) -> Option<String> {
    let mut chain = iter::successors(Some(error), |&error| error.source());
    // The first says what those behind it say, too.
    let words = chain.find_map(|error| error.downcast_ref::<io::Error>());
    words.map(|error| advise(&error.to_string()))
}

/// `text`, and where it is what rustls says of a certificate or of a port without TLS, what there is to look at.
#[must_use]
pub fn advise(text: &str) -> String {
    let advice = ADVICE.iter().find(|(sign, _)| text.contains(sign));
    match advice {
        Some((_, advice)) => format!("{text}; {advice}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the client's own words")]
    struct Client(#[source] io::Error);

    #[test]
    fn what_the_client_hides_is_told() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let text = refused.to_string();
        assert_eq!(reason(&Client(refused)), Some(text));
        let hidden = io::Error::other("invalid peer certificate: UnknownIssuer");
        let said = reason(&Client(hidden)).unwrap();
        assert!(said.ends_with("is not trusted here"), "{said}");
        assert_eq!(reason(&std::fmt::Error), None);
    }

    #[test]
    fn a_port_without_tls_is_asked_for() {
        let said = advise("received corrupt message of type InvalidContentType");
        assert!(said.contains("speak TLS"), "{said}");
        assert_eq!(advise("connection refused"), "connection refused");
    }
}
