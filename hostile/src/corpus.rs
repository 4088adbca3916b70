//! Inputs in a file, a line for each, written as a finding is told.

/// The inputs of a corpus. What follows a backslash and is no escape stays as it is.
pub(crate) fn read(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(unescape).collect()
}

fn unescape(line: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let (byte, length) = match (first, behind) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [escaped @ (b'\\' | b'\'' | b'"'), ..]) => (*escaped, 2),
            (b'\\', [b'x', high, low, ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => (b'\\', 1),
            },
            (other, _) => (*other, 1),
        };
        bytes.push(byte);
        rest = rest.get(length..).unwrap_or_default();
    }
    bytes
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_finding_tells_is_read_back() {
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&every.escape_ascii().to_string()), every);
        assert_eq!(unescape(r#"{"a":"\q\x4"}"#), br#"{"a":"\q\x4"}"#);
        assert_eq!(read("# a comment\na\n\nb"), [&b"a"[..], b"", b"b"]);
    }
}
