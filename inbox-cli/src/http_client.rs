//! HTTP clients of this program.

use anyhow::{Context as _, Result};
use reqwest::{Client, ClientBuilder, Url, redirect};

/// Builds a client for requests to `url`. Proxies are those of the environment, but for this machine: a
/// proxy is on another one, or would answer for what is not there.
pub(crate) fn build(
    url: &Url,
    set_up: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<Client> {
    // Fails only when another part of the process has installed one; then that one serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("inbox/", env!("CARGO_PKG_VERSION")))
        // A redirected POST loses its body or goes where nobody configured it to.
        .redirect(redirect::Policy::none());
    if is_here(url) {
        builder = builder.no_proxy();
    }
    set_up(builder).build().context("cannot set up HTTP")
}

/// Reads an http or https URL. `None`: the text is none.
pub(crate) fn parse(text: &str) -> Option<Url> {
    let url: Option<Url> = text.parse().ok();
    url.filter(|url| matches!(url.scheme(), "http" | "https"))
}

/// Whether a URL leads to this machine.
fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<std::net::IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => {
            let name = host.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_is_read() {
        assert!(parse("http://localhost:8080/hook").is_some());
        assert!(parse("https://u:p@[::1]/").is_some());
        for other in [
            "",
            "localhost:8080",
            "/hook",
            "ftp://h/",
            "http://",
            "file:///a",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn this_machine_has_many_names() {
        let is_here = |url: &str| is_here(&url.parse().unwrap());
        for url in [
            "http://localhost/",
            "https://LOCALHOST.:8080/a",
            "http://app.localhost/",
            "http://127.0.0.1:8080/",
            "http://127.8.8.8/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
        ] {
            assert!(is_here(url), "{url}");
        }
        for url in [
            "http://example.com/",
            "http://localhost.example.com/",
            "http://notlocalhost/",
            "http://10.0.0.1/",
            "http://[2001:db8::1]/",
        ] {
            assert!(!is_here(url), "{url}");
        }
    }
}
