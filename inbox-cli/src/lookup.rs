//! Which message an operator means who gives an id without a handler, or `HANDLER/ID`.

use anyhow::Result;
use inbox::{ErrorKind, HandlerName, Inbox, Invalid, Key, MessageId};

use crate::{args::wrong_usage, output};

/// What was found for an id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The only message that it can mean; or with a handler given, that key, whether or not there
    /// is such a message.
    One(Key),
    Nothing,
    /// All that it can mean.
    Several(Vec<Key>),
}

/// Ends the program as for a wrong command line, if that is what has failed: what was given for an id can be none.
pub(crate) fn check_ids<T>(found: Result<T>) -> Result<T> {
    if let Err(error) = &found
        && let Some(invalid) = error.downcast_ref::<Invalid>()
    {
        wrong_usage(invalid);
    }
    found
}

/// Looks ids up in one inbox.
pub(crate) struct Lookup<'a> {
    store: &'a dyn Inbox,
    handler: Option<HandlerName>,
    /// The handlers that have messages, once they were asked for.
    handlers: Option<Vec<HandlerName>>,
}

impl<'a> Lookup<'a> {
    /// With `handler`, every id is one of that handler's, whatever it looks like.
    pub(crate) fn new(store: &'a dyn Inbox, handler: Option<HandlerName>) -> Self {
        Self {
            store,
            handler,
            handlers: None,
        }
    }

    /// The message that `text` names: a message id, or a handler's name, a slash, and an id. Either
    /// part may contain slashes, so that both readings are looked up for every handler.
    pub(crate) async fn find(&mut self, text: &str) -> Result<Found> {
        if let Some(handler) = &self.handler {
            let key = Key::new(handler.clone(), MessageId::new(text)?);
            return Ok(Found::One(key));
        }
        let store = self.store;
        let readings = readings(text, self.handlers().await?);
        if readings.is_empty() {
            // Says what is wrong with it, if that is why.
            MessageId::new(text)?;
        }
        let mut found = Vec::new();
        for key in readings {
            if exists(store, &key).await? {
                found.push(key);
            }
        }
        Ok(match found.len() {
            0 => Found::Nothing,
            1 => found.pop().map_or(Found::Nothing, Found::One),
            _ => Found::Several(found),
        })
    }

    async fn handlers(&mut self) -> inbox::Result<&[HandlerName]> {
        if self.handlers.is_none() {
            let statistics = self.store.statistics().await?;
            let handlers = statistics.handlers.into_iter().map(|h| h.handler);
            self.handlers = Some(handlers.collect());
        }
        Ok(self.handlers.as_deref().unwrap_or_default())
    }
}

/// Every key that `text` can mean where these handlers have messages.
fn readings(text: &str, handlers: &[HandlerName]) -> Vec<Key> {
    let mut keys = Vec::new();
    for handler in handlers {
        let behind_name = text
            .strip_prefix(handler.as_str())
            .and_then(|rest| rest.strip_prefix('/'));
        for id in [Some(text), behind_name].into_iter().flatten() {
            if let Ok(id) = MessageId::new(id) {
                keys.push(Key::new(handler.clone(), id));
            }
        }
    }
    keys
}

async fn exists(store: &dyn Inbox, key: &Key) -> inbox::Result<bool> {
    match store.get(key).await {
        Ok(record) => Ok(record.is_some()),
        // There, though it cannot be read.
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(true),
        Err(error) => Err(error),
    }
}

/// Asks for a choice, in words that can be copied.
pub(crate) fn which_one(choices: &[Key]) -> String {
    let mut text = "several messages could be meant; say which one with --handler:".to_owned();
    for key in choices {
        let id = key.id.as_str();
        let dashes = if id.starts_with('-') { "-- " } else { "" };
        text.push_str(&format!(
            "\n  --handler {} {dashes}{}",
            word(key.handler.as_str()),
            word(id)
        ));
    }
    text
}

/// A text as a shell takes it for one word.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    output::cell(&format!("'{}'", text.replace('\'', r"'\''")), usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(handler: &str, id: &str) -> Key {
        Key::new(
            HandlerName::new(handler).unwrap(),
            MessageId::new(id).unwrap(),
        )
    }

    #[test]
    fn slashes_are_read_in_every_way() {
        let handlers = ["a", "a/b", "c"].map(|name| HandlerName::new(name).unwrap());
        assert_eq!(
            readings("a/b/1", &handlers),
            [
                key("a", "a/b/1"),
                key("a", "b/1"),
                key("a/b", "a/b/1"),
                key("a/b", "1"),
                key("c", "a/b/1"),
            ]
        );
        // No id is left behind the slash.
        assert_eq!(readings("c/", &handlers[2..]), [key("c", "c/")]);
    }

    #[test]
    fn choices_can_be_copied_into_a_shell() {
        let text = which_one(&[key("mail", "-1"), key("my mail", "it's")]);
        assert!(text.contains("\n  --handler mail -- -1\n"), "{text}");
        assert!(text.ends_with(r"--handler 'my mail' 'it'\''s'"), "{text}");
    }
}
