//! What needs nothing but public items.

mod events;
mod requests;
mod rows;
mod urls;
mod values;

use crate::Target;

/// The names of all targets.
pub const NAMES: [&str; 17] = [
    "cloudevents-structured",
    "cloudevents-batched",
    "cloudevents-headers",
    "fields",
    "mapping",
    "payloads",
    "names",
    "headers",
    "histories",
    "urls",
    "broker-urls",
    "webhooks",
    "idempotency",
    "api",
    "dashboard",
    "sqlite-rows",
    "sqlite-file",
];

/// The target of a name.
#[must_use]
pub fn of(name: &str) -> Option<Target> {
    Some(match name {
        "cloudevents-structured" => events::structured(),
        "cloudevents-batched" => events::batched(),
        "cloudevents-headers" => events::headers(),
        "fields" => events::fields(),
        "mapping" => events::mapping(),
        "payloads" => events::payloads(),
        "names" => values::names(),
        "headers" => values::headers(),
        "histories" => values::histories(),
        "urls" => urls::stores(),
        "broker-urls" => urls::brokers(),
        "webhooks" => requests::webhooks(),
        "idempotency" => requests::idempotency(),
        "api" => requests::api(),
        "dashboard" => requests::dashboard(),
        "sqlite-rows" => rows::rows(),
        "sqlite-file" => rows::file(),
        _ => return None,
    })
}

/// What is set up from values of our own, which cannot fail.
#[expect(clippy::panic, reason = "nothing of the input is in it")]
#[track_caller]
fn sure<T, E: std::fmt::Display>(made: Result<T, E>) -> T {
    match made {
        Ok(made) => made,
        Err(error) => panic!("a target cannot be set up: {error}"),
    }
}
