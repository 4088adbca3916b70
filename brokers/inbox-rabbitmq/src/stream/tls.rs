//! TLS with rustls and the system's certificates.

use std::{io, sync::Arc};

use tokio::{net::TcpStream, task::spawn_blocking};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};

pub(crate) async fn connect(host: &str, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    // It reads files.
    let config = spawn_blocking(config).await.map_err(io::Error::other)??;
    TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
}

fn config() -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    if roots.add_parsable_certificates(found.certs).0 == 0 {
        return Err(io::Error::other(
            "the system has no certificates to check the server's with",
        ));
    }
    // By name: a program may have two providers.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
