//! Which JSON both servers take in a payload column.

use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Nesting that both servers take.
const DEPTH: usize = 30;
/// The bytes of the longest key of an object that MySQL takes.
const LONGEST_KEY: usize = u16::MAX as usize;

/// Whether both servers take it. Judged as it is read: a repeated key hides nothing.
pub(crate) fn fits(payload: &[u8]) -> bool {
    let mut json = serde_json::Deserializer::from_slice(payload);
    let read = Levels(DEPTH).deserialize(&mut json);
    read.and_then(|()| json.end()).is_ok()
}

/// How many levels of arrays and objects may still come.
#[derive(Clone, Copy)]
struct Levels(usize);

impl Levels {
    fn inner<E: Error>(self) -> Result<Self, E> {
        let inner = self.0.checked_sub(1).map(Self);
        inner.ok_or_else(|| E::custom("it nests too deep"))
    }
}

impl<'de> DeserializeSeed<'de> for Levels {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Levels {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while all.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while all.next_key_seed(Key)?.is_some() {
            all.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// A key of an object.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = IgnoredAny;

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<IgnoredAny, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = IgnoredAny;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<IgnoredAny, E> {
        match key.len() <= LONGEST_KEY {
            true => Ok(IgnoredAny),
            false => Err(E::custom("a key is too long")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_a_server_would_refuse_is_refused_first() {
        let brackets = format!("{{\"smile\": \"{}\"}}", ":[ :{ ".repeat(31));
        let nested = |levels| "[".repeat(levels) + &"]".repeat(levels);
        let key = |length| format!("{{\"{}\": 1}}", "k".repeat(length));
        let (deep, too_deep) = (nested(DEPTH), nested(DEPTH + 1));
        let (long, too_long) = (key(LONGEST_KEY), key(LONGEST_KEY + 1));
        let texts = [
            "{}",
            "[1, \"a\", -2, true]",
            "null",
            "1.5e3",
            "\"\\u00e4\"",
            " {\"a\\n\": {}} ",
        ];
        for good in texts.into_iter().chain([&*brackets, &*deep, &*long]) {
            assert!(fits(good.as_bytes()), "{good}");
        }
        let hidden = format!("{{\"a\": {too_deep}, \"a\": 1}}");
        let texts = [
            "",
            "{",
            "text",
            "\"\\ud800\"",
            "1e999",
            "1 2",
            "{1: 2}",
            "[1,]",
        ];
        for bad in texts.into_iter().chain([&*too_deep, &*too_long, &*hidden]) {
            assert!(!fits(bad.as_bytes()), "{bad}");
        }
    }
}
