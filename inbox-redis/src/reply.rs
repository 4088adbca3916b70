//! What scripts answer, taken apart. An answer of another shape is an error and never a panic.

use inbox_api::Bytes;
use redis::Value;

/// The answer has a shape that the script never gives.
#[derive(Debug)]
pub(crate) struct Unexpected;

pub(crate) type Reply<T> = std::result::Result<T, Unexpected>;

pub(crate) fn list(value: Value) -> Reply<Vec<Value>> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(Unexpected),
    }
}

pub(crate) fn number(value: &Value) -> Reply<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::BulkString(bytes) => std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or(Unexpected),
        _ => Err(Unexpected),
    }
}

pub(crate) fn unsigned(value: &Value) -> Reply<u64> {
    number(value).and_then(|n| u64::try_from(n).map_err(|_| Unexpected))
}

pub(crate) fn small(value: &Value) -> Reply<u16> {
    number(value).and_then(|n| u16::try_from(n).map_err(|_| Unexpected))
}

pub(crate) fn bytes(value: Value) -> Reply<Option<Bytes>> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        _ => Err(Unexpected),
    }
}

pub(crate) fn text(value: &Value) -> Reply<Option<&str>> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map(Some).map_err(|_| Unexpected),
        Value::SimpleString(text) => Ok(Some(text)),
        _ => Err(Unexpected),
    }
}

pub(crate) fn texts(value: Value) -> Reply<Vec<String>> {
    let values = list(value)?;
    let texts = values
        .iter()
        .map(|value| Ok(text(value)?.unwrap_or_default().to_owned()));
    texts.collect()
}

/// Takes elements off the front of an answer.
pub(crate) struct Taker(std::vec::IntoIter<Value>);

impl Taker {
    pub(crate) fn of(value: Value) -> Reply<Self> {
        Ok(Self(list(value)?.into_iter()))
    }

    pub(crate) fn next(&mut self) -> Reply<Value> {
        self.0.next().ok_or(Unexpected)
    }

    pub(crate) fn optional(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    pub(crate) fn number(&mut self) -> Reply<i64> {
        number(&self.next()?)
    }

    pub(crate) fn unsigned(&mut self) -> Reply<u64> {
        unsigned(&self.next()?)
    }

    pub(crate) fn small(&mut self) -> Reply<u16> {
        small(&self.next()?)
    }

    pub(crate) fn bytes(&mut self) -> Reply<Option<Bytes>> {
        bytes(self.next()?)
    }

    pub(crate) fn list(&mut self) -> Reply<Vec<Value>> {
        list(self.next()?)
    }
}
