//! What becomes of deliveries: which handlers get them, which of their parts are a message's id, kind and
//! ordering key, and what is done with those that are no messages.

use std::sync::Arc;

use clap::Args;
use inbox::{
    HandlerName, Invalid, Kind, OrderingKey, Store,
    receiver::{IdFrom, Mapping, Receiver, ReceiverBuilder, TextFrom},
};

use crate::args;

#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Rules {
    /// Store each message for this handler; repeat it to store each for several
    #[arg(long = "handler", value_name = "NAME", default_value = "default")]
    pub(crate) handlers: Vec<HandlerName>,
    /// Where to look for a message's id: cloudevent, property (the broker's own), position,
    /// header:NAME or field:NAME of a JSON body. Repeat it to look further [default: cloudevent, then
    /// property, then position where it is stable]
    #[arg(long, value_name = "PLACE")]
    pub(crate) id_from: Vec<IdFrom>,
    /// What each id begins with: where several senders number alike
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        value_parser = args::id_prefix
    )]
    pub(crate) id_prefix: String,
    /// Where to look for the kind: cloudevent, property, address, header:NAME, field:NAME, fixed:TEXT
    /// [default: cloudevent, then property, then address]
    #[arg(long, value_name = "PLACE")]
    pub(crate) kind_from: Vec<TextFrom>,
    /// Where to look for the ordering key, as for the kind [default: cloudevent, then property]
    #[arg(long, value_name = "PLACE", conflicts_with = "unordered")]
    pub(crate) ordering_key_from: Vec<TextFrom>,
    /// Give no message an ordering key
    #[arg(long)]
    pub(crate) unordered: bool,
    /// Keep what is no message, or what the store refuses, as a dead letter of this handler, rather than
    /// reject it at the broker. It must have no worker, as with --record-only
    #[arg(long, value_name = "NAME", conflicts_with = "stop_at_rejected")]
    pub(crate) keep_rejected: Option<HandlerName>,
    /// End at the first delivery that would be rejected, and leave it to the broker
    #[arg(long)]
    pub(crate) stop_at_rejected: bool,
    /// Store messages as processed at once: to record them and to tell duplicates. Their handlers must
    /// have no workers, which would run what a receiver that is killed leaves pending until it comes again
    #[arg(long)]
    pub(crate) record_only: bool,
    /// Store up to this many messages at a time
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,
}

impl Rules {
    /// How deliveries become messages, of the first handler.
    pub(crate) fn mapping(&self) -> Result<Mapping, String> {
        let first = self.handlers.first().ok_or("no handler is named")?;
        let mapping = Mapping::new(first).map_err(|invalid| invalid.to_string())?;
        check_fixed(&self.kind_from, Kind::new)?;
        check_fixed(&self.ordering_key_from, OrderingKey::new)?;
        let mut mapping = mapping.id_prefix(&self.id_prefix);
        if !self.id_from.is_empty() {
            mapping = mapping.id_from(self.id_from.iter().cloned());
        }
        if !self.kind_from.is_empty() {
            mapping = mapping.kind_from(self.kind_from.iter().cloned());
        }
        if self.unordered || !self.ordering_key_from.is_empty() {
            mapping = mapping.ordering_key_from(self.ordering_key_from.iter().cloned());
        }
        Ok(mapping)
    }

    /// Fails when what is kept as rejected would be handed to those who handle the messages.
    pub(crate) fn check_keep_rejected(&self) -> Result<(), String> {
        let handler = self.keep_rejected.as_ref();
        match handler.filter(|handler| self.handlers.contains(handler)) {
            Some(handler) => Err(format!(
                "messages are stored for `{handler}`, too, and a worker of theirs would run what is kept: name a \
                 handler that nothing works on"
            )),
            None => Ok(()),
        }
    }

    /// What stores them.
    pub(crate) fn receiver(&self, store: Arc<dyn Store>) -> ReceiverBuilder {
        let mut receiver = Receiver::builder(store)
            .batch_size(self.batch as usize)
            .fan_out(self.handlers.iter().cloned());
        if let Some(handler) = &self.keep_rejected {
            receiver = receiver.keep_rejected(handler.clone());
        }
        if self.stop_at_rejected {
            receiver = receiver.stop_at_rejected();
        }
        if self.record_only {
            receiver = receiver.record_only();
        }
        receiver
    }
}

/// Checks what is to be the text of every message: if it cannot be, each is rejected.
fn check_fixed<T>(
    places: &[TextFrom],
    read: impl Fn(String) -> Result<T, Invalid>,
) -> Result<(), String> {
    for place in places {
        if let TextFrom::Fixed(text) = place {
            read(text.clone()).map_err(|invalid| invalid.to_string())?;
        }
    }
    Ok(())
}
