//! A port that takes TLS, in front of a server that does not.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use super::certificates::Certificates;

/// Passes on to `address` what comes, for as long as the runtime lives, and returns its port.
pub(super) async fn start(certificates: &Certificates, address: &str) -> u16 {
    let key = PrivateKeyDer::from_pem_file(certificates.key()).unwrap();
    let certificate = CertificateDer::from_pem_file(certificates.server()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = address.to_owned();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, address) = (acceptor.clone(), address.clone());
            tokio::spawn(async move {
                // A client that does not trust it ends here.
                let mut client = acceptor.accept(client).await?;
                let mut server = TcpStream::connect(address).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    port
}
