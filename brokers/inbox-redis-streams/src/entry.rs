//! Entries of a stream, as the server answers them.

use bytes::Bytes;
use redis::Value;

/// A field and its value. Names may repeat.
pub(crate) type Field = (Bytes, Bytes);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: String,
    /// `None` for one that was deleted or trimmed from the stream before it was acknowledged.
    pub(crate) fields: Option<Vec<Field>>,
}

impl Entry {
    pub(crate) fn bytes(&self) -> usize {
        let fields = self.fields.iter().flatten();
        fields.map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// What a read of one stream answers; `None` if it is something else.
pub(crate) fn of_read(answer: Value) -> Option<Vec<Entry>> {
    match answer {
        Value::Nil => Some(Vec::new()),
        Value::Array(streams) => match streams.into_iter().next() {
            None => Some(Vec::new()),
            Some(Value::Array(stream)) => entries(stream.into_iter().nth(1)?),
            Some(_) => None,
        },
        _ => None,
    }
}

/// What claiming idle ones answers: where to go on, and the entries.
pub(crate) fn of_claim(answer: Value) -> Option<(String, Vec<Entry>)> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let mut parts = parts.into_iter();
    let next = text(parts.next()?)?;
    let mut all = entries(parts.next()?)?;
    // Since Redis 7 the server names those that it has found gone. Before, it has them among the others, as nothing.
    if let Some(gone) = parts.next() {
        all.extend(ids(gone)?.into_iter().map(|id| Entry { id, fields: None }));
    }
    Some((next, all))
}

fn ids(value: Value) -> Option<Vec<String>> {
    let Value::Array(all) = value else {
        return None;
    };
    all.into_iter().map(text).collect()
}

fn entries(value: Value) -> Option<Vec<Entry>> {
    let Value::Array(all) = value else {
        return None;
    };
    let all = all.into_iter().filter(|entry| *entry != Value::Nil);
    all.map(entry).collect()
}

fn entry(value: Value) -> Option<Entry> {
    let Value::Array(parts) = value else {
        return None;
    };
    let mut parts = parts.into_iter();
    let id = text(parts.next()?)?;
    let fields = match parts.next()? {
        Value::Nil => None,
        Value::Array(all) => {
            let mut all = all.into_iter();
            let mut fields = Vec::with_capacity(all.len() / 2);
            while let Some(name) = all.next() {
                fields.push((bytes(name)?, bytes(all.next()?)?));
            }
            Some(fields)
        }
        _ => return None,
    };
    Some(Entry { id, fields })
}

fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        Value::SimpleString(text) => Some(text.into()),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn entries_are_read_and_deleted_ones_told() {
        let one = Value::Array(vec![
            word("1-0"),
            Value::Array(vec![word("a"), word("b"), word("a"), word("c")]),
        ]);
        let deleted = Value::Array(vec![word("2-0"), Value::Nil]);
        let stream = Value::Array(vec![word("orders"), Value::Array(vec![one, deleted])]);
        let read = of_read(Value::Array(vec![stream])).unwrap();
        let field = |value: &'static str| (Bytes::from("a"), Bytes::from(value));
        assert_eq!(read[0].fields, Some(vec![field("b"), field("c")]));
        assert_eq!((read[1].id.as_str(), &read[1].fields), ("2-0", &None));
        assert_eq!(of_read(Value::Nil), Some(Vec::new()));
    }

    #[test]
    fn entries_that_are_gone_when_they_are_claimed_are_told() {
        let one = Value::Array(vec![word("1-0"), Value::Array(vec![word("a"), word("b")])]);
        let gone = Value::Array(vec![word("2-0"), word("3-0")]);
        let answer = vec![word("0-0"), Value::Array(vec![one.clone()]), gone];
        let (next, all) = of_claim(Value::Array(answer)).unwrap();
        let ids: Vec<_> = all.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!((next.as_str(), ids), ("0-0", vec!["1-0", "2-0", "3-0"]));
        assert!(all[0].fields.is_some());
        assert!(all[1..].iter().all(|entry| entry.fields.is_none()));
        // Before Redis 7.
        let older = Value::Array(vec![word("0-0"), Value::Array(vec![Value::Nil, one])]);
        assert_eq!(of_claim(older).unwrap().1, all[..1]);
    }

    #[test]
    fn what_is_no_answer_is_none() {
        let odd = Value::Array(vec![word("1-0"), Value::Array(vec![word("a")])]);
        for value in [
            Value::Int(1),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Array(vec![word("s"), Value::Array(vec![odd])])]),
        ] {
            assert_eq!(of_read(value.clone()), None, "{value:?}");
            assert_eq!(of_claim(value), None);
        }
    }
}
