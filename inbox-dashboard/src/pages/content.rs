//! Payloads and results: on the page of a message, and as downloads.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use inbox::Record;
use maud::{Markup, html};

use crate::{
    dashboard::Shared,
    fault::Fault,
    query::{Parameters, link_to},
    reading::within,
    text,
};

/// How much of it is on the page, in bytes.
const SHOWN: usize = 64 * 1024;

/// The longest JSON text that is laid out.
const LAID_OUT: usize = 1024 * 1024;

/// How much is shown of what is no text, in bytes.
const HEX: usize = 4096;

/// Payload and result on the page of their message.
pub(super) fn section(shared: &Shared, record: &Record) -> Markup {
    html! {
        h2 { "Payload" }
        @match record.payload_bytes {
            None => p { "It was dropped." },
            Some(bytes) => {
                p {
                    (text::count(bytes)) " bytes"
                    @if let Some(content_type) = &record.content_type {
                        ", " (text::one_line(content_type.as_str(), 255))
                    }
                    @if !shared.options.hides_payloads {
                        ", " a href=(link_to("payload", &record.key)) download { "download" }
                    }
                }
                @if shared.options.hides_payloads {
                    p.quiet { "Hidden here." }
                } @else if let Some(payload) = &record.payload {
                    (shown(payload))
                }
            }
        }
        @if let Some(result) = &record.result {
            h2 { "Result" }
            p {
                (text::count(result.len() as u64)) " bytes"
                @if !shared.options.hides_payloads {
                    ", " a href=(link_to("result", &record.key)) download { "download" }
                }
            }
            @if shared.options.hides_payloads { p.quiet { "Hidden here." } } @else { (shown(result)) }
        }
    }
}

/// Bytes as people read them: JSON laid out, other text as it is, anything else in hexadecimal.
fn shown(bytes: &[u8]) -> Markup {
    let Ok(plain) = std::str::from_utf8(bytes) else {
        let cut = &bytes[..bytes.len().min(HEX)];
        return with_cut(&hex(cut), cut.len() < bytes.len());
    };
    let laid_out = (plain.len() <= LAID_OUT).then(|| laid_out(plain)).flatten();
    let whole = laid_out.as_deref().unwrap_or(plain);
    let end = whole.floor_char_boundary(SHOWN);
    let visible = text::written_out(&whole[..end], |c| matches!(c, '\n' | '\t'));
    with_cut(&visible, end < whole.len())
}

fn with_cut(shown: &str, is_cut: bool) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Content" { pre { (shown) } }
        @if is_cut { p.note role="note" { "There is more: this is the beginning." } }
    }
}

/// JSON with a line for each member. Numbers stay as they were written, however long.
fn laid_out(text: &str) -> Option<String> {
    let value: &serde_json::value::RawValue = serde_json::from_str(text).ok()?;
    Some(crate::json_layout::lay_out(value.get()))
}

/// Sixteen bytes a line, with their places, as `hexdump` shows them.
fn hex(bytes: &[u8]) -> String {
    let mut lines = String::new();
    for (number, line) in bytes.chunks(16).enumerate() {
        let digits: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let plain = line.iter().map(|byte| {
            let is_plain = byte.is_ascii_graphic() || *byte == b' ';
            if is_plain { char::from(*byte) } else { '.' }
        });
        let plain: String = plain.collect();
        lines.push_str(&format!(
            "{:08x}  {:<47}  {plain}\n",
            number * 16,
            digits.join(" ")
        ));
    }
    lines
}

pub(crate) async fn payload(
    State(shared): State<Arc<Shared>>,
    parameters: Parameters,
) -> Result<Response, Fault> {
    download(&shared, parameters, "payload", |record| record.payload).await
}

pub(crate) async fn result(
    State(shared): State<Arc<Shared>>,
    parameters: Parameters,
) -> Result<Response, Fault> {
    download(&shared, parameters, "result", |record| record.result).await
}

/// Bytes as they are, which no browser shows or runs: as a file of no particular type.
async fn download(
    shared: &Shared,
    mut parameters: Parameters,
    name: &'static str,
    part: impl FnOnce(Record) -> Option<Bytes>,
) -> Result<Response, Fault> {
    let key = parameters.key()?;
    parameters.end()?;
    if shared.options.hides_payloads {
        return Err(Fault::hidden());
    }
    let record = within(shared.store.get(&key)).await?;
    let record = record.ok_or_else(Fault::no_such_message)?;
    let bytes = part(record).ok_or_else(|| Fault::not_found(format!("it has no {name}")))?;
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    let disposition = format!("attachment; filename=\"{name}\"");
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    let of_no_type = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, of_no_type);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_what_they_are() {
        assert!(
            shown(b"{\"a\":[1.0,\"<b>\"]}")
                .into_string()
                .contains("\n  &quot;a&quot;: [\n")
        );
        assert!(
            shown("ä\u{202e}".as_bytes())
                .into_string()
                .contains("ä\\u{202e}")
        );
        let bytes = shown(&[0, 0xff, b'a']).into_string();
        assert!(bytes.contains("00000000  00 ff 61"), "{bytes}");
        let long = "ä".repeat(SHOWN);
        let cut = shown(long.as_bytes()).into_string();
        assert!(cut.contains("this is the beginning") && cut.len() < SHOWN + 1000);
    }
}
