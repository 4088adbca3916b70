//! Where a configuration is from, and what is wrong with it.

use std::ops::Range;

use super::config::Config;

/// Why a configuration is refused: one line, with the place.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{place}{key}{message}")]
pub(crate) struct Wrong {
    /// File, line and column with a colon behind each; nothing for the command line.
    place: String,
    /// The key and a colon, or nothing.
    key: String,
    message: String,
}

/// Where a configuration is from, to be pointed at.
#[derive(Debug)]
pub(crate) enum Source {
    File { name: String, text: String },
    CommandLine,
}

impl Source {
    pub(crate) fn parse(&self) -> Result<Config, Wrong> {
        let Self::File { text, .. } = self else {
            return Ok(Config::default());
        };
        let wrong = |key: String, error: &toml::de::Error| {
            self.wrong(&key, error.span().unwrap_or_default(), error.message())
        };
        let deserializer =
            toml::Deserializer::parse(text).map_err(|error| wrong(String::new(), &error))?;
        serde_path_to_error::deserialize(deserializer)
            .map_err(|error| wrong(key_of(error.path()), error.inner()))
    }

    /// What is wrong with the value of `key` that stands at `span`.
    pub(crate) fn wrong(&self, key: &str, span: Range<usize>, message: impl ToString) -> Wrong {
        let place = match self {
            Self::CommandLine => String::new(),
            Self::File { name, text } => {
                let before = text.get(..span.start).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
                format!("{name}:{line}:{column}: ")
            }
        };
        let message = message.to_string();
        Wrong {
            place,
            key: if key.is_empty() {
                String::new()
            } else {
                format!("{key}: ")
            },
            // One line, whatever a library says.
            message: message.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }
}

/// The path to a key, without the steps that are the library's own.
fn key_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut key = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => key.push_str(&format!("[{index}]")),
            Segment::Map { key: name } if !name.starts_with("$__") => {
                if !key.is_empty() {
                    key.push('.');
                }
                key.push_str(name);
            }
            _ => {}
        }
    }
    key
}
