//! What tells two messages of one key apart.

use std::fmt;

use serde::Serialize;
use xxhash_rust::xxh3::Xxh3Default;

/// A short digest of a message's content, kept with its key, that tells whether a redelivery is the
/// same message or another one under the same key: [`Receipt::Duplicate`](crate::Receipt::Duplicate).
///
/// For telling, not for security: a sender who chooses both contents can make their fingerprints equal.
///
/// ```
/// use inbox_api::Fingerprint;
///
/// let fingerprint = Fingerprint::of([b"POST".as_slice(), b"/orders", b"{}"]);
/// assert_ne!(fingerprint, Fingerprint::of([b"POST".as_slice(), b"/orders/", b"{}"]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(i64);

impl Fingerprint {
    /// Of several parts, which run into each other nowhere: the XXH3 hash, of 64 bits, of each part
    /// followed by its length. The same in every release, on every machine.
    #[must_use]
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = Xxh3Default::new();
        for part in parts {
            hasher.update(part);
            hasher.update(&(part.len() as u64).to_le_bytes());
        }
        Self(hasher.digest().cast_signed())
    }

    /// Wraps what a store has kept, or a digest that was made elsewhere.
    #[must_use]
    pub fn new(digest: i64) -> Self {
        Self(digest)
    }

    /// The number that stores keep; any value is possible.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0
    }
}

/// As 16 hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// As text, since JavaScript's numbers would lose digits.
impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_the_same_for_ever() {
        let known = Fingerprint::of([b"order.placed".as_slice(), b"{}"]);
        assert_eq!(known.to_string(), "5ce15d5c859647a5");
        assert_eq!(Fingerprint::new(-1).to_string(), "ffffffffffffffff");
        assert_eq!(
            serde_json::to_string(&Fingerprint::new(1)).unwrap(),
            "\"0000000000000001\""
        );
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let of = |parts: &[&'static str]| Fingerprint::of(parts.iter().map(|part| part.as_bytes()));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a", ""]), of(&["a"]));
        assert_ne!(of(&["", "a"]), of(&["a", ""]));
    }
}
