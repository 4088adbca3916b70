//! What an entry of a stream is in words that all brokers share.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use inbox_source::Envelope;
use serde_json::{Map, Value};

use crate::entry::Field;

/// The field of [`Envelope::id`].
pub const ID: &str = "message-id";
/// The field of [`Envelope::kind`].
pub const KIND: &str = "message-type";
/// The field of [`Envelope::key`].
pub const KEY: &str = "ordering-key";
/// The field of [`Envelope::content_type`].
pub const CONTENT_TYPE: &str = "content-type";
/// The field of the payload, unless another is set.
pub const PAYLOAD: &str = "payload";

/// The last field of the name `payload` is the payload. Of an entry that has none, all fields together are.
pub(crate) fn envelope(stream: &str, id: &str, payload: &str, fields: &[Field]) -> Envelope {
    let place = fields.iter().rposition(|(name, _)| *name == payload);
    let body = place.and_then(|place| fields.get(place));
    let body = body.map(|(_, value)| value.clone());
    let mut envelope = Envelope::new(stream, body.unwrap_or_default());
    for (number, (name, value)) in fields.iter().enumerate() {
        if Some(number) != place {
            envelope.add_header(&String::from_utf8_lossy(name), value);
        }
    }
    envelope.id = envelope.header(ID).map(String::from);
    envelope.kind = envelope.header(KIND).map(String::from);
    envelope.key = envelope.header(KEY).map(String::from);
    envelope.content_type = envelope.header(CONTENT_TYPE).map(String::from);
    if place.is_none() {
        envelope.payload = as_json(&envelope.headers);
        let content_type = envelope.content_type.take();
        envelope.content_type = content_type.or_else(|| Some("application/json".into()));
    }
    envelope.position = Some(format!("{stream}/{id}"));
    envelope.time = time(id);
    envelope
}

fn as_json(fields: &[(String, String)]) -> Bytes {
    let fields = fields.iter();
    let object: Map<String, Value> = fields
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    Value::from(object).to_string().into()
}

/// The server numbers entries by its clock, unless the sender does.
fn time(id: &str) -> Option<SystemTime> {
    let (millis, _) = id.split_once('-')?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis.parse().ok()?))
}

/// The fields of a message that is sent. Its own headers come first, so that none stands for what follows, without one
/// that would be the key of a message that has none.
pub(crate) fn fields<'m>(message: &'m Envelope, payload: &'m str) -> Vec<(&'m str, &'m [u8])> {
    let headers = message.headers_without(KEY);
    let mut fields: Vec<(&str, &[u8])> = headers
        .map(|(name, value)| (name, value.as_bytes()))
        .collect();
    for (name, value) in [
        (ID, &message.id),
        (KIND, &message.kind),
        (KEY, &message.key),
        (CONTENT_TYPE, &message.content_type),
    ] {
        if let Some(value) = value {
            fields.push((name, value.as_bytes()));
        }
    }
    fields.push((payload, &message.payload));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(sent: &Envelope) -> Envelope {
        let fields: Vec<Field> = fields(sent, PAYLOAD)
            .into_iter()
            .map(|(name, value)| (name.to_owned().into(), Bytes::copy_from_slice(value)))
            .collect();
        envelope("orders", "1700000000000-3", PAYLOAD, &fields)
    }

    #[test]
    fn what_is_sent_arrives_as_it_was() {
        let mut sent = Envelope::new("orders", &b"\xff\x00"[..]);
        sent.id = Some("m-1".into());
        sent.kind = Some("order.placed".into());
        sent.key = Some("k".into());
        sent.headers = vec![
            ("payload".into(), "no payload".into()),
            ("message-id".into(), "no id".into()),
        ];
        let arrived = received(&sent);
        assert_eq!(arrived.payload, sent.payload);
        assert_eq!(arrived.header("payload"), Some("no payload"));
        assert_eq!(
            (arrived.id, arrived.kind, arrived.key),
            (sent.id, sent.kind, sent.key)
        );
        assert_eq!(arrived.position.as_deref(), Some("orders/1700000000000-3"));
        let since = arrived.time.unwrap().duration_since(SystemTime::UNIX_EPOCH);
        assert_eq!(since.unwrap().as_secs(), 1_700_000_000);
    }

    #[test]
    fn no_header_is_the_key_of_a_message_without_one() {
        let mut sent = Envelope::new("orders", "{}");
        sent.headers = vec![("Ordering-Key".into(), "other".into())];
        assert_eq!(received(&sent).key, None);
    }

    #[test]
    fn an_entry_without_a_payload_is_an_object() {
        let field = |name: &'static str, value: &'static str| (name.into(), value.into());
        let fields: Vec<Field> = vec![field("order", "7"), field("note", "a \"quote\"")];
        let arrived = envelope("orders", "1-0", PAYLOAD, &fields);
        let payload: Value = serde_json::from_slice(&arrived.payload).unwrap();
        let object = serde_json::json!({"note": "a \"quote\"", "order": "7"});
        assert_eq!(payload, object);
        assert_eq!(arrived.content_type.as_deref(), Some("application/json"));
        assert_eq!(arrived.header("order"), Some("7"));
    }

    #[test]
    fn answers_of_any_bytes_are_read_and_written() {
        let corpus = include_str!("../../../hostile/corpus/redis-streams.txt");
        hostile::hold(&hostile::Target::new("redis-streams", corpus, |input| {
            let parsed = hostile::uncounted(|| redis::parse_redis_value(input));
            let Ok(answer) = parsed else { return Ok(()) };
            let _ = crate::entry::of_claim(answer.clone());
            for entry in crate::entry::of_read(answer).unwrap_or_default() {
                let Some(all) = entry.fields else { continue };
                for payload in [PAYLOAD, "p"] {
                    let envelope = envelope("orders", &entry.id, payload, &all);
                    let _ = fields(&envelope, payload);
                }
            }
            Ok(())
        }));
    }
}
