//! Makes text of what AMQP calls a short string and is none.
//!
//! A short string is UTF-8 by the protocol, and servers take any bytes. The client ends the connection at one
//! that is not UTF-8, and the server then gives all back that the connection had: for one such message, none
//! would get through. So each byte that is no text is replaced by a question mark before the client reads it,
//! and what stood there is kept for the delivery.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::held::Tag;

/// In bytes: kind, channel and length of a frame.
pub(crate) const HEAD: usize = 7;
pub(crate) const METHOD: u8 = 1;
pub(crate) const HEADER: u8 = 2;

/// The client reads tables within tables by a stack of its own, which has an end.
const DEPTH: usize = 32;
const REPLACEMENT: u8 = b'?';

/// As a frame has it.
type Channel = [u8; 2];

/// A part of a delivery that is no text, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoText {
    pub(crate) place: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// What was replaced in deliveries that nobody has taken yet. One channel of a connection consumes, so their
/// tags tell them from each other.
#[derive(Debug, Default)]
pub(crate) struct Replaced(Mutex<BTreeMap<Tag, Vec<NoText>>>);

impl Replaced {
    /// What was replaced in this delivery.
    pub(crate) fn take(&self, tag: Tag) -> Vec<NoText> {
        self.lock().remove(&tag).unwrap_or_default()
    }

    fn add(&self, tag: Tag, parts: Vec<NoText>) {
        if !parts.is_empty() {
            self.lock().entry(tag).or_default().extend(parts);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tag, Vec<NoText>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the frames of one connection in their order.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    /// The delivery that the next properties of its channel belong to. Frames of other channels may come in between.
    delivery: Option<(Channel, Tag)>,
}

impl Cleaner {
    /// Replaces what is no text in a frame of a method or of properties. What is malformed is left
    /// to the client.
    pub(crate) fn clean(&mut self, frame: &mut [u8], replaced: &Replaced) {
        let Some((head, content)) = frame.split_at_mut_checked(HEAD) else {
            return;
        };
        let &mut [kind, high, low, ..] = head else {
            return;
        };
        let channel = [high, low];
        let mut parts = Vec::new();
        let mut reader = Reader { rest: content };
        if kind == METHOD {
            let tag = reader.method(&mut parts).flatten();
            let is_others = self.delivery.is_some_and(|(its, _)| its != channel);
            if tag.is_some() || !is_others {
                self.delivery = tag.map(|tag| (channel, tag));
            }
        } else {
            let _ = reader.properties(&mut parts);
        }
        match self.delivery {
            Some((its, tag)) if its == channel => replaced.add(tag, parts),
            _ => {}
        }
    }
}

/// What is left of a frame. Everything answers `None` where it has no more.
struct Reader<'a> {
    rest: &'a mut [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a mut [u8]> {
        let rest = mem::take(&mut self.rest);
        let (taken, rest) = rest.split_at_mut_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn long(&mut self) -> Option<&'a mut [u8]> {
        let length = u32::from_be_bytes(self.number()?);
        self.take(usize::try_from(length).ok()?)
    }

    /// A short string, whose bytes are noted if they are no text.
    fn short(&mut self, place: Option<&'static str>, parts: &mut Vec<NoText>) -> Option<()> {
        let [length] = self.number()?;
        let text = self.take(length.into())?;
        if std::str::from_utf8(text).is_err() {
            if let Some(place) = place {
                let bytes = text.to_vec();
                parts.push(NoText { place, bytes });
            }
            replace(text);
        }
        Some(())
    }

    /// The tag of a delivery, if it is one.
    fn method(&mut self, parts: &mut Vec<NoText>) -> Option<Option<Tag>> {
        let (class, method) = (self.number()?, self.number()?);
        match (u16::from_be_bytes(class), u16::from_be_bytes(method)) {
            // A delivery.
            (60, 60) => {
                self.short(None, parts)?;
                let tag = Tag::from_be_bytes(self.number()?);
                self.take(1)?;
                self.short(Some("exchange"), parts)?;
                self.short(Some("routing key"), parts)?;
                Some(Some(tag))
            }
            // The end of a connection or of a channel. A server cuts off what is too long, in the middle of a letter.
            (10, 50) | (20, 40) => {
                self.take(2)?;
                self.short(None, parts)?;
                None
            }
            _ => None,
        }
    }

    /// In the order of their bits, from the highest. Those without a place are in no envelope.
    fn properties(&mut self, parts: &mut Vec<NoText>) -> Option<()> {
        // Class, weight and the length of the body.
        self.take(12)?;
        let flags = u16::from_be_bytes(self.number()?);
        let is_there = |bit: u32| flags & (1 << bit) != 0;
        let texts = |all: &[(u32, Option<&'static str>)], reader: &mut Self, parts: &mut _| {
            for (_, place) in all.iter().filter(|(bit, _)| is_there(*bit)) {
                reader.short(*place, parts)?;
            }
            Some(())
        };
        // The encoding of the content.
        texts(&[(15, Some("content-type")), (14, None)], self, parts)?;
        if is_there(13) {
            self.table(0, parts)?;
        }
        // Whether it is persistent, and its priority.
        self.take([12, 11].into_iter().filter(|bit| is_there(*bit)).count())?;
        let before_time = [
            (10, Some("correlation-id")),
            (9, Some("reply-to")),
            // When it expires.
            (8, None),
            (7, Some("message-id")),
        ];
        texts(&before_time, self, parts)?;
        if is_there(6) {
            self.take(8)?;
        }
        // The user, and what the last one means nobody knows.
        let after_time = [(5, Some("type")), (4, None), (3, Some("app-id")), (2, None)];
        texts(&after_time, self, parts)
    }

    /// A table has no place in an envelope, but the outermost one.
    fn table(&mut self, depth: usize, parts: &mut Vec<NoText>) -> Option<()> {
        let mut table = Reader { rest: self.long()? };
        while !table.rest.is_empty() {
            table.short((depth == 0).then_some("header name"), parts)?;
            table.value(depth, parts)?;
        }
        Some(())
    }

    fn value(&mut self, depth: usize, parts: &mut Vec<NoText>) -> Option<()> {
        let kind = self.take(1)?.first_mut()?;
        match *kind {
            b'F' | b'A' if depth >= DEPTH => {
                // Bytes are written the same way.
                *kind = b'x';
                self.long()?;
            }
            b'F' => self.table(depth + 1, parts)?,
            b'A' => {
                let mut list = Reader { rest: self.long()? };
                while !list.rest.is_empty() {
                    list.value(depth + 1, parts)?;
                }
            }
            b'S' | b'x' => drop(self.long()?),
            b'V' => {}
            b't' | b'b' | b'B' => drop(self.take(1)?),
            b's' | b'U' | b'u' => drop(self.take(2)?),
            b'I' | b'i' | b'f' => drop(self.take(4)?),
            b'D' => drop(self.take(5)?),
            b'L' | b'l' | b'd' | b'T' => drop(self.take(8)?),
            _ => return None,
        }
        Some(())
    }
}

fn replace(mut text: &mut [u8]) {
    while let Err(error) = std::str::from_utf8(text) {
        let rest = mem::take(&mut text);
        let Some((_, bad)) = rest.split_at_mut_checked(error.valid_up_to()) else {
            return;
        };
        let length = error.error_len().unwrap_or(bad.len());
        let Some((bad, rest)) = bad.split_at_mut_checked(length) else {
            return;
        };
        bad.fill(REPLACEMENT);
        text = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()], text].concat()
    }

    fn long(bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&length, bytes].concat()
    }

    fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
        [&[kind, 0, 1], &*long(content), &[0xce]].concat()
    }

    fn delivery(tag: u64, key: &[u8]) -> Vec<u8> {
        let tag = tag.to_be_bytes();
        let parts = [&[0, 60, 0, 60], &*short(b"c"), &tag, &[0], &short(b"")];
        frame(METHOD, &[parts.concat(), short(key)].concat())
    }

    fn properties(flags: u16, values: &[u8]) -> Vec<u8> {
        let head = [&[0; 12][..], &flags.to_be_bytes()].concat();
        frame(HEADER, &[&head, values].concat())
    }

    fn part(place: &'static str, bytes: &[u8]) -> NoText {
        let bytes = bytes.to_vec();
        NoText { place, bytes }
    }

    #[test]
    fn what_is_no_text_is_replaced_and_kept() {
        let (mut cleaner, replaced) = (Cleaner::default(), Replaced::default());
        let mut first = delivery(1, b"k\xff");
        cleaner.clean(&mut first, &replaced);
        assert_eq!(first, delivery(1, b"k?"));
        // What another channel has to say comes in between.
        let mut other = delivery(7, b"");
        other[2] = 2;
        other.truncate(HEAD);
        cleaner.clean(&mut other, &replaced);
        let inner = [short(b"\xfe"), b"t\x01".to_vec()].concat();
        let table =
            |name: &[u8], inner: &[u8]| long(&[short(name), b"F".to_vec(), long(inner)].concat());
        let values = |id: &[u8], table: Vec<u8>| [table, vec![2], short(id)].concat();
        let bits = 1 << 13 | 1 << 12 | 1 << 7;
        let mut second = properties(
            bits,
            &values("é\u{20ac}".as_bytes()[..4].into(), table(b"n\xff", &inner)),
        );
        cleaner.clean(&mut second, &replaced);
        let cleaned = [short(b"?"), b"t\x01".to_vec()].concat();
        assert_eq!(
            second,
            properties(bits, &values("é??".as_bytes(), table(b"n?", &cleaned)))
        );
        let known = [
            part("routing key", b"k\xff"),
            part("header name", b"n\xff"),
            part("message-id", &"é\u{20ac}".as_bytes()[..4]),
        ];
        assert_eq!(replaced.take(1), known);
        assert_eq!(replaced.take(1), []);
        // What is text is left.
        let mut third = delivery(2, "k\u{e9}".as_bytes());
        let copy = third.clone();
        cleaner.clean(&mut third, &replaced);
        assert_eq!((third, replaced.take(2)), (copy, vec![]));
    }

    #[test]
    fn the_end_of_a_connection_has_a_text() {
        let close = |text: &[u8]| {
            frame(
                METHOD,
                &[&[0, 10, 0, 50, 1, 64], &*short(text), &[0; 4]].concat(),
            )
        };
        let mut frame = close("no queue é".as_bytes().split_last().unwrap().1);
        Cleaner::default().clean(&mut frame, &Replaced::default());
        assert_eq!(frame, close(b"no queue ?"));
    }

    #[test]
    fn tables_are_read_to_a_depth() {
        let mut table = long(b"");
        for _ in 0..10_000 {
            table = long(&[short(b""), b"F".to_vec(), table].concat());
        }
        let mut frame = properties(1 << 13, &table);
        Cleaner::default().clean(&mut frame, &Replaced::default());
        // Behind the head, 14 bytes and a length: the length of a name, a kind, and the length of the next table.
        let kinds = frame.iter().skip(HEAD + 14 + 4 + 1).step_by(6);
        let kinds: Vec<u8> = kinds.take(DEPTH + 2).copied().collect();
        assert_eq!(kinds, [[b'F'; DEPTH].as_slice(), b"xF"].concat());
    }

    #[test]
    fn frames_of_any_bytes_are_cleaned_once() {
        let texts = properties(0xffff, &short(b"\xff").repeat(20));
        let table = properties(
            1 << 13,
            &long(&[short(b"\xff"), b"F".to_vec(), long(b"")].concat()),
        );
        let corpus = [delivery(1, b"\xff"), texts, table];
        let corpus: Vec<_> = corpus
            .iter()
            .map(|one| one.escape_ascii().to_string())
            .collect();
        let corpus = corpus.join("\n");
        hostile::hold(&hostile::Target::new("amqp-frames", &corpus, |input| {
            let (mut cleaner, replaced) = (Cleaner::default(), Replaced::default());
            let mut frame = input.to_vec();
            cleaner.clean(&mut frame, &replaced);
            let clean = frame.clone();
            cleaner.clean(&mut frame, &replaced);
            match frame == clean && frame.len() == input.len() {
                true => Ok(()),
                false => Err("cleaning it again changes it".into()),
            }
        }));
    }
}
