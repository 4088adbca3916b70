//! Who is answered.

use http::{
    HeaderMap, Request, Uri,
    header::{AUTHORIZATION, HOST},
    uri::Authority,
};

use crate::Token;

/// Whom a service answers: those who show one of its tokens, at a host that is its own.
///
/// `Debug` shows how many tokens there are, and nothing of them.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    tokens: Vec<Token>,
    hosts: Vec<String>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is for another host: answer with status 421.
    WrongHost,
    /// It shows no token, or a wrong one: answer with status 401.
    Unauthorized,
}

impl Guard {
    /// Adds a token. Several are for rotation.
    pub fn add_token(&mut self, token: Token) {
        self.tokens.push(token);
    }

    /// Adds a host, such as `localhost` or `[::1]`, without a port. Without any, all are answered to. What listens
    /// on a loopback address without tokens needs it: a site can give its own name that address, and browsers take
    /// what is there for a part of the site (DNS rebinding).
    pub fn add_host(&mut self, host: impl Into<String>) {
        self.hosts.push(host.into());
    }

    /// How many tokens there are.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Lets a request pass that is for one of the hosts, and, if there are tokens, shows one of them as
    /// `Authorization: Bearer …`.
    ///
    /// # Errors
    /// [`Refusal`], the host's first.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        if !self.is_own_host(request) {
            return Err(Refusal::WrongHost);
        }
        if !self.tokens.is_empty() && !self.shows_token(request.headers()) {
            return Err(Refusal::Unauthorized);
        }
        Ok(())
    }

    /// Whether a request is for one of the hosts, or none are named.
    #[must_use]
    pub fn is_own_host<B>(&self, request: &Request<B>) -> bool {
        if self.hosts.is_empty() {
            return true;
        }
        let Some(host) = host(request.uri(), request.headers()) else {
            return false;
        };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => name,
            _ => host,
        };
        self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Whether a request shows one of the tokens as `Authorization: Bearer …`; never if there are none.
    #[must_use]
    pub fn shows_token(&self, headers: &HeaderMap) -> bool {
        authorization(headers).is_some_and(|(scheme, shown)| {
            scheme.eq_ignore_ascii_case("bearer") && self.is_token(shown)
        })
    }

    /// Whether this is one of the tokens. Takes as long whichever it is, and however much of one a wrong token
    /// has right.
    #[must_use]
    pub fn is_token(&self, shown: &str) -> bool {
        let found = |found, token: &Token| found | token.matches(shown);
        self.tokens.iter().fold(false, found)
    }
}

/// Scheme and credentials of a request that has exactly one `Authorization`.
#[must_use]
pub fn authorization(headers: &HeaderMap) -> Option<(&str, &str)> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, more) = (values.next()?, values.next());
    let (scheme, shown) = value.to_str().ok()?.split_once(' ')?;
    more.is_none().then(|| (scheme, shown.trim()))
}

/// Where a request was sent to, as its client says: a name, perhaps with a port.
#[must_use]
pub fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let authority = uri.authority().map(Authority::as_str);
    authority.or_else(|| headers.get(HOST)?.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "a-token-of-16-characters";
    const OTHER: &str = "another-token-of-16";

    fn guard(tokens: &[&str], hosts: &[&str]) -> Guard {
        let mut guard = Guard::default();
        for token in tokens {
            guard.add_token(Token::new(token).unwrap());
        }
        for host in hosts {
            guard.add_host(*host);
        }
        guard
    }

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn each_of_several_tokens_is_enough_and_nothing_else() {
        let guard = guard(&[ONE, OTHER], &[]);
        let check = |value: &str| guard.check(&request(&[("authorization", value)]));
        assert_eq!(check(&format!("Bearer {ONE}")), Ok(()));
        assert_eq!(check(&format!("bearer  {OTHER}")), Ok(()));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            ONE,
            &format!("Basic {ONE}"),
            &format!("Bearer {ONE}x"),
            &format!("Bearer {}", &ONE[1..]),
        ] {
            assert_eq!(check(wrong), Err(Refusal::Unauthorized), "{wrong}");
        }
        let (one, other) = (format!("Bearer {ONE}"), format!("Bearer {OTHER}"));
        let twice = request(&[("authorization", &one), ("authorization", &other)]);
        assert_eq!(guard.check(&twice), Err(Refusal::Unauthorized));
        assert_eq!(Guard::default().check(&request(&[])), Ok(()));
        let shown = request(&[("authorization", &one)]);
        assert!(!Guard::default().shows_token(shown.headers()));
    }

    #[test]
    fn only_named_hosts_are_answered_to_where_they_are_named() {
        let guard = guard(&[], &["localhost", "[::1]"]);
        let check = |host: &str| guard.check(&request(&[("host", host)]));
        for good in ["localhost", "LOCALHOST:8090", "[::1]", "[::1]:8090"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for wrong in ["evil.example:8090", "localhost.evil.example", ""] {
            assert_eq!(check(wrong), Err(Refusal::WrongHost), "{wrong}");
        }
        assert_eq!(guard.check(&request(&[])), Err(Refusal::WrongHost));
        // HTTP/2 has it in the URI.
        let mut newer = request(&[]);
        *newer.uri_mut() = "http://localhost:8090/".parse().unwrap();
        assert_eq!(guard.check(&newer), Ok(()));
    }
}
