//! The driver's clients: how to connect to a server of the URL, or to another node of its cluster.

use inbox_api::{Error, ErrorKind, Result};
use redis::{Client, ConnectionInfo, RedisResult};

use crate::{error, options::RedisOptions};

/// A client of one of the nodes in the URL: the one of this number, counted around.
pub(crate) fn client(options: &RedisOptions, number: usize) -> Result<Client> {
    install_tls(options);
    let node = options
        .nodes
        .get(number % options.nodes.len().max(1))
        .cloned()
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "the URL has no host"))?;
    open(node, options).map_err(error::connecting)
}

#[cfg(not(feature = "tls"))]
pub(crate) fn open(node: ConnectionInfo, _: &RedisOptions) -> RedisResult<Client> {
    Client::open(node)
}

#[cfg(not(feature = "tls"))]
pub(crate) fn install_tls(_: &RedisOptions) {}

#[cfg(feature = "tls")]
pub(crate) fn open(node: ConnectionInfo, options: &RedisOptions) -> RedisResult<Client> {
    if options.tls {
        let certificates = redis::TlsCertificates {
            client_tls: None,
            root_cert: options.tls_ca.clone(),
        };
        Client::build_with_tls(node, certificates)
    } else {
        Client::open(node)
    }
}

/// rustls wants one provider of cryptography in the process. An application that has chosen its
/// own keeps it.
#[cfg(feature = "tls")]
pub(crate) fn install_tls(options: &RedisOptions) {
    if options.tls {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
