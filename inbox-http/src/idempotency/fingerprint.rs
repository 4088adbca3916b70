//! What a key counts for, and what makes two requests the same.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderName, header, request::Parts};
use sha2::{Digest as _, Sha256};

use super::{key::IdempotencyKey, settings::Settings};
use crate::uri;

/// A digest of parts, each with its length, so that none runs into the next one.
struct Digest(Sha256);

impl Digest {
    fn new() -> Self {
        Self(Sha256::new())
    }

    fn part(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    fn headers<'a>(&mut self, parts: &Parts, names: impl IntoIterator<Item = &'a HeaderName>) {
        for name in names {
            self.part(name.as_str().as_bytes());
            let values = parts.headers.get_all(name);
            self.part(&values.iter().count().to_be_bytes());
            for value in values {
                self.part(value.as_bytes());
            }
        }
    }

    fn hex(self) -> String {
        hex::encode(self.0.finalize())
    }
}

/// The route of a request: axum's, where the router has said it, and the whole path elsewhere.
pub(super) fn route(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(matched) = parts.extensions.get::<axum::extract::MatchedPath>() {
        return matched.as_str();
    }
    uri::sent(parts).path()
}

/// The route as keys count for it: without the names of its parameters. They are the program's own affair, and one
/// that is renamed between a request and its copy must not let the copy run. No two routes differ in them alone.
fn place(parts: &Parts) -> Cow<'_, str> {
    #[cfg(feature = "axum")]
    if let Some(matched) = parts.extensions.get::<axum::extract::MatchedPath>() {
        return without_names(matched.as_str()).into();
    }
    route(parts).into()
}

/// `/orders/{id}/{*rest}` as `/orders/{}/{*}`. Braces that are doubled are text.
#[cfg(feature = "axum")]
fn without_names(route: &str) -> String {
    let mut text = String::with_capacity(route.len());
    let mut rest = route.chars().peekable();
    let mut is_name = false;
    while let Some(c) = rest.next() {
        match c {
            '{' | '}' if rest.next_if_eq(&c).is_some() => text.extend([c, c]),
            '{' => {
                is_name = true;
                text.push(c);
                text.extend(rest.next_if_eq(&'*'));
            }
            '}' => {
                is_name = false;
                text.push(c);
            }
            _ if is_name => {}
            _ => text.push(c),
        }
    }
    text
}

/// The message id of a key: of its method, route and caller too, and of one length however long it is.
pub(super) fn scope(settings: &Settings, parts: &Parts, key: &IdempotencyKey) -> String {
    let mut digest = Digest::new();
    digest.part(parts.method.as_str().as_bytes());
    digest.part(place(parts).as_bytes());
    let caller = settings.caller.as_ref().and_then(|caller| caller(parts));
    if let Some(caller) = caller {
        digest.part(caller.as_bytes());
    }
    digest.part(key.as_str().as_bytes());
    digest.hex()
}

/// The fingerprint of a request.
pub(super) fn fingerprint(settings: &Settings, parts: &Parts, body: &Bytes) -> String {
    let mut digest = Digest::new();
    // Nobody said who calls: a key must not show one user another's response.
    let credentials = settings.caller.is_none().then_some(header::AUTHORIZATION);
    if let Some(fingerprint) = &settings.fingerprint {
        digest.part(&fingerprint(parts, body));
        digest.headers(parts, &credentials);
        return digest.hex();
    }
    digest.part(parts.method.as_str().as_bytes());
    let uri = uri::sent(parts);
    digest.part(uri.path().as_bytes());
    digest.part(uri.query().unwrap_or_default().as_bytes());
    digest.headers(parts, &credentials);
    digest.headers(parts, &settings.fingerprint_headers);
    digest.part(body);
    digest.hex()
}

#[cfg(all(test, feature = "axum"))]
mod tests {
    use super::*;

    #[test]
    fn a_route_counts_without_the_names_of_its_parameters() {
        for (route, counted) in [
            ("/", "/"),
            ("/pay", "/pay"),
            ("/orders/{id}/pay", "/orders/{}/pay"),
            ("/{a}/{b}", "/{}/{}"),
            ("/files/{*path}", "/files/{*}"),
            ("/a-{id}", "/a-{}"),
            ("/{{id}}/{id}", "/{{id}}/{}"),
            ("/{{{id}", "/{{{}"),
            ("/\u{e4}/{\u{e4}}", "/\u{e4}/{}"),
        ] {
            assert_eq!(without_names(route), counted, "{route}");
        }
    }
}
