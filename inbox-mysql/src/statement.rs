//! One statement: its text, what is bound to it, and the files that statements are read from.

use std::fmt::Write as _;

use inbox_api::Bytes;

/// Payloads in text are doubled when they have to be written in hexadecimal; from this size on
/// they are bound instead.
const MOST_INLINE: usize = 256 * 1024;

/// One statement. Built from fixed texts, numbers and [literals](Statement::bytes) only.
#[derive(Debug, Default)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) bound: Vec<Value>,
    /// Whether its text comes again and again, so that the server should remember it.
    pub(crate) repeats: bool,
    /// Whether it answers with rows.
    pub(crate) selects: bool,
}

impl Statement {
    /// A statement that begins with this text, which says whether it answers with rows.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            selects: selects(&text),
            text,
            bound: Vec::new(),
            repeats: false,
        }
    }

    /// A number by itself, for [`Template::fill`].
    pub(crate) fn of_number(number: i64) -> Self {
        let mut statement = Self::default();
        statement.number(number);
        statement
    }

    /// A literal by itself.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let mut statement = Self::default();
        statement.bytes(bytes);
        statement
    }

    /// What [`Self::secret`] makes of these bytes.
    pub(crate) fn of_secret(bytes: &Bytes, secrecy: Secrecy) -> Self {
        let mut statement = Self::default();
        statement.secret(bytes, secrecy);
        statement
    }

    pub(crate) fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    pub(crate) fn number(&mut self, number: i64) -> &mut Self {
        // Writing to a String does not fail.
        let _ = write!(self.text, "{number}");
        self
    }

    /// `bytes` as a literal that means the same in every SQL mode and character set.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        match plain(bytes) {
            Some(text) => {
                self.text.push_str("_binary'");
                for part in text.split_inclusive('\'') {
                    self.text.push_str(part);
                    if part.ends_with('\'') {
                        self.text.push('\'');
                    }
                }
                self.text.push('\'');
            }
            None => {
                self.text.push_str("x'");
                hex(bytes, &mut self.text);
                self.text.push('\'');
            }
        }
        self
    }

    pub(crate) fn optional(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.push("NULL"),
        }
    }

    /// `bytes` that are large or must not appear in a log of statements.
    pub(crate) fn secret(&mut self, bytes: &Bytes, secrecy: Secrecy) -> &mut Self {
        if secrecy == Secrecy::Bind || bytes.len() > MOST_INLINE {
            self.bind(Value::Bytes(bytes.clone()))
        } else {
            self.bytes(bytes)
        }
    }

    pub(crate) fn bind(&mut self, value: Value) -> &mut Self {
        self.bound.push(value);
        self.push("?")
    }

    /// For a statement whose text comes again and again.
    pub(crate) fn repeats(mut self) -> Self {
        self.repeats = true;
        self
    }

    pub(crate) fn append(&mut self, other: &Self) -> &mut Self {
        self.text.push_str(&other.text);
        self.bound.extend_from_slice(&other.bound);
        self
    }

    /// The text of a statement without bound values.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(crate) fn size(&self) -> usize {
        self.text.len() + self.bound.iter().map(Value::size).sum::<usize>()
    }
}

/// What is bound to a statement.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Bytes(Bytes),
    Number(i64),
    Null,
}

impl Value {
    pub(crate) fn text(text: &str) -> Self {
        Self::Bytes(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(_) => 8,
            Self::Null => 0,
        }
    }
}

/// Whether payloads, results and headers may be part of a statement's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// They may: the connection is the store's own, and logs no statements.
    Inline,
    /// They are bound: the caller's driver settings may log statements.
    Bind,
}

/// The text to put between quotes, if the bytes mean the same with and without backslash escapes.
fn plain(bytes: &[u8]) -> Option<&str> {
    // An empty literal between quotes is NULL in one of MariaDB's modes.
    if bytes.is_empty() || bytes.contains(&b'\\') || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

pub(crate) fn hex(bytes: &[u8], into: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    into.reserve(bytes.len() * 2);
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            into.push(char::from(
                DIGITS.get(usize::from(digit)).copied().unwrap_or(b'0'),
            ));
        }
    }
}

/// A statement of a file. The inbox's names are filled in; what a call adds stands in it as `{name}`.
#[derive(Debug, Default)]
pub(crate) struct Template(Vec<Part>);

#[derive(Debug)]
enum Part {
    Text(String),
    Value(String),
}

impl Template {
    /// Reads a statement. `name` says what some of its names stand for; the others are left to calls.
    pub(crate) fn read(text: &str, name: impl Fn(&str) -> Option<String>) -> Self {
        let mut parts = Self::default();
        let mut rest = text;
        while let Some((before, (value, behind))) = rest
            .split_once('{')
            .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            parts.push(before);
            match name(value) {
                Some(meaning) => parts.push(&meaning),
                None => parts.0.push(Part::Value(value.to_owned())),
            }
            rest = behind;
        }
        parts.push(rest);
        parts
    }

    fn push(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Part::Text(last)) => last.push_str(text),
            _ => self.0.push(Part::Text(text.to_owned())),
        }
    }

    /// The statement with these values.
    pub(crate) fn fill(&self, values: &[(&str, Statement)]) -> Statement {
        let mut statement = Statement::default();
        for part in &self.0 {
            match part {
                Part::Text(text) => {
                    statement.push(text);
                }
                Part::Value(name) => {
                    let value = values.iter().find(|(value, _)| value == name);
                    debug_assert!(value.is_some(), "{name} is left open");
                    if let Some((_, value)) = value {
                        statement.append(value);
                    }
                }
            }
        }
        // By the template's own words: a value may be any text.
        statement.selects = selects(&self.text());
        statement
    }

    /// The statement as it stands, with the names of its values.
    pub(crate) fn text(&self) -> String {
        let texts = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Value(name) => format!("{{{name}}}"),
        });
        texts.collect()
    }

    /// The texts in front of its only value and behind it, where the value is too large to be copied.
    pub(crate) fn around(&self) -> (&str, &str) {
        match self.0.as_slice() {
            [Part::Text(before), Part::Value(_), Part::Text(behind)] => (before, behind),
            _ => ("", ""),
        }
    }
}

/// Whether a statement answers with rows.
fn selects(text: &str) -> bool {
    text.starts_with("SELECT") && !text.contains(" INTO @inbox_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(bytes: &[u8]) -> String {
        let mut statement = Statement::default();
        statement.bytes(bytes);
        statement.text
    }

    #[test]
    fn literals_need_no_backslash_escapes() {
        assert_eq!(literal(b"plain; -- text"), "_binary'plain; -- text'");
        assert_eq!(literal(b"it's ''"), "_binary'it''s '''''");
        assert_eq!(literal(b"a\\'b"), "x'615C2762'");
        assert_eq!(literal(b"\0"), "x'00'");
        assert_eq!(literal(b""), "x''");
        assert_eq!(literal(&[0xff, 0x27]), "x'FF27'");
        assert_eq!(literal("ü\n".as_bytes()), "_binary'ü\n'");
    }

    #[test]
    fn secrets_are_bound_on_foreign_connections_and_when_large() {
        let bytes = Bytes::from_static(b"secret");
        let mut statement = Statement::default();
        statement.secret(&bytes, Secrecy::Bind);
        assert_eq!(statement.text, "?");
        statement.secret(&bytes, Secrecy::Inline);
        assert_eq!(statement.text, "?_binary'secret'");
        statement.secret(&Bytes::from(vec![b'x'; MOST_INLINE + 1]), Secrecy::Inline);
        assert_eq!(statement.bound.len(), 2);
    }

    #[test]
    fn values_are_not_searched_for_names() {
        let known = |name: &str| (name == "work").then(|| "`a{id}`".to_owned());
        let template = Template::read("SELECT {id} FROM {work} WHERE x = {x}", known);
        let statement = template.fill(&[
            ("x", Statement::of_number(1)),
            ("id", Statement::of_bytes(b"{x}")),
        ]);
        assert_eq!(
            statement.text,
            "SELECT _binary'{x}' FROM `a{id}` WHERE x = 1"
        );
        assert!(statement.selects);
    }
}
