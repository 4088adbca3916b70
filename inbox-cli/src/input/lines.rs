//! Lines of a file or of standard input, bounded in memory.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Counted from 1.
    pub(crate) number: u64,
    /// Its bytes, or its full length when it was over the limit and passed over.
    pub(crate) content: Result<Vec<u8>, u64>,
}

/// Reads lines of at most `limit` bytes. A longer one is passed over without being held in
/// memory, so a file that is one endless line does no harm.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    limit: usize,
    number: u64,
    /// The line read so far. Kept here rather than in the future, so that `next` can be dropped
    /// at any await point and called again.
    partial: Vec<u8>,
    length: u64,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(crate) fn new(reader: R, limit: usize) -> Self {
        Self {
            reader,
            limit,
            number: 0,
            partial: Vec::new(),
            length: 0,
        }
    }

    /// The next line that is not blank. Cancel-safe.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(if self.length == 0 {
                    None
                } else {
                    self.finish()
                });
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(chunk.len(), |at| at + 1);
            let content = chunk.get(..end.unwrap_or(taken)).unwrap_or_default();
            self.length += content.len() as u64;
            if self.partial.len() + content.len() <= self.limit {
                self.partial.extend_from_slice(content);
            }
            self.reader.consume(taken);
            if end.is_some()
                && let Some(line) = self.finish()
            {
                return Ok(Some(line));
            }
        }
    }

    /// Ends the present line; `None` when it is blank.
    fn finish(&mut self) -> Option<Line> {
        self.number += 1;
        let mut content = std::mem::take(&mut self.partial);
        let length = std::mem::take(&mut self.length);
        if length > content.len() as u64 {
            return Some(Line {
                number: self.number,
                content: Err(length),
            });
        }
        if content.last() == Some(&b'\r') {
            content.pop();
        }
        if self.number == 1 && content.starts_with(b"\xef\xbb\xbf") {
            content.drain(..3);
        }
        if content.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        Some(Line {
            number: self.number,
            content: Ok(content),
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    async fn lines(text: &[u8], limit: usize, buffer: usize) -> Vec<Line> {
        let mut lines = Lines::new(BufReader::with_capacity(buffer, text), limit);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(line);
        }
        found
    }

    fn ok(number: u64, text: &str) -> Line {
        Line {
            number,
            content: Ok(text.into()),
        }
    }

    #[tokio::test]
    async fn numbers_count_blank_lines_and_ends_are_cut() {
        let found = lines(b"\xef\xbb\xbfa\r\n\n  \nb\nlast", 100, 3).await;
        assert_eq!(found, [ok(1, "a"), ok(4, "b"), ok(5, "last")]);
        assert!(lines(b"", 100, 3).await.is_empty());
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_passed_over() {
        let found = lines(b"12345\n123456\n1\n1234567", 5, 4).await;
        assert_eq!(found[0], ok(1, "12345"));
        assert_eq!(found[1].content, Err(6));
        assert_eq!(found[2], ok(3, "1"));
        assert_eq!(found[3].content, Err(7));
    }
}
