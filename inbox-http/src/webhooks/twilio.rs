//! Twilio: HMAC-SHA-1 of the URL, and of the parameters of a form or the digest of a body of JSON.

use std::{borrow::Cow, time::SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderName, Uri, header};
use inbox::Invalid;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{
    events::is_form,
    verify::{Delivery, Secrets, Verify, VerifyError},
};

const SIGNATURE: HeaderName = HeaderName::from_static("x-twilio-signature");
/// The parameter of the URL that has the digest of a body of JSON.
const BODY_DIGEST: &str = "bodySHA256";
/// The most parameters of a form. Twilio sends some dozens.
const MAX_PARAMETERS: usize = 1_000;

pub(super) struct Twilio {
    tokens: Secrets,
    origin: String,
}

impl Twilio {
    pub(super) fn new<T: AsRef<[u8]>>(
        tokens: impl IntoIterator<Item = T>,
        origin: &str,
    ) -> Result<Self, Invalid> {
        let origin = origin.trim_end_matches('/');
        let uri = origin.parse::<Uri>().ok();
        let is_web = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
        if !uri.is_some_and(|uri| is_web(&uri) && uri.query().is_none()) {
            return Err(Invalid::Malformed {
                what: "origin",
                expected: "what comes before the path, such as https://hooks.example.com",
            });
        }
        Ok(Self {
            tokens: Secrets::new(tokens)?,
            origin: origin.into(),
        })
    }
}

fn signature(delivery: Delivery<'_>) -> Result<Vec<u8>, VerifyError> {
    let signature = delivery.header(&SIGNATURE).ok_or(VerifyError::Missing)?;
    BASE64.decode(signature).map_err(|_| VerifyError::Missing)
}

impl Verify for Twilio {
    fn verify_head(&self, head: Delivery<'_>, _: SystemTime) -> Result<(), VerifyError> {
        if signature(head)?.len() != 20 {
            return Err(VerifyError::Wrong);
        }
        let is_form = is_form(head.header(&header::CONTENT_TYPE));
        if digest(head)?.is_none() && !is_form {
            return Err(VerifyError::Missing);
        }
        Ok(())
    }

    fn verify(&self, delivery: Delivery<'_>, _: SystemTime) -> Result<(), VerifyError> {
        let signature = signature(delivery)?;
        let path = delivery
            .uri
            .path_and_query()
            .map_or("/", |path| path.as_str());
        let url = format!("{}{path}", self.origin);
        let is_form = is_form(delivery.header(&header::CONTENT_TYPE));
        let body_fits = match digest(delivery)? {
            // Of a form, too: the content type is not signed, so who sends it may have chosen it.
            Some(said) => bool::from(Sha256::digest(delivery.body).as_slice().ct_eq(&said)),
            None if is_form => true,
            None => return Err(VerifyError::Missing),
        };
        if !body_fits {
            return Err(VerifyError::Wrong);
        }
        let parameters = match is_form {
            true => parameters(delivery.body)?,
            false => Vec::new(),
        };
        let fits = |token: &[u8]| {
            let Ok(mut mac) = <Hmac<Sha1> as KeyInit>::new_from_slice(token) else {
                return false;
            };
            mac.update(url.as_bytes());
            for (name, value) in &parameters {
                mac.update(name.as_bytes());
                mac.update(value.as_bytes());
            }
            mac.verify_slice(&signature).is_ok()
        };
        if !self.tokens.iter().any(fits) {
            return Err(VerifyError::Wrong);
        }
        Ok(())
    }
}

/// A name and its value.
type Parameter<'a> = (Cow<'a, str>, Cow<'a, str>);

/// The parameters of a form in the order in which they are signed. One that is there twice with one value counts once.
fn parameters(form: &[u8]) -> Result<Vec<Parameter<'_>>, VerifyError> {
    // Counted first: a list of very short ones would take many times the form's size, before it is known who sends it.
    if form.iter().filter(|byte| **byte == b'&').count() >= MAX_PARAMETERS {
        return Err(VerifyError::Missing);
    }
    let mut parameters: Vec<_> = form_urlencoded::parse(form).collect();
    parameters.sort_unstable();
    parameters.dedup();
    Ok(parameters)
}

/// The body's digest, if the URL, which is signed, has it as a parameter. It does when the body is JSON.
fn digest(delivery: Delivery<'_>) -> Result<Option<Vec<u8>>, VerifyError> {
    let query = delivery.uri.query().unwrap_or_default();
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    let Some((_, digest)) = parameters.find(|(name, _)| name == BODY_DIGEST) else {
        return Ok(None);
    };
    let digest = hex::decode(&*digest).map_err(|_| VerifyError::Missing)?;
    Ok(Some(digest))
}
