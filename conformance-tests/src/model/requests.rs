//! What operations ask for, in the words of the contract.

use std::time::Duration;

use inbox_api::{
    Bytes, Due, Edit, ErrorType, Filter, HandlerName, Headers, Key, Kind, LeaseTerms, MessageId,
    OrderingKey, PurgeRequest, Slice, WorkerName, headers::CORRELATION_ID,
};

use super::operation::{Age, Expired, HANDLERS, Narrowing, Target, Wait};
use crate::{check::CaseResult, test_inbox::message_for};

/// The correlation id of messages that are altered or edited.
pub(super) const ALTERED: &str = "altered";

pub(super) fn key(target: Target) -> CaseResult<Key> {
    Ok(
        message_for(HANDLERS[target.handler], &format!("{}", target.id))?
            .key()
            .clone(),
    )
}

pub(super) fn terms(actor: usize, seconds: u64) -> CaseResult<LeaseTerms> {
    let worker = WorkerName::new(format!("actor-{actor}"))?;
    Ok(LeaseTerms::new(Duration::from_secs(seconds), worker)?)
}

pub(super) fn after(seconds: u64) -> Due {
    match seconds {
        0 => Due::Now,
        seconds => Due::After(Duration::from_secs(seconds)),
    }
}

pub(super) fn edit(payload: bool, headers: bool) -> CaseResult<Edit> {
    let mut edited = Headers::new();
    edited.insert(CORRELATION_ID, ALTERED)?;
    Ok(Edit {
        payload: payload.then(|| Bytes::from_static(b"edited")),
        headers: headers.then_some(edited),
    })
}

pub(super) fn first(limit: u32) -> Slice {
    Slice { after: None, limit }
}

pub(super) fn ordering_key(number: u8) -> CaseResult<OrderingKey> {
    Ok(OrderingKey::new(format!("k{number}"))?)
}

pub(super) fn handler_of(handler: Option<usize>) -> CaseResult<Option<HandlerName>> {
    Ok(handler
        .map(|handler| HandlerName::new(HANDLERS[handler]))
        .transpose()?)
}

pub(super) fn purge_request(expired: &Expired) -> CaseResult<PurgeRequest> {
    let older_than = Duration::from_secs(expired.older_than);
    let all = PurgeRequest::new(expired.state, older_than, 100)?;
    Ok(match handler_of(expired.handler)? {
        Some(handler) => all.for_handler(handler),
        None => all,
    })
}

pub(super) fn filter(narrowing: &Narrowing) -> CaseResult<Filter> {
    let mut filter = Filter {
        states: narrowing.states.clone(),
        handler: handler_of(narrowing.handler)?,
        ids: narrowing
            .ids
            .iter()
            .map(|id| MessageId::new(id.to_string()))
            .collect::<Result<_, _>>()?,
        kind: narrowing
            .altered_kind
            .map(|altered| Kind::new(if altered { ALTERED } else { "order.placed" }))
            .transpose()?,
        ordering_key: narrowing.ordering_key.map(ordering_key).transpose()?,
        error_contains: narrowing.error.map(str::to_owned),
        correlation_id: narrowing.altered.then(|| ALTERED.to_owned()),
        min_started: narrowing.min_started,
        max_started: narrowing.max_started,
        blocking: narrowing.blocking,
        error_type: narrowing
            .error_type
            .map(|which| ErrorType::new(format!("app::Error{which}")))
            .transpose()?,
        ..Filter::default()
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    match narrowing.age {
        Some(Age::OlderThan(age)) => filter.older_than = seconds(age),
        Some(Age::NewerThan(age)) => filter.newer_than = seconds(age),
        Some(Age::FinishedLongerAgo(age)) => filter.finished_longer_ago = seconds(age),
        Some(Age::FinishedWithin(age)) => filter.finished_within = seconds(age),
        None => {}
    }
    match narrowing.due {
        Some(Wait::LaterThan(wait)) => filter.due_later_than = seconds(wait),
        Some(Wait::Within(wait)) => filter.due_within = seconds(wait),
        None => {}
    }
    Ok(filter)
}
