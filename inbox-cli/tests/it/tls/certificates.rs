//! A server's certificate, and the authorities that clients trust.

use std::{fs, os::unix::fs::PermissionsExt as _};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// The only name in the server's certificate.
pub(super) const NAME: &str = "localhost";

/// A certificate for [`NAME`], with its key, and two authorities, of which the first has issued it. All are files as PEM
/// that servers can read, whichever user they run as.
pub(super) struct Certificates {
    folder: TempDir,
}

impl Certificates {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let made = Self { folder };
        let (authority, issuer) = authority("one");
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new([NAME.to_owned()]).unwrap();
        let server = server.signed_by(&key, &issuer).unwrap().pem();
        let key = key.serialize_pem();
        for (name, content) in [
            ("key", &key),
            ("server", &server),
            ("key-and-server", &format!("{key}{server}")),
            ("authority", &authority),
            ("other-authority", &self::authority("another").0),
        ] {
            made.write(&format!("{name}.pem"), content);
        }
        made
    }

    /// Writes another file that a server reads, and returns its path.
    pub(super) fn write(&self, name: &str, content: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        let path = self.folder.path().join(format!("{name}.pem"));
        path.display().to_string()
    }

    /// The key of the server's certificate.
    pub(super) fn key(&self) -> String {
        self.path("key")
    }

    pub(super) fn server(&self) -> String {
        self.path("server")
    }

    /// Both in one file.
    pub(super) fn key_and_server(&self) -> String {
        self.path("key-and-server")
    }

    /// Who has issued the server's certificate.
    pub(super) fn authority(&self) -> String {
        self.path("authority")
    }

    /// Who has not.
    pub(super) fn other_authority(&self) -> String {
        self.path("other-authority")
    }
}

/// The certificate of an authority of this name, and what it issues others with.
fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let mut authority = CertificateParams::new([]).unwrap();
    authority.distinguished_name.push(DnType::CommonName, name);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = authority.self_signed(&key).unwrap();
    (certificate.pem(), Issuer::new(authority, key))
}
