//! Names, headers and what else is checked when it is made.

use std::fmt;

use inbox_api::{
    ContentType, Cursor, ErrorType, HandlerName, Headers, History, InboxName, Invalid, Kind,
    MessageId, OrderingKey, PastAttempt, WorkerName, error_shape,
};

use super::sure;
use crate::{Target, head};

/// A name is the text that it was made of, and errors do not repeat what was no name.
fn name<T: AsRef<str> + fmt::Display>(
    text: &str,
    most: usize,
    made: Result<T, Invalid>,
) -> Result<(), String> {
    match made {
        Ok(name) if name.as_ref() != text || name.to_string() != text => {
            Err("a name is not its text".into())
        }
        Ok(_) if text.is_empty() || text.len() > most || text.chars().any(char::is_control) => {
            Err("a name breaks its rule".into())
        }
        Ok(_) => Ok(()),
        Err(invalid) if invalid.to_string().len() > 200 => {
            Err(format!("an error repeats a name\n{invalid}"))
        }
        Err(_) => Ok(()),
    }
}

pub(super) fn names() -> Target {
    let corpus = include_str!("../../corpus/names.txt");
    Target::new("names", corpus, |input| {
        let text = &*String::from_utf8_lossy(input);
        name(text, MessageId::MAX_BYTES, MessageId::new(text))?;
        name(text, HandlerName::MAX_BYTES, HandlerName::new(text))?;
        name(text, Kind::MAX_BYTES, Kind::new(text))?;
        name(text, OrderingKey::MAX_BYTES, OrderingKey::new(text))?;
        name(text, ContentType::MAX_BYTES, ContentType::new(text))?;
        name(text, WorkerName::MAX_BYTES, WorkerName::new(text))?;
        if let Ok(inbox) = InboxName::new(text)
            && (inbox.as_str() != text
                || !text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'))
        {
            return Err("the name of an inbox would have to be quoted in SQL".into());
        }
        let _ = (Cursor::new(text).sequence(), error_shape(text));
        if let Some(of) = ErrorType::of(text)
            && ErrorType::new(of.as_str()).as_ref() != Ok(&of)
        {
            return Err("the type of an error is none".into());
        }
        Ok(())
    })
}

pub(super) fn headers() -> Target {
    let corpus = include_str!("../../corpus/headers.txt");
    Target::new("headers", corpus, |input| {
        let (lines, json) = head(input);
        let mut headers = Headers::new();
        for (name, value) in lines {
            let (name, value) = (
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value),
            );
            let before = headers.clone();
            if headers.insert(&*name, &*value).is_err() && headers != before {
                return Err("a refused header was added".into());
            }
        }
        if Headers::from_json(&headers.to_json()).as_ref() != Ok(&headers) {
            return Err("headers read back as others".into());
        }
        let json = String::from_utf8_lossy(json);
        for json in [&*json, &*String::from_utf8_lossy(input)] {
            match Headers::from_json(json) {
                Ok(read) if sure(Headers::from_json(&read.to_json())) != read => {
                    return Err("headers read back as others".into());
                }
                Ok(_) => {}
                Err(reason) if reason.len() > 200 => {
                    return Err(format!("an error repeats headers\n{reason}"));
                }
                Err(_) => {}
            }
        }
        Ok(())
    })
}

pub(super) fn histories() -> Target {
    let corpus = include_str!("../../corpus/histories.txt");
    Target::new("histories", corpus, |input| {
        match History::from_json(&String::from_utf8_lossy(input)) {
            Ok(list) => {
                let _: std::time::Duration = list.attempts.iter().map(PastAttempt::took).sum();
                Ok(())
            }
            Err(reason) if reason.len() > 200 => {
                Err(format!("an error repeats a history\n{reason}"))
            }
            Err(_) => Ok(()),
        }
    })
}
