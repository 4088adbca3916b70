//! Who may come in, who that is, and from where.

use std::fmt;

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderName, Method,
        header::{COOKIE, ORIGIN},
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use inbox_http::{Guard, Token, authorization, host};
use subtle::ConstantTimeEq as _;

use inbox::OperatorName;

use crate::{fault::Fault, text};

/// The operator of a request: who is named in the audit log. An application's own authentication puts it into
/// the request's extensions; the dashboard trusts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator(String);

impl Operator {
    /// The longest name, in characters; what is longer is cut.
    pub const MOST: usize = 100;

    /// An operator of that name. Control characters and the like are written out.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(text::one_line(name, Self::MOST))
    }

    /// The name, as messages keep it with what its bearer did.
    pub(crate) fn signature(&self) -> Option<OperatorName> {
        let end = self.0.floor_char_boundary(OperatorName::MAX_BYTES);
        OperatorName::new(&self.0[..end]).ok()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is asked of callers.
#[derive(Debug, Default)]
pub(crate) struct Access {
    pub(crate) guard: Guard,
    pub(crate) users: Vec<(String, Token)>,
    pub(crate) operator_header: Option<HeaderName>,
}

impl Access {
    /// Whether the dashboard authenticates by itself.
    pub(crate) fn is_needed(&self) -> bool {
        self.guard.tokens() > 0 || !self.users.is_empty()
    }

    /// Who sends the request, if it may be sent.
    pub(crate) fn admit(&self, request: &Request) -> Result<Operator, Fault> {
        if !self.guard.is_own_host(request) {
            return Err(Fault::wrong_host());
        }
        let signed_in = if self.is_needed() {
            Some(
                self.sign_in(request.headers())
                    .ok_or_else(Fault::unauthorized)?,
            )
        } else {
            None
        };
        if let Some(operator) = request.extensions().get::<Operator>() {
            return Ok(operator.clone());
        }
        let header = self.operator_header.as_ref();
        let header = header.and_then(|name| request.headers().get(name));
        let header = header.map(|name| String::from_utf8_lossy(name.as_bytes()));
        let header = header.filter(|name| !name.is_empty());
        Ok(header
            .map(|name| Operator::new(&name))
            .or(signed_in)
            .unwrap_or_else(|| Operator::new("anonymous")))
    }

    fn sign_in(&self, headers: &HeaderMap) -> Option<Operator> {
        if self.guard.shows_token(headers) {
            return Some(Operator::new("token"));
        }
        let (_, shown) =
            authorization(headers).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))?;
        let shown = String::from_utf8(BASE64.decode(shown).ok()?).ok()?;
        let (name, password) = shown.split_once(':')?;
        let is_user = self.users.iter().fold(false, |found, (own, own_password)| {
            let is_own = own.as_bytes().ct_eq(name.as_bytes());
            found | (bool::from(is_own) & own_password.matches(password))
        });
        // A browser has no other way to show a token; the name is as good as its user is honest.
        let name = if name.is_empty() { "token" } else { name };
        (is_user | self.guard.is_token(password)).then(|| Operator::new(name))
    }
}

/// Whether a request changes nothing by its method.
pub(crate) fn only_looks(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Refuses a request that a page of another site has made the browser send. Browsers say so themselves;
/// what is not a browser says nothing.
pub(crate) fn check_origin(request: &Request) -> Result<(), Fault> {
    const FOREIGN: &str = "the browser says that a page of another origin sends it";
    let headers = request.headers();
    if let Some(site) = headers.get("sec-fetch-site") {
        return match site.as_bytes() {
            b"same-origin" => Ok(()),
            _ => Err(Fault::foreign(FOREIGN)),
        };
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or_default();
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    if authority.is_some() && authority == host(request.uri(), headers) {
        Ok(())
    } else {
        Err(Fault::foreign(FOREIGN))
    }
}

/// The secret that a form has to repeat: another site can make a browser send a form with the cookie, but
/// cannot read what is in it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FormToken(String);

impl FormToken {
    const COOKIE: &str = "inbox-form";

    /// The one that the browser has, if it has one.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let cookies = headers.get_all(COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|value| value.split(';'));
        let token = pairs.find_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            (name == Self::COOKIE).then_some(value)
        })?;
        let is_ours = token.len() == 32 && token.bytes().all(|b| b.is_ascii_hexdigit());
        is_ours.then(|| Self(token.to_owned()))
    }

    /// A new one; `None` when the system has no random numbers.
    pub(crate) fn random() -> Option<Self> {
        let number =
            (u128::from(getrandom::u64().ok()?) << 64) | u128::from(getrandom::u64().ok()?);
        Some(Self(format!("{number:032x}")))
    }

    /// One that no form can repeat.
    pub(crate) fn none() -> Self {
        Self(String::new())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_repeated(&self, shown: &str) -> bool {
        let is_same: bool = self.0.as_bytes().ct_eq(shown.as_bytes()).into();
        is_same && !self.0.is_empty()
    }

    /// For the folder that the pages are in, as nothing else is said.
    pub(crate) fn set_cookie(&self) -> String {
        format!("{}={}; SameSite=Strict; HttpOnly", Self::COOKIE, self.0)
    }
}

impl fmt::Debug for FormToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FormToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::HeaderValue};

    use super::*;

    const TOKEN: &str = "a-token-of-16-characters";

    fn request(headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    fn name(access: &Access, authorization: &str) -> Option<String> {
        let request = request(&[("authorization", authorization)]);
        let admitted = access.admit(&request).ok();
        admitted.map(|operator| operator.name().to_owned())
    }

    #[test]
    fn operators_of_a_header_have_names_of_any_script() {
        let access = Access {
            operator_header: Some(HeaderName::from_static("x-operator")),
            ..Access::default()
        };
        for (sent, name) in [
            ("Zoë Đặng".as_bytes(), "Zoë Đặng"),
            (&b"ada"[..], "ada"),
            (&b"Zo\xeb"[..], "Zo\u{fffd}"),
            (&b""[..], "anonymous"),
        ] {
            let sent = HeaderValue::from_bytes(sent).unwrap();
            let request = Request::builder().uri("/").header("x-operator", sent);
            let request = request.body(Body::empty()).unwrap();
            let operator = access.admit(&request).unwrap();
            assert_eq!(operator.name(), name);
            assert_eq!(operator.signature().unwrap().as_str(), name);
        }
    }

    #[test]
    fn tokens_and_users_are_admitted_by_name() {
        let password = "ada's-password-of-16";
        let mut access = Access {
            users: vec![("ada".to_owned(), Token::new(password).unwrap())],
            ..Access::default()
        };
        access.guard.add_token(Token::new(TOKEN).unwrap());
        let basic = |text: String| format!("Basic {}", BASE64.encode(text));
        let admitted = |name: &str| Some(name.to_owned());
        assert_eq!(name(&access, &format!("Bearer {TOKEN}")), admitted("token"));
        assert_eq!(
            name(&access, &basic(format!(":{TOKEN}"))),
            admitted("token")
        );
        assert_eq!(
            name(&access, &basic(format!("bob:{TOKEN}"))),
            admitted("bob")
        );
        assert_eq!(
            name(&access, &basic(format!("ada:{password}"))),
            admitted("ada")
        );
        for wrong in [
            basic(format!("bob:{password}")),
            basic("ada:".to_owned()),
            basic("ada".to_owned()),
            format!("Bearer {password}"),
            format!("Bearer {TOKEN}x"),
            "Basic ?".to_owned(),
            String::new(),
        ] {
            assert_eq!(name(&access, &wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_operator_is_who_the_application_says() {
        let access = Access {
            operator_header: Some(HeaderName::from_static("x-user")),
            ..Access::default()
        };
        let mut request = request(&[("x-user", "ada\tx")]);
        assert_eq!(access.admit(&request).unwrap().name(), "ada x");
        request
            .extensions_mut()
            .insert(Operator::new("bob\u{202e}"));
        assert_eq!(access.admit(&request).unwrap().name(), "bob\\u{202e}");
        let nobody = Access::default().admit(&Request::new(Body::empty()));
        assert_eq!(nobody.unwrap().name(), "anonymous");
    }

    #[test]
    fn what_another_site_sends_is_refused() {
        let is_good = |headers: &[(&str, &str)]| check_origin(&request(headers)).is_ok();
        assert!(is_good(&[]));
        assert!(is_good(&[("sec-fetch-site", "same-origin")]));
        assert!(is_good(&[("origin", "https://a:8"), ("host", "a:8")]));
        for site in ["cross-site", "same-site", "none", ""] {
            assert!(!is_good(&[("sec-fetch-site", site)]), "{site}");
        }
        for origin in ["https://b", "null", "", "https://a.evil"] {
            assert!(!is_good(&[("origin", origin), ("host", "a")]), "{origin}");
        }
    }

    #[test]
    fn form_tokens_are_found_among_cookies() {
        let token = FormToken::random().unwrap();
        assert_ne!(FormToken::random(), Some(token.clone()));
        let cookies = format!("a=b; inbox-form={}; c", token.as_str());
        let headers = request(&[("cookie", &cookies)]);
        assert_eq!(FormToken::of(headers.headers()), Some(token.clone()));
        assert!(token.is_repeated(token.as_str()) && !token.is_repeated(""));
        let odd = request(&[("cookie", "inbox-form=; inbox-form=x")]);
        assert_eq!(FormToken::of(odd.headers()), None);
    }
}
