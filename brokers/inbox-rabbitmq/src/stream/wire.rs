//! Numbers and texts as both protocols have them: big-endian, with the length first.

/// Bytes end too early, or mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

type Read<T> = Result<T, Malformed>;

/// Reads from the front, and never past the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was not read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Read<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// A length of four bytes, and so many bytes.
    pub(crate) fn long(&mut self) -> Read<&'a [u8]> {
        let length = self.u32()?;
        self.take(usize::try_from(length).map_err(|_| Malformed)?)
    }

    /// A text of the stream protocol; one that is not there is empty.
    pub(crate) fn text(&mut self) -> Read<&'a str> {
        let length = self.u16()?;
        if length == u16::MAX {
            return Ok("");
        }
        let bytes = self.take(usize::from(length))?;
        std::str::from_utf8(bytes).map_err(|_| Malformed)
    }

    /// Pairs of texts.
    pub(crate) fn pairs(&mut self) -> Read<Vec<(&'a str, &'a str)>> {
        let mut pairs = Vec::new();
        for _ in 0..self.u32()? {
            pairs.push((self.text()?, self.text()?));
        }
        Ok(pairs)
    }
}

/// Bytes to be sent.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// What does not fit its length is cut there; settings that are longer are refused before.
    pub(crate) fn text(mut self, text: &str) -> Self {
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX - 1);
        self.0.extend(length.to_be_bytes());
        self.0.extend(text.bytes().take(usize::from(length)));
        self
    }

    /// As [`text`](Self::text), of up to four gigabytes.
    pub(crate) fn long(mut self, bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.extend(length.to_be_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn pairs<V: AsRef<str>>(mut self, pairs: &[(&str, V)]) -> Self {
        self = self.u32(u32::try_from(pairs.len()).unwrap_or(u32::MAX));
        for (name, value) in pairs {
            self = self.text(name).text(value.as_ref());
        }
        self
    }
}
