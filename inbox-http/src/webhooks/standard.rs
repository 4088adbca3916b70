//! Standard Webhooks, by its own crate.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::HeaderName;
use inbox::Invalid;
use standardwebhooks::Webhook;
use subtle::ConstantTimeEq as _;

use super::verify::{Delivery, MAX_SIGNATURES, TOLERANCE, Verify, VerifyError, check_time};

pub(super) const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

pub(super) struct Standard {
    webhooks: Arc<[Webhook]>,
    tolerance: Duration,
}

impl Standard {
    pub(super) fn new<T: AsRef<str>>(
        secrets: impl IntoIterator<Item = T>,
    ) -> Result<Self, Invalid> {
        let webhook = |secret: T| {
            let is_empty = secret.as_ref().trim_start_matches("whsec_").is_empty();
            let webhook = Webhook::new(secret.as_ref()).ok().filter(|_| !is_empty);
            webhook.ok_or(Invalid::Malformed {
                what: "secret",
                expected: "base64, after whsec_ perhaps",
            })
        };
        let webhooks = secrets
            .into_iter()
            .map(webhook)
            .collect::<Result<Vec<_>, _>>()?;
        if webhooks.is_empty() {
            return Err(Invalid::Empty { what: "secret" });
        }
        Ok(Self {
            webhooks: webhooks.into(),
            tolerance: TOLERANCE,
        })
    }
}

/// What is in the headers.
struct Signed<'a> {
    id: &'a str,
    time: &'a str,
    signatures: &'a str,
}

impl<'a> Signed<'a> {
    fn of(delivery: Delivery<'a>) -> Result<Self, VerifyError> {
        let header = |name: HeaderName| delivery.header(&name).ok_or(VerifyError::Missing);
        let signatures = header(SIGNATURE)?;
        if signatures.split(' ').count() > MAX_SIGNATURES {
            return Err(VerifyError::Missing);
        }
        Ok(Self {
            id: header(ID)?,
            time: header(TIMESTAMP)?,
            signatures,
        })
    }
}

impl Verify for Standard {
    fn verify_head(&self, head: Delivery<'_>, now: SystemTime) -> Result<(), VerifyError> {
        let signed = Signed::of(head)?;
        let is_one = |text: &str| {
            let bytes = text.strip_prefix("v1,").map(|text| BASE64.decode(text));
            bytes.is_some_and(|bytes| bytes.is_ok_and(|bytes| bytes.len() == 32))
        };
        if !signed.signatures.split(' ').any(is_one) {
            return Err(VerifyError::Wrong);
        }
        check_time(signed.time, now, self.tolerance)
    }

    /// The crate's own verification subtracts times that it has not checked, so that only its
    /// signing is used.
    fn verify(&self, delivery: Delivery<'_>, now: SystemTime) -> Result<(), VerifyError> {
        let Signed {
            id,
            time,
            signatures,
        } = Signed::of(delivery)?;
        let seconds = time.parse().map_err(|_| VerifyError::Missing)?;
        let fits = |webhook: &Webhook| {
            let Ok(expected) = webhook.sign(id, seconds, delivery.body) else {
                return false; // a body that is no text
            };
            let mut signatures = signatures.split(' ');
            signatures.any(|signature| signature.as_bytes().ct_eq(expected.as_bytes()).into())
        };
        if !self.webhooks.iter().any(fits) {
            return Err(VerifyError::Wrong);
        }
        check_time(time, now, self.tolerance)
    }

    fn with_tolerance(&self, tolerance: Duration) -> Option<Arc<dyn Verify>> {
        Some(Arc::new(Self {
            webhooks: self.webhooks.clone(),
            tolerance,
        }))
    }
}
