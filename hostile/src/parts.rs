//! Inputs of several parts.

/// The first line, and what follows it.
#[must_use]
pub fn first_line(input: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = input.splitn(2, |byte| *byte == b'\n');
    let first = parts.next().unwrap_or_default();
    (first, parts.next().unwrap_or_default())
}

/// A name and a value.
type Line<'a> = (&'a [u8], &'a [u8]);

/// Lines `name: value` up to an empty one, and what follows that.
#[must_use]
pub fn head(input: &[u8]) -> (Vec<Line<'_>>, &[u8]) {
    let (mut lines, mut rest) = (Vec::new(), input);
    while !rest.is_empty() {
        let (line, behind) = first_line(rest);
        rest = behind;
        if line.is_empty() {
            break;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        lines.push((name, value.get(1..).unwrap_or_default().trim_ascii()));
    }
    (lines, rest)
}
