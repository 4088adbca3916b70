//! Signatures by HMAC, as most providers have them.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderName;
use inbox::Invalid;
use sha1::Sha1;
use sha2::{Sha256, Sha512};
use subtle::ConstantTimeEq as _;

use super::verify::{
    Delivery, MAX_SIGNATURES, Secrets, TOLERANCE, Verify, VerifyError, check_time,
};

/// How a provider signs by HMAC: which hash, over what, and where the signature is.
///
/// ```
/// use inbox_http::webhooks::{Part, Signature};
/// use http::HeaderName;
///
/// # fn main() -> Result<(), inbox::Invalid> {
/// // As Slack has it.
/// let signature = Signature::sha256(HeaderName::from_static("x-slack-signature"))
///     .prefix("v0=")
///     .timestamp_header(HeaderName::from_static("x-slack-request-timestamp"))
///     .over([Part::Text("v0:"), Part::Timestamp, Part::Text(":"), Part::Body])
///     .secrets(["8f742231b10e8888abcd99yyyzzz85a5"])?;
/// # let _ = signature;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Signature {
    hash: Hash,
    header: HeaderName,
    encoding: Encoding,
    prefix: &'static str,
    time: Time,
    parts: Vec<Part>,
    tolerance: Duration,
    secrets: Option<Secrets>,
}

/// A part of what is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// This text.
    Text(&'static str),
    /// The time, as it stands in the request.
    Timestamp,
    /// The body.
    Body,
}

#[derive(Clone, Copy)]
enum Hash {
    Sha1,
    Sha256,
    Sha512,
}

impl Hash {
    /// In bytes.
    fn length(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }
}

#[derive(Clone, Copy)]
enum Encoding {
    Hex,
    Base64,
}

#[derive(Clone)]
enum Time {
    None,
    Header(HeaderName),
    /// Among the signatures in one header, as `t=1,v1=…`: the names of the time and of signatures.
    Listed(&'static str, &'static str),
}

impl Signature {
    /// HMAC-SHA-256 of the body, in hexadecimal digits, in this header.
    #[must_use]
    pub fn sha256(header: HeaderName) -> Self {
        Self {
            hash: Hash::Sha256,
            header,
            encoding: Encoding::Hex,
            prefix: "",
            time: Time::None,
            parts: vec![Part::Body],
            tolerance: TOLERANCE,
            secrets: None,
        }
    }

    /// The same with SHA-512.
    #[must_use]
    pub fn sha512(header: HeaderName) -> Self {
        Self {
            hash: Hash::Sha512,
            ..Self::sha256(header)
        }
    }

    /// The same with SHA-1, for providers that have nothing better.
    #[must_use]
    pub fn sha1(header: HeaderName) -> Self {
        Self {
            hash: Hash::Sha1,
            ..Self::sha256(header)
        }
    }

    /// The signature is written in base64.
    #[must_use]
    pub fn base64(mut self) -> Self {
        self.encoding = Encoding::Base64;
        self
    }

    /// What stands before the signature in its header, such as `sha256=`.
    #[must_use]
    pub fn prefix(mut self, prefix: &'static str) -> Self {
        self.prefix = prefix;
        self
    }

    /// The time of the signature is in this header, in seconds since 1970.
    #[must_use]
    pub fn timestamp_header(mut self, header: HeaderName) -> Self {
        self.time = Time::Header(header);
        self
    }

    /// The header is a list of the time and of signatures, with these names, as `t=1492774577,v1=5257a8…`.
    /// One with more than 32 signatures is refused as [`VerifyError::Missing`].
    #[must_use]
    pub fn listed(mut self, time: &'static str, signature: &'static str) -> Self {
        self.time = Time::Listed(time, signature);
        self
    }

    /// What is signed, in this order; the body unless set.
    #[must_use]
    pub fn over(mut self, parts: impl IntoIterator<Item = Part>) -> Self {
        self.parts = parts.into_iter().collect();
        self
    }

    /// How far the signature's time may be from this machine's; five minutes unless set.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The secrets, of which one has to fit. To be set last.
    ///
    /// # Errors
    /// [`Invalid`] when there is none or one is empty, when the body is not signed, and when there is a time that is
    /// not signed, or the other way round.
    pub fn secrets<T: AsRef<[u8]>>(
        mut self,
        secrets: impl IntoIterator<Item = T>,
    ) -> Result<Self, Invalid> {
        let has_time = !matches!(self.time, Time::None);
        let is_whole = self.parts.contains(&Part::Body);
        if has_time != self.parts.contains(&Part::Timestamp) || !is_whole {
            return Err(Invalid::Malformed {
                what: "signature",
                expected: "over the body, and over the time if there is one",
            });
        }
        self.secrets = Some(Secrets::new(secrets)?);
        Ok(self)
    }

    /// The time, and the signatures as they are written. A provider that changes its secret signs with both.
    fn read<'a>(&self, delivery: Delivery<'a>) -> Option<(&'a str, Vec<&'a str>)> {
        let header = delivery.header(&self.header)?;
        let (time, signatures) = match &self.time {
            Time::None => ("", vec![header]),
            Time::Header(name) => (delivery.header(name)?, vec![header]),
            Time::Listed(time, signature) => {
                let items = || {
                    header
                        .split(',')
                        .filter_map(|item| item.trim().split_once('='))
                };
                let of = |name: &'static str| items().filter(move |item| item.0 == name);
                let mut times = of(time);
                let time = times.next()?.1;
                if times.next().is_some() {
                    return None;
                }
                (time, of(signature).map(|item| item.1).collect())
            }
        };
        let plain = |signature: &'a str| signature.strip_prefix(self.prefix);
        let signatures: Vec<&str> = signatures.into_iter().filter_map(plain).collect();
        let is_signed = (1..=MAX_SIGNATURES).contains(&signatures.len());
        is_signed.then_some((time, signatures))
    }

    /// The bytes of a signature, if they are as many as the hash has.
    fn decode(&self, signature: &str) -> Option<Vec<u8>> {
        let decoded = match self.encoding {
            Encoding::Hex => hex::decode(signature).ok(),
            Encoding::Base64 => BASE64.decode(signature).ok(),
        };
        decoded.filter(|bytes| bytes.len() == self.hash.length())
    }

    fn check_time(&self, time: &str, now: SystemTime) -> Result<(), VerifyError> {
        match self.time {
            Time::None => Ok(()),
            Time::Header(_) | Time::Listed(..) => check_time(time, now, self.tolerance),
        }
    }

    fn mac(&self, secret: &[u8], text: &[&[u8]]) -> Option<Vec<u8>> {
        match self.hash {
            Hash::Sha1 => mac::<Hmac<Sha1>>(secret, text),
            Hash::Sha256 => mac::<Hmac<Sha256>>(secret, text),
            Hash::Sha512 => mac::<Hmac<Sha512>>(secret, text),
        }
    }
}

/// Never `None`: HMAC takes keys of any length.
fn mac<M: Mac + KeyInit>(secret: &[u8], text: &[&[u8]]) -> Option<Vec<u8>> {
    let mut mac = <M as KeyInit>::new_from_slice(secret).ok()?;
    for part in text {
        mac.update(part);
    }
    Some(mac.finalize().into_bytes().to_vec())
}

impl Verify for Signature {
    fn verify_head(&self, head: Delivery<'_>, now: SystemTime) -> Result<(), VerifyError> {
        let (time, signatures) = self.read(head).ok_or(VerifyError::Missing)?;
        if !signatures.iter().any(|text| self.decode(text).is_some()) {
            return Err(VerifyError::Wrong);
        }
        self.check_time(time, now)
    }

    fn verify(&self, delivery: Delivery<'_>, now: SystemTime) -> Result<(), VerifyError> {
        let (time, signatures) = self.read(delivery).ok_or(VerifyError::Missing)?;
        let part = |part: &Part| match part {
            Part::Text(text) => text.as_bytes().to_vec(),
            Part::Timestamp => time.as_bytes().to_vec(),
            Part::Body => Vec::new(),
        };
        let owned: Vec<Vec<u8>> = self.parts.iter().map(part).collect();
        let text = self
            .parts
            .iter()
            .zip(&owned)
            .map(|(part, owned)| match part {
                Part::Body => delivery.body.as_ref(),
                Part::Text(_) | Part::Timestamp => owned.as_slice(),
            });
        let text: Vec<&[u8]> = text.collect();
        let decoded = signatures.into_iter().filter_map(|text| self.decode(text));
        let decoded: Vec<Vec<u8>> = decoded.collect();
        let secrets = self.secrets.as_ref().ok_or(VerifyError::Wrong)?;
        let is_one_of_them =
            |mac: Vec<u8>| decoded.iter().any(|one| mac.as_slice().ct_eq(one).into());
        // Anybody can send many signatures: the whole body is hashed once for each secret, not for each of those.
        let fits = |secret: &[u8]| self.mac(secret, &text).is_some_and(is_one_of_them);
        if decoded.is_empty() || !secrets.iter().any(fits) {
            return Err(VerifyError::Wrong);
        }
        self.check_time(time, now)
    }

    fn with_tolerance(&self, tolerance: Duration) -> Option<Arc<dyn Verify>> {
        match self.time {
            Time::None => None,
            Time::Header(_) | Time::Listed(..) => Some(Arc::new(self.clone().tolerance(tolerance))),
        }
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signature")
            .field("header", &self.header)
            .field("parts", &self.parts)
            .field("tolerance", &self.tolerance)
            .finish_non_exhaustive()
    }
}
