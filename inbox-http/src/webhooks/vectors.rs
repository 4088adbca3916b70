//! Signatures from the providers' documentation and libraries, and what is near to them.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac as _};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use sha1::Sha1;

use super::{Delivery, Provider, Signature, VerifyError};

struct Sent {
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

fn sent(uri: &'static str, headers: &[(&'static str, &str)], body: &'static str) -> Sent {
    let headers = headers.iter().map(|(name, value)| {
        let value = HeaderValue::from_str(value).unwrap();
        (HeaderName::from_static(name), value)
    });
    Sent {
        uri: Uri::from_static(uri),
        headers: headers.collect(),
        body: body.into(),
    }
}

impl Sent {
    fn delivery(&self) -> Delivery<'_> {
        Delivery {
            uri: &self.uri,
            headers: &self.headers,
            body: &self.body,
        }
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Checked at this time, in seconds since 1970.
fn check(provider: &Provider, sent: &Sent, seconds: u64) -> Result<(), VerifyError> {
    provider.verify(sent.delivery(), at(seconds))
}

/// The vector passes with its secret alone and among others; with another body, another secret or no
/// signature it does not.
fn judge(
    new: impl Fn(&[&str]) -> Provider,
    secret: &str,
    signature: &'static str,
    sent: &Sent,
    seconds: u64,
) {
    assert_eq!(check(&new(&[secret]), sent, seconds), Ok(()));
    let other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    assert_eq!(check(&new(&[other, secret]), sent, seconds), Ok(()));
    let wrong = Err(VerifyError::Wrong);
    assert_eq!(check(&new(&[other]), sent, seconds), wrong);
    let altered = Sent {
        uri: sent.uri.clone(),
        headers: sent.headers.clone(),
        body: [&sent.body[..], b"&a=b"].concat().into(),
    };
    assert_eq!(check(&new(&[secret]), &altered, seconds), wrong);
    let mut unsigned = Sent {
        uri: sent.uri.clone(),
        headers: sent.headers.clone(),
        body: sent.body.clone(),
    };
    unsigned.headers.remove(signature);
    let missing = Err(VerifyError::Missing);
    assert_eq!(check(&new(&[secret]), &unsigned, seconds), missing);
    // Two of them: it is not decided here which one counts.
    let value = sent.headers[signature].clone();
    unsigned.headers.append(signature, value.clone());
    unsigned.headers.append(signature, value);
    assert_eq!(check(&new(&[secret]), &unsigned, seconds), missing);
}

/// docs.github.com, "Validating webhook deliveries".
#[test]
fn github() {
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let sent = sent("/", &[("x-hub-signature-256", signature)], "Hello, World!");
    let new = |secrets: &[&str]| Provider::github(secrets).unwrap();
    judge(
        new,
        "It's a Secret to Everybody",
        "x-hub-signature-256",
        &sent,
        0,
    );
}

/// docs.slack.dev, "Verifying requests from Slack".
#[test]
fn slack() {
    let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let headers = [
        ("x-slack-signature", signature),
        ("x-slack-request-timestamp", "1531420618"),
    ];
    let sent = sent("/", &headers, body);
    let new = |secrets: &[&str]| Provider::slack(secrets).unwrap();
    let secret = "8f742231b10e8888abcd99yyyzzz85a5";
    judge(new, secret, "x-slack-signature", &sent, 1_531_420_618);
    let at = |seconds| check(&new(&[secret]), &sent, seconds);
    assert_eq!(at(1_531_420_618 + 300), Ok(()));
    assert_eq!(at(1_531_420_618 - 300), Ok(()));
    assert_eq!(at(1_531_420_618 + 301), Err(VerifyError::OutOfTime));
    assert_eq!(at(1_531_420_618 - 301), Err(VerifyError::OutOfTime));
}

/// The specification of Standard Webhooks.
#[test]
fn standard_webhooks() {
    let headers = [
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        (
            "webhook-signature",
            "v1,bm9ldHUjKzFob2VudXRob2VodWUzMjRvdWVvdW9ldQo= v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ),
    ];
    let sent = sent("/", &headers, r#"{"test": 2432232314}"#);
    let new = |secrets: &[&str]| Provider::standard_webhooks(secrets).unwrap();
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    judge(new, secret, "webhook-signature", &sent, 1_614_265_330);
    let late = check(&new(&[secret]), &sent, 1_614_265_330 + 301);
    assert_eq!(late, Err(VerifyError::OutOfTime));
    assert!(Provider::standard_webhooks(["whsec_"]).is_err());
    assert!(Provider::standard_webhooks(["no base64!"]).is_err());
}

/// Defect: the limit was that of the other signatures alone.
#[test]
fn a_request_of_standard_webhooks_has_not_many_signatures() {
    let provider = Provider::standard_webhooks(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
    let right = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let with = |others: usize| {
        let signatures = format!("{}{right}", "v1, ".repeat(others));
        let headers = [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", &*signatures),
        ];
        let sent = sent("/", &headers, r#"{"test": 2432232314}"#);
        let head = provider.verify_head(sent.delivery(), at(1_614_265_330));
        assert_eq!(check(&provider, &sent, 1_614_265_330), head);
        head
    };
    assert_eq!(with(31), Ok(()));
    assert_eq!(with(32), Err(VerifyError::Missing));
}

/// Twilio's documentation and libraries: a form, and JSON whose digest is in the URL.
#[test]
fn twilio() {
    let new = |tokens: &[&str]| Provider::twilio(tokens, "https://mycompany.com/").unwrap();
    let form = ("content-type", "application/x-www-form-urlencoded");
    let body = "Digits=1234&CallSid=CA1234567890ABCDE&To=%2B18005551212&Caller=%2B14158675309&From=%2B14158675309";
    let headers = [form, ("x-twilio-signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=")];
    let voice = sent("/myapp.php?foo=1&bar=2", &headers, body);
    judge(new, "12345", "x-twilio-signature", &voice, 0);

    let headers = [
        ("content-type", "application/json"),
        ("x-twilio-signature", "a9nBmqA0ju/hNViExpshrM61xv4="),
    ];
    let uri = "/myapp.php?foo=1&bar=2&bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620";
    let json = sent(uri, &headers, r#"{"property": "value", "boolean": true}"#);
    judge(new, "12345", "x-twilio-signature", &json, 0);
}

/// Of JSON only the URL is signed, and so would an empty form be: the digest in the URL tells them apart.
#[test]
fn a_signature_of_json_of_twilio_is_not_that_of_a_form() {
    let provider = Provider::twilio(["12345"], "https://mycompany.com").unwrap();
    let uri = "/myapp.php?foo=1&bar=2&bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620";
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("x-twilio-signature", "a9nBmqA0ju/hNViExpshrM61xv4="),
    ];
    for body in ["", r#"{"property": "value", "boolean": true}"#] {
        let form = sent(uri, &headers, body);
        assert_eq!(
            check(&provider, &form, 0),
            Err(VerifyError::Wrong),
            "{body}"
        );
    }
}

/// In memory, short ones are many times as large as the form, and anybody can send it.
#[test]
fn a_form_of_twilio_has_not_many_parameters() {
    let provider = Provider::twilio(["12345"], "https://mycompany.com").unwrap();
    let form = |parameters: usize| {
        let names = (0..parameters).map(|number| format!("{number:06}"));
        let names: Vec<String> = names.collect();
        let mac = <Hmac<Sha1> as KeyInit>::new_from_slice(b"12345").unwrap();
        let mac = mac.chain_update(format!("https://mycompany.com/{}", names.concat()));
        let signature = BASE64.encode(mac.finalize().into_bytes());
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("x-twilio-signature", &*signature),
        ];
        let mut sent = sent("/", &headers, "");
        sent.body = names.join("&").into();
        sent
    };
    assert_eq!(check(&provider, &form(1_000), 0), Ok(()));
    let many = check(&provider, &form(1_001), 0);
    assert_eq!(many, Err(VerifyError::Missing));
}

/// Stripe's scheme, computed with `openssl dgst -sha256 -hmac`: its documentation has no secret. There are
/// signatures of an older scheme in the header, and of another secret.
#[test]
fn stripe() {
    let signature = "t=1492774577,v1=5257a869e7ecebeda32affa62cdca3fa51cad7e77a0e56ff536d0ce8e108d8bd,v1=a2f9680b7feeb431729bd8d607c4d671f9b61b57aa013ce54224930c04962ece,v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39";
    let body = r#"{"id":"evt_1","type":"charge.succeeded"}"#;
    let sent = sent("/", &[("stripe-signature", signature)], body);
    let new = |secrets: &[&str]| Provider::stripe(secrets).unwrap();
    judge(new, "whsec_test", "stripe-signature", &sent, 1_492_774_577);
    let late = check(&new(&["whsec_test"]), &sent, 1_492_774_577 + 301);
    assert_eq!(late, Err(VerifyError::OutOfTime));
}

/// A head has room for a hundred thousand, and anybody can send it: the body is not to be hashed for each.
#[test]
fn a_request_has_not_many_signatures() {
    let provider = Provider::stripe(["whsec_test"]).unwrap();
    let signature = "a2f9680b7feeb431729bd8d607c4d671f9b61b57aa013ce54224930c04962ece";
    let body = r#"{"id":"evt_1","type":"charge.succeeded"}"#;
    let with = |others: usize, body: &'static str| {
        let others = "v1=,".repeat(others);
        let header = format!("t=1492774577,{others}v1={signature}");
        sent("/", &[("stripe-signature", &header)], body)
    };
    assert_eq!(check(&provider, &with(31, body), 1_492_774_577), Ok(()));
    let mut large = with(100_000, "");
    large.body = vec![b'x'; 2 * 1024 * 1024].into();
    for many in [with(32, body), large] {
        let head = provider.verify_head(many.delivery(), at(1_492_774_577));
        assert_eq!(head, Err(VerifyError::Missing));
        let whole = check(&provider, &many, 1_492_774_577);
        assert_eq!(whole, Err(VerifyError::Missing));
    }
}

/// Shopify's scheme, computed with `openssl dgst -sha256 -hmac … -binary | base64`.
#[test]
fn shopify() {
    let header = (
        "x-shopify-hmac-sha256",
        "qBvrsZF7RfB1iS6BX6IHqJTp5L911P7intnPeTPsH0I=",
    );
    let sent = sent("/", &[header], r#"{"id":820982911946154508}"#);
    let new = |secrets: &[&str]| Provider::shopify(secrets).unwrap();
    judge(new, "hush", "x-shopify-hmac-sha256", &sent, 0);
}

/// The HMACs of RFC 2202 (SHA-1) and RFC 4231, their second test case, as the builder for one's own reads them.
#[test]
fn each_hash_of_the_builder() {
    let header = || HeaderName::from_static("x-signature");
    let (secret, body) = ("Jefe", "what do ya want for nothing?");
    let sha1 = "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79";
    let sha256 = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
    let sha512 = "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554\
                  9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737";
    let all = [
        (Signature::sha1(header()), sha1),
        (Signature::sha256(header()), sha256),
        (Signature::sha512(header()), sha512),
    ];
    for (signature, hex) in &all {
        let new = |signature: Signature, secrets: &[&str]| {
            Provider::new("own", signature.secrets(secrets).unwrap())
        };
        let sent_with = |text: &str| sent("/", &[("x-signature", text)], body);
        let plain = |secrets: &[&str]| new(signature.clone(), secrets);
        judge(plain, secret, "x-signature", &sent_with(hex), 0);
        let base64 = BASE64.encode(hex::decode(hex).unwrap());
        let in_base64 = |secrets: &[&str]| new(signature.clone().base64(), secrets);
        judge(in_base64, secret, "x-signature", &sent_with(&base64), 0);
        // No other hash, encoding or length.
        let wrong = all.iter().map(|(_, other)| *other);
        for wrong in wrong
            .filter(|other| other != hex)
            .chain([&*base64, "", &hex[2..]])
        {
            let checked = check(&plain(&[secret]), &sent_with(wrong), 0);
            assert_eq!(checked, Err(VerifyError::Wrong), "{wrong}");
        }
    }
}

#[test]
fn a_provider_without_a_secret_cannot_be_made() {
    let none: [&str; 0] = [];
    assert!(Provider::github(none).is_err());
    assert!(Provider::github([""]).is_err());
    assert!(Provider::cloud_events([""]).is_err());
    for never_sent in [" a", "a ", "a\n", " ", "a\tb", "\u{e4}"] {
        let made = Provider::cloud_events(["a", never_sent]);
        assert!(made.is_err(), "{never_sent:?}");
    }
    assert!(Provider::cloud_events(["a b"]).is_ok());
    assert!(Provider::twilio(["a", ""], "https://a.example").is_err());
    for origin in [
        "",
        "a.example",
        "//a.example",
        "ftp://a.example",
        "https://a.example?b",
    ] {
        assert!(Provider::twilio(["a"], origin).is_err(), "{origin}");
    }
    assert!(Provider::twilio(["a"], "http://a.example:8080/behind/").is_ok());
}

#[test]
fn hostile_times_are_no_times() {
    let new = Provider::stripe(["whsec_test"]).unwrap();
    for time in [
        "",
        "-1",
        "+1492774577",
        "99999999999999999999",
        "1e9",
        "1492774577.0",
    ] {
        let signature = format!("t={time},v1=00");
        let sent = sent("/", &[("stripe-signature", &signature)], "{}");
        assert!(check(&new, &sent, 1_492_774_577).is_err(), "{time}");
    }
}
