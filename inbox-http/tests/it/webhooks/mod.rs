//! Webhooks: verified, stored, then answered.

mod cloud_events;
#[cfg(feature = "metrics")]
mod counted;
mod own;
mod rules;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// HMAC-SHA-256, as a provider computes it.
fn sign(secret: &str, text: &str) -> Vec<u8> {
    let mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes()).unwrap();
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

pub(crate) fn hex_signature(secret: &str, text: &str) -> String {
    hex::encode(sign(secret, text))
}

fn base64_signature(secret: &str, text: &str) -> String {
    BASE64.encode(sign(secret, text))
}
