//! A secret that callers show.

use std::fmt;

use inbox::Invalid;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A secret that a caller shows, as `Authorization: Bearer …` for one.
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

    /// Whether this is what a caller shows. Takes as long whatever that is, and however much of it is right.
    #[must_use]
    pub fn matches(&self, shown: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(shown).into();
        self.0.ct_eq(&digest).into()
    }
}

/// Takes as long whatever the tokens are.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "a-token-of-16-characters";

    #[test]
    fn tokens_are_equal_as_what_they_were_made_of_is() {
        let one = Token::new(ONE).unwrap();
        assert_eq!(one, Token::new(ONE).unwrap());
        assert_ne!(one, Token::new("a-token-of-17-characters").unwrap());
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
