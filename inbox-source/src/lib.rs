//! What a message broker has to do for an inbox: the contract of sources, and what their
//! deliveries mean as messages.
//!
//! Applications use the crate `inbox`, which re-exports this one in `inbox::receiver`,
//! `inbox::cloudevents` and `inbox::fields`, and brings the brokers by feature. This crate is for those who write a
//! source for another broker.
//!
//! - A [`Source`] hands out [deliveries](Delivery), which the receiver of `inbox` stores, and only
//!   then acknowledges.
//! - An [`Envelope`] is a delivery in words that all brokers share. A [`Mapping`] makes a message of
//!   it: which of its properties, headers and fields are the message's id, kind and ordering key.
//! - CloudEvents are read in one place for all ways in: [`cloudevents`]; what URLs have in common, in [`settings`];
//!   what a connection that failed means, in [`network`].
//!
//! The crate `source-tests` checks a source against a real broker.

pub mod cloudevents;
mod envelope;
pub mod fields;
#[cfg(feature = "mapping")]
mod mapping;
pub mod network;
#[cfg(feature = "mapping")]
mod places;
mod publisher;
pub mod settings;
mod source;

pub use envelope::Envelope;
#[cfg(feature = "mapping")]
pub use mapping::{Mapping, MappingError, Positions};
#[cfg(feature = "mapping")]
pub use places::{IdFrom, TextFrom, UnknownPlace};
pub use publisher::{FailedKeys, Publisher};
pub use source::{Delivery, Flow, Raw, Rejection, Source, SourceError};
