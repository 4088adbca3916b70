//! What a server delivers at once: the records that were written at once.

use bytes::{Buf as _, Bytes};

use super::wire::{Malformed, Reader};

/// The bit of an entry's length that says that it is a batch of records.
const BATCH: u32 = 0x8000_0000;
const HEADER: usize = 48;

/// The records of one chunk that were not taken yet.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Which reading of the stream it belongs to.
    pub(crate) reading: u64,
    /// Milliseconds since 1970, as the server has it.
    pub(crate) written: i64,
    offset: u64,
    entries: Bytes,
    /// Records of the batch that is being read.
    batch: Bytes,
    /// Why it could not be read further.
    fault: Option<Fault>,
}

/// One record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes,
}

/// Why a chunk cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Malformed,
    /// A batch that its producer compressed, with this.
    Compressed(&'static str),
}

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Chunk {
    /// Reads what follows a delivery's subscription.
    pub(crate) fn read(reading: u64, mut bytes: Bytes) -> Result<Self, Malformed> {
        let mut header = Reader::new(&bytes);
        // Version and kind, and how many entries and records: those are as many as there are.
        header.take(8)?;
        let written = header.i64()?;
        header.u64()?;
        let offset = header.u64()?;
        header.u32()?;
        let length = usize::try_from(header.u32()?).map_err(|_| Malformed)?;
        header.take(8)?;
        bytes.advance(HEADER);
        if bytes.len() < length {
            return Err(Malformed);
        }
        bytes.truncate(length);
        Ok(Self {
            reading,
            written,
            offset,
            entries: bytes,
            batch: Bytes::new(),
            fault: None,
        })
    }

    /// The next record. After a fault, that one again.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, Fault> {
        let next = match self.fault {
            Some(fault) => Err(fault),
            None => self.read_next(),
        };
        self.fault = next.as_ref().err().copied();
        next
    }

    fn read_next(&mut self) -> Result<Option<Record>, Fault> {
        loop {
            let of_batch = !self.batch.is_empty();
            let from = match of_batch {
                true => &mut self.batch,
                false => &mut self.entries,
            };
            if from.is_empty() {
                return Ok(None);
            }
            let length = Reader::new(from).u32()?;
            if !of_batch && length & BATCH != 0 {
                self.batch = batch(from)?;
                continue;
            }
            from.advance(4);
            let bytes = split(from, length)?;
            let offset = self.offset;
            self.offset = offset.saturating_add(1);
            return Ok(Some(Record { offset, bytes }));
        }
    }
}

fn batch(entries: &mut Bytes) -> Result<Bytes, Fault> {
    let mut reader = Reader::new(entries);
    let kind = reader.u8()? >> 4 & 0b111;
    // How many records, and how many bytes they are when they are not compressed.
    reader.u16()?;
    reader.u32()?;
    let length = reader.u32()?;
    entries.advance(11);
    let records = split(entries, length)?;
    match kind {
        0 => Ok(records),
        1 => Err(Fault::Compressed("gzip")),
        2 => Err(Fault::Compressed("Snappy")),
        3 => Err(Fault::Compressed("LZ4")),
        4 => Err(Fault::Compressed("Zstandard")),
        _ => Err(Fault::Compressed("something unknown")),
    }
}

fn split(bytes: &mut Bytes, length: u32) -> Result<Bytes, Malformed> {
    let length = usize::try_from(length).map_err(|_| Malformed)?;
    if bytes.len() < length {
        return Err(Malformed);
    }
    Ok(bytes.split_to(length))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::stream::wire::Writer;

    /// A chunk whose first record has this offset.
    pub(crate) fn chunk(offset: u64, entries: &[u8]) -> Bytes {
        let head = Writer::default().u32(0).u32(0).u64(1_500).u64(1);
        let head = head.u64(offset).u32(0).long(entries).0;
        let (head, entries) = head.split_at(HEADER - 8);
        [head, &[0; 8], entries].concat().into()
    }

    fn all(mut chunk: Chunk) -> Result<Vec<(u64, Bytes)>, Fault> {
        let mut records = Vec::new();
        while let Some(record) = chunk.next()? {
            records.push((record.offset, record.bytes));
        }
        Ok(records)
    }

    fn batch(kind: u8) -> Vec<u8> {
        let records = Writer::default().long(b"two").long(b"three").0;
        let entry = Writer::default().u8(0x80 | kind << 4).u16(2).u32(16);
        let entry = entry.long(&records);
        Writer::default()
            .long(b"one")
            .0
            .into_iter()
            .chain(entry.0)
            .collect()
    }

    #[test]
    fn records_are_counted_through_batches() {
        let mut entries = batch(0);
        entries.extend(Writer::default().long(b"").0);
        let chunk = Chunk::read(7, chunk(41, &entries)).unwrap();
        assert_eq!((chunk.reading, chunk.written), (7, 1_500));
        let expected = [(41, "one"), (42, "two"), (43, "three"), (44, "")];
        let expected = expected.map(|(offset, text)| (offset, Bytes::from(text)));
        assert_eq!(all(chunk), Ok(expected.into()));
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let mut gzip = Chunk::read(7, chunk(0, &batch(1))).unwrap();
        assert!(gzip.next().is_ok());
        assert_eq!(gzip.next(), Err(Fault::Compressed("gzip")));
        assert_eq!(gzip.next(), Err(Fault::Compressed("gzip")));
        let mut short = Chunk::read(7, chunk(0, b"\0\0\0\x05abc")).unwrap();
        assert_eq!(short.next(), Err(Fault::Malformed));
        assert!(Chunk::read(7, Bytes::from_static(&[0; 47])).is_err());
        assert!(Chunk::read(7, chunk(0, b"abc").slice(..50)).is_err());
    }

    #[test]
    fn chunks_of_any_bytes_are_read() {
        let corpus = r"\x00\x00\x00\x03abc\x80\x00\x02\x00\x00\x00\x0c\x00\x00\x00\x0c\x00\x00\x00\x02ab\x00\x00\x00\x02cd
\x00\x00\x00\x00\x90\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01x
";
        hostile::hold(&hostile::Target::new("rabbitmq-chunks", corpus, |input| {
            let _ = Chunk::read(1, Bytes::copy_from_slice(input)).map(all);
            let _ = Chunk::read(1, chunk(3, input)).map(all);
            Ok(())
        }));
    }
}
