//! Who may call: bearer tokens.

use std::fmt;

use axum::http::{HeaderMap, header::AUTHORIZATION};
use inbox::Invalid;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// A secret that a caller shows as `Authorization: Bearer …`.
///
/// Only its SHA-256 is kept, and `Debug` does not show that either.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// The shortest token, in bytes. One of random characters cannot be guessed at that length.
    pub const MIN_BYTES: usize = 16;

    /// Takes a token of visible ASCII characters.
    ///
    /// # Errors
    /// [`Invalid`] when it is shorter than [`Self::MIN_BYTES`] or has other characters, a space or a
    /// line break for one.
    pub fn new(token: &str) -> Result<Self, Invalid> {
        let is_visible = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.len() < Self::MIN_BYTES || !is_visible {
            return Err(Invalid::Malformed {
                what: "bearer token",
                expected: "at least 16 visible ASCII characters, without spaces",
            });
        }
        Ok(Self(Sha256::digest(token).into()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Whether a request shows one of `tokens`. Takes as long whichever it shows, and however much of
/// one a wrong token has right.
pub(super) fn is_allowed(tokens: &[Token], headers: &HeaderMap) -> bool {
    let Some(shown) = bearer(headers) else {
        return false;
    };
    let digest: [u8; 32] = Sha256::digest(shown).into();
    let found = tokens.iter().fold(Choice::from(0), |found, token| {
        found | token.0.ct_eq(&digest)
    });
    found.into()
}

/// The token of a request that has exactly one `Authorization`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, more) = (values.next()?, values.next());
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    (more.is_none() && scheme.eq_ignore_ascii_case("bearer")).then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "a-token-of-16-characters";
    const OTHER: &str = "another-token-of-16";

    fn allowed(header: &str) -> bool {
        let tokens = [Token::new(ONE).unwrap(), Token::new(OTHER).unwrap()];
        let headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
        is_allowed(&tokens, &headers)
    }

    #[test]
    fn each_of_several_tokens_is_allowed_and_nothing_else() {
        assert!(allowed(&format!("Bearer {ONE}")));
        assert!(allowed(&format!("bearer  {OTHER}")));
        for wrong in ["", "Bearer", "Bearer ", ONE, &format!("Basic {ONE}")] {
            assert!(!allowed(wrong), "{wrong}");
        }
        assert!(!allowed(&format!("Bearer {ONE}x")));
        assert!(!allowed(&format!("Bearer {}", &ONE[1..])));
        assert!(!is_allowed(&[], &HeaderMap::new()));
    }

    #[test]
    fn two_authorizations_are_none() {
        let value: axum::http::HeaderValue = format!("Bearer {ONE}").parse().unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value.clone())]);
        let mut twice = headers.clone();
        twice.append(AUTHORIZATION, value);
        let tokens = [Token::new(ONE).unwrap()];
        assert!(is_allowed(&tokens, &headers));
        assert!(!is_allowed(&tokens, &twice));
    }

    #[test]
    fn weak_and_odd_tokens_are_refused_and_none_is_shown() {
        for weak in [
            "",
            "short",
            "with a space in between",
            "with-a-break-at-end\n",
        ] {
            assert!(Token::new(weak).is_err(), "{weak:?}");
        }
        assert_eq!(format!("{:?}", Token::new(ONE).unwrap()), "Token(…)");
    }
}
