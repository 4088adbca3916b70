//! Who may call: bearer tokens.

use axum::http::{HeaderMap, header::AUTHORIZATION};

use crate::Token;

/// Whether a request shows one of `tokens`. Takes as long whichever it shows, and however much of
/// one a wrong token has right.
pub(super) fn is_allowed(tokens: &[Token], headers: &HeaderMap) -> bool {
    let Some(shown) = bearer(headers) else {
        return false;
    };
    let found = |found, token: &Token| found | token.matches(shown);
    tokens.iter().fold(false, found)
}

/// The token of a request that has exactly one `Authorization`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, more) = (values.next()?, values.next());
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    (more.is_none() && scheme.eq_ignore_ascii_case("bearer")).then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "a-token-of-16-characters";
    const OTHER: &str = "another-token-of-16";

    fn allowed(header: &str) -> bool {
        let tokens = [Token::new(ONE).unwrap(), Token::new(OTHER).unwrap()];
        let headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
        is_allowed(&tokens, &headers)
    }

    #[test]
    fn each_of_several_tokens_is_allowed_and_nothing_else() {
        assert!(allowed(&format!("Bearer {ONE}")));
        assert!(allowed(&format!("bearer  {OTHER}")));
        for wrong in ["", "Bearer", "Bearer ", ONE, &format!("Basic {ONE}")] {
            assert!(!allowed(wrong), "{wrong}");
        }
        assert!(!allowed(&format!("Bearer {ONE}x")));
        assert!(!allowed(&format!("Bearer {}", &ONE[1..])));
        assert!(!is_allowed(&[], &HeaderMap::new()));
    }

    #[test]
    fn two_authorizations_are_none() {
        let value: axum::http::HeaderValue = format!("Bearer {ONE}").parse().unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value.clone())]);
        let mut twice = headers.clone();
        twice.append(AUTHORIZATION, value);
        let tokens = [Token::new(ONE).unwrap()];
        assert!(is_allowed(&tokens, &headers));
        assert!(!is_allowed(&tokens, &twice));
    }
}
