//! Secrets: named in the configuration, never written there.

use std::{env, fmt, fs, path::PathBuf};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use toml::Spanned;

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Secret {
    /// In this environment variable.
    Env(String),
    /// In this file.
    File(PathBuf),
}

impl Secret {
    /// The environment variable with it, if it is in one.
    pub(crate) fn variable(&self) -> Option<&str> {
        match self {
            Self::Env(name) => Some(name),
            Self::File(_) => None,
        }
    }

    /// Fetches it, without the line break that editors and `echo` leave at the end. The error names
    /// the place, and nothing of what is there.
    pub(crate) fn read(&self) -> Result<String, String> {
        let (place, found) = match self {
            Self::Env(name) => {
                let place = format!("the environment variable {name}");
                let found = env::var(name).map_err(|error| match error {
                    env::VarError::NotPresent => "is not set",
                    env::VarError::NotUnicode(_) => "is not UTF-8",
                });
                (place, found.map_err(str::to_owned))
            }
            Self::File(path) => {
                let place = format!("the file {}", path.display());
                let found = fs::read_to_string(path);
                (
                    place,
                    found.map_err(|error| format!("cannot be read: {error}")),
                )
            }
        };
        let found = found.map_err(|reason| format!("{place} {reason}"))?;
        let secret = found.trim_end_matches(['\r', '\n']);
        if secret.is_empty() {
            return Err(format!("{place} is empty"));
        }
        Ok(secret.to_owned())
    }
}

/// What to say of anything else. Not the value, which may be a secret.
const EXPECTED: &str = "{ env = \"VARIABLE\" } or { file = \"PATH\" }: a secret is not written into \
                        the configuration";

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

/// Several, each with its place.
pub(crate) fn list<'de, D>(deserializer: D) -> Result<Vec<Spanned<Secret>>, D::Error>
where
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(ListVisitor)
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = Vec<Spanned<Secret>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {EXPECTED}")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Err(E::custom(format_args!("expected a list of {EXPECTED}")))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        self.visit_str("")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut secrets = Vec::new();
        while let Some(secret) = list.next_element()? {
            secrets.push(secret);
        }
        Ok(secrets)
    }
}

struct SecretVisitor;

impl<'de> Visitor<'de> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Secret, E> {
        Err(E::custom(format_args!("expected {EXPECTED}")))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Secret, E> {
        self.visit_str("")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Secret, A::Error> {
        let wrong = || A::Error::custom(format_args!("expected {EXPECTED}"));
        let secret = match map.next_key::<String>()?.as_deref() {
            Some("env") => Secret::Env(map.next_value()?),
            Some("file") => Secret::File(map.next_value()?),
            _ => return Err(wrong()),
        };
        match map.next_entry::<IgnoredAny, IgnoredAny>()? {
            None => Ok(secret),
            Some(_) => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Holder {
        secret: Secret,
    }

    fn parse(text: &str) -> Result<Secret, String> {
        let holder: Result<Holder, _> = toml::from_str(text);
        holder
            .map(|holder| holder.secret)
            .map_err(|e| e.message().to_owned())
    }

    #[test]
    fn a_secret_is_named_not_written() {
        assert_eq!(
            parse(r#"secret = { env = "A" }"#),
            Ok(Secret::Env("A".to_owned()))
        );
        assert_eq!(
            parse(r#"secret = { file = "/a" }"#),
            Ok(Secret::File("/a".into()))
        );
        for wrong in [
            r#""hunter2""#,
            "4711",
            r#"["hunter2"]"#,
            r#"{ value = "hunter2" }"#,
            r#"{ env = "A", file = "hunter2" }"#,
            "{}",
        ] {
            let error = parse(&format!("secret = {wrong}")).unwrap_err();
            assert!(error.contains("not written"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
            assert!(!error.contains("4711"), "{error}");
        }
    }

    #[test]
    fn a_missing_or_empty_secret_is_said_by_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let secret = Secret::File(path.clone());
        assert!(secret.read().unwrap_err().contains("cannot be read"));
        fs::write(&path, "\n").unwrap();
        assert!(secret.read().unwrap_err().contains("is empty"));
        fs::write(&path, " hunter2 \r\n").unwrap();
        assert_eq!(secret.read().unwrap(), " hunter2 ");
        let absent = Secret::Env("INBOX_NO_SUCH_VARIABLE".to_owned());
        assert!(
            absent
                .read()
                .unwrap_err()
                .contains("INBOX_NO_SUCH_VARIABLE is not set")
        );
    }
}
