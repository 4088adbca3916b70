//! A response as it is kept: as text of HTTP/1.1, so that people can read it with the inbox's tools.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::settings::Settings;

/// The fingerprint of the request that it answers.
const FINGERPRINT: HeaderName = HeaderName::from_static("inbox-fingerprint");
/// Is there where the response itself was not kept.
const NOT_KEPT: HeaderName = HeaderName::from_static("inbox-not-kept");

/// What is said of one connection, or follows from the body.
const OF_CONNECTION: [HeaderName; 11] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    FINGERPRINT,
    NOT_KEPT,
];

/// A response, and which request it answers.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) fingerprint: String,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// `None` where the response was too large to be kept.
    pub(super) body: Option<Bytes>,
}

impl Kept {
    /// The part of a response that is to be kept.
    pub(super) fn of(
        settings: &Settings,
        fingerprint: &str,
        status: StatusCode,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Self {
        let mut kept = HeaderMap::with_capacity(headers.len());
        let named = named_by_connection(headers);
        for (name, value) in headers {
            let is_of_connection = OF_CONNECTION.contains(name) || named.contains(name);
            if !is_of_connection && (settings.keep_header)(name) {
                kept.append(name, value.clone());
            }
        }
        Self {
            fingerprint: fingerprint.into(),
            status,
            headers: kept,
            body: Some(body),
        }
    }

    /// The same without its response.
    pub(super) fn without_response(fingerprint: &str, status: StatusCode) -> Self {
        Self {
            fingerprint: fingerprint.into(),
            status,
            headers: HeaderMap::new(),
            body: None,
        }
    }

    pub(super) fn encode(&self) -> Bytes {
        let body = self.body.as_ref().map_or(0, Bytes::len);
        let head: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 4)
            .sum();
        let mut text = BytesMut::with_capacity(head + body + 160);
        text.put_slice(format!("HTTP/1.1 {} \r\n", self.status.as_u16()).as_bytes());
        put(&mut text, &FINGERPRINT, self.fingerprint.as_bytes());
        if self.body.is_none() {
            put(&mut text, &NOT_KEPT, b"1");
        }
        for (name, value) in &self.headers {
            put(&mut text, name, value.as_bytes());
        }
        text.put_slice(b"\r\n");
        text.put_slice(self.body.as_deref().unwrap_or_default());
        text.freeze()
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` when it is anything else.
    pub(super) fn decode(text: &Bytes) -> Option<Self> {
        let end = text.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let head = text.get(..end)?;
        let lines = head.iter().filter(|byte| **byte == b'\n').count();
        let mut fields = vec![httparse::EMPTY_HEADER; lines];
        let mut response = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(head) = response.parse(text).ok()? else {
            return None;
        };
        let mut headers = HeaderMap::with_capacity(response.headers.len());
        for field in response.headers.iter() {
            let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
            let value = HeaderValue::from_bytes(field.value).ok()?;
            headers.try_append(name, value).ok()?;
        }
        let fingerprint = headers.remove(FINGERPRINT)?;
        let is_kept = headers.remove(NOT_KEPT).is_none();
        Some(Self {
            fingerprint: fingerprint.to_str().ok()?.into(),
            status: StatusCode::from_u16(response.code?).ok()?,
            headers,
            body: is_kept.then(|| text.slice(head..)),
        })
    }
}

/// The headers that `Connection` says are of the connection, too.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
    names.collect()
}

fn put(text: &mut BytesMut, name: &HeaderName, value: &[u8]) {
    text.put_slice(name.as_str().as_bytes());
    text.put_slice(b": ");
    text.put_slice(value);
    text.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use inbox::HandlerName;
    use proptest::prelude::*;

    use super::*;

    fn settings() -> Settings {
        Settings::draft(HandlerName::new("h").unwrap())
    }

    proptest! {
        #[test]
        fn what_is_kept_comes_back_byte_for_byte(
            status in 100_u16..600,
            headers in proptest::collection::vec(("[a-z][a-z0-9-]{0,20}", "[!-~]([ -~\u{80}-\u{ff}]{0,30}[!-~])?"), 0..20),
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut map = HeaderMap::new();
            for (name, value) in &headers {
                let name = HeaderName::try_from(name).unwrap();
                if !OF_CONNECTION.contains(&name) && name != header::SET_COOKIE && name != header::DATE {
                    map.append(name, HeaderValue::try_from(value).unwrap());
                }
            }
            let status = StatusCode::from_u16(status).unwrap();
            let body = Bytes::from(body);
            let kept = Kept::of(&settings(), "f", status, &map, body.clone());
            let back = Kept::decode(&kept.encode()).unwrap();
            prop_assert_eq!(back.status, status);
            prop_assert_eq!(back.headers, map);
            prop_assert_eq!(back.body, Some(body));
            prop_assert_eq!(back.fingerprint, "f");
        }

        #[test]
        fn what_is_nothing_of_the_kind_is_nothing(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Kept::decode(&Bytes::from(text)).is_none());
        }
    }

    #[test]
    fn what_belongs_to_the_connection_and_credentials_are_not_kept() {
        let mut headers = HeaderMap::new();
        for name in [
            header::CONNECTION,
            header::CONTENT_LENGTH,
            header::SET_COOKIE,
            header::DATE,
            FINGERPRINT,
            NOT_KEPT,
            header::ETAG,
        ] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        for name in ["keep-alive", "proxy-connection", "x-hop", "x-last"] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        for named in ["keep-alive, X-Hop", ",x-last ,a b,"] {
            headers.append(header::CONNECTION, HeaderValue::from_static(named));
        }
        let kept = Kept::of(&settings(), "f", StatusCode::OK, &headers, Bytes::new());
        let back = Kept::decode(&kept.encode()).unwrap();
        assert_eq!(back.headers.keys().collect::<Vec<_>>(), [header::ETAG]);
    }

    #[test]
    fn a_response_may_have_many_headers_and_lines() {
        let mut headers = HeaderMap::new();
        for number in 0..20_000 {
            let name = HeaderName::try_from(format!("x-{number}")).unwrap();
            headers.insert(name, HeaderValue::from_static(""));
        }
        let body = Bytes::from("\r\n".repeat(10_000));
        let kept = Kept::of(&settings(), "f", StatusCode::OK, &headers, body.clone());
        let back = Kept::decode(&kept.encode()).unwrap();
        assert_eq!((back.headers, back.body), (headers, Some(body)));
    }

    #[test]
    fn a_response_that_was_not_kept_says_so() {
        let kept = Kept::without_response("f", StatusCode::CREATED);
        let back = Kept::decode(&kept.encode()).unwrap();
        assert_eq!((back.status, back.body), (StatusCode::CREATED, None));
    }
}
