//! The client that writes: made with the first record, and again behind one that has failed for good.

use std::{
    ptr,
    sync::{Mutex, PoisonError},
};

use inbox_source::SourceError;
use rdkafka::{
    config::{ClientConfig, FromClientConfig as _},
    error::KafkaError,
    producer::{FutureProducer, Producer as _},
};

use crate::error::{is_fatal, unwritten};

#[derive(Default)]
pub(crate) struct Writer {
    open: Mutex<Option<FutureProducer>>,
}

impl Writer {
    /// The client there is, or a new one with these settings.
    pub(crate) fn get(
        &self,
        doing: &str,
        config: impl FnOnce() -> ClientConfig,
    ) -> Result<FutureProducer, SourceError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = &*open {
            return Ok(producer.clone());
        }
        let made = FutureProducer::from_config(&config());
        let made = made.map_err(|error| unwritten(doing, &error))?;
        Ok(open.insert(made).clone())
    }

    /// What an error of this client means. One that has failed for good takes nothing more, and makes way for a
    /// new one.
    pub(crate) fn failed(
        &self,
        doing: &str,
        producer: &FutureProducer,
        error: &KafkaError,
    ) -> SourceError {
        let fatal = producer.client().fatal_error();
        if fatal.is_none() && !is_fatal(error) {
            return unwritten(doing, error);
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Another one may have been made already.
        open.take_if(|open| ptr::eq(open.client(), producer.client()));
        drop(open);
        let said = fatal.map_or_else(|| error.to_string(), |(_, said)| said);
        SourceError::transient(format!(
            "{doing}: {said}; the next record gets a new producer"
        ))
    }
}
