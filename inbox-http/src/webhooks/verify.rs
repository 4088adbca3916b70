//! Whether a request comes from whom it says.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Uri};
use inbox::Invalid;

/// A request to an endpoint, read whole.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    /// Its URI, as the client sent it, within a nested router too.
    pub uri: &'a Uri,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its body, byte for byte.
    pub body: &'a Bytes,
}

impl<'a> Delivery<'a> {
    /// The text of a header that is there once.
    #[must_use]
    pub fn header(&self, name: &HeaderName) -> Option<&'a str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?.to_str().ok()?;
        values.next().is_none().then_some(value)
    }
}

impl std::fmt::Debug for Delivery<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("path", &self.uri.path())
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Tells requests of a provider from others. Implement it for a provider that no [`Signature`](super::Signature)
/// fits.
pub trait Verify: Send + Sync + 'static {
    /// Checks one request, at `now` by this machine's clock.
    ///
    /// Implementors MUST compare secrets and what is computed from them in constant time.
    ///
    /// # Errors
    /// [`VerifyError`]; nothing is stored then.
    fn verify(&self, delivery: Delivery<'_>, now: SystemTime) -> Result<(), VerifyError>;

    /// Checks what is in the head, before the body is read: `head` has none yet. What is refused here costs the
    /// service no memory. [`verify`](Self::verify) is called all the same, with the body. Lets everything through
    /// unless implemented.
    ///
    /// # Errors
    /// [`VerifyError`], as of `verify`.
    fn verify_head(&self, head: Delivery<'_>, now: SystemTime) -> Result<(), VerifyError> {
        let _ = (head, now);
        Ok(())
    }

    /// The same with another tolerance of a signature's time. `None` where no time is signed, and unless
    /// implemented.
    fn with_tolerance(&self, tolerance: Duration) -> Option<Arc<dyn Verify>> {
        let _ = tolerance;
        None
    }
}

/// Why a request is not taken for the provider's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It is not signed, or not in the provider's form.
    #[error("the signature is missing or malformed")]
    Missing,
    /// It is signed with none of the secrets.
    #[error("the signature is wrong")]
    Wrong,
    /// It was signed too long ago, or in the future.
    #[error("the signature's time is out of tolerance")]
    OutOfTime,
}

/// How far a signature's time may be from this machine's unless set, as Stripe, Slack and Standard Webhooks have it.
pub(super) const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// The most signatures of one request. Providers send one for each secret that counts at the time, which are two or
/// three.
pub(super) const MAX_SIGNATURES: usize = 32;

/// Checks a time in seconds since 1970.
pub(super) fn check_time(
    seconds: &str,
    now: SystemTime,
    tolerance: Duration,
) -> Result<(), VerifyError> {
    let is_number = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
    let seconds: u64 = seconds.parse().map_err(|_| VerifyError::Missing)?;
    if !is_number {
        return Err(VerifyError::Missing);
    }
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    if Duration::from_secs(seconds).abs_diff(now) > tolerance {
        return Err(VerifyError::OutOfTime);
    }
    Ok(())
}

/// Secrets that count at present. Never shown.
#[derive(Clone)]
pub(super) struct Secrets(Vec<Vec<u8>>);

impl Secrets {
    /// # Errors
    /// [`Invalid::Empty`] when there is none, or one is empty.
    pub(super) fn new<T: AsRef<[u8]>>(
        secrets: impl IntoIterator<Item = T>,
    ) -> Result<Self, Invalid> {
        let secrets = secrets.into_iter().map(|secret| secret.as_ref().to_vec());
        let secrets: Vec<Vec<u8>> = secrets.collect();
        if secrets.is_empty() || secrets.iter().any(Vec::is_empty) {
            return Err(Invalid::Empty { what: "secret" });
        }
        Ok(Self(secrets))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }
}
