//! A member of a consumer group.

use std::{borrow::Cow, fmt, sync::Arc, thread, time::Duration};

use inbox_api::Result;
use inbox_source::{Flow, Mapping, Positions, Source, SourceError, settings::invalid};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, unbounded_channel},
        oneshot,
    },
    time::timeout,
};

use crate::{KafkaDelivery, KafkaOptions, delivery::Rejecter, poller::Poller, shared::Shared};

/// How long closing may take. The receiver gives it ten seconds.
const CLOSE_LIMIT: Duration = Duration::from_secs(9);

/// A member of a consumer group. See the [crate](crate).
pub struct KafkaSource {
    options: KafkaOptions,
    mapping: Arc<Mapping>,
    rejecter: Arc<Rejecter>,
    flow: Flow,
    running: Option<Running>,
}

/// A consumer, on a thread of its own. Dropping it makes it commit and leave the group, which nobody waits
/// for.
struct Running {
    deliveries: UnboundedReceiver<std::result::Result<KafkaDelivery, SourceError>>,
    shared: Arc<Shared>,
    ended: oneshot::Receiver<()>,
}

impl KafkaSource {
    /// A source with these settings, whose records become messages by `mapping`. Connects when it is first
    /// asked for a delivery.
    ///
    /// # Errors
    /// `Invalid` without a group or a topic, when it was not decided what becomes of
    /// [rejections](KafkaOptions::rejections), or when the mapping has no place for an id.
    pub fn new(options: KafkaOptions, mapping: Mapping) -> Result<Self> {
        let rejections = options.check()?;
        let checked = mapping.check(Positions::Stable);
        checked.map_err(|error| invalid(error.to_string()))?;
        let rejecter = Rejecter::new(rejections, options.connection.clone());
        Ok(Self {
            options,
            mapping: Arc::new(mapping),
            rejecter: Arc::new(rejecter),
            flow: Flow::new(1000, 500),
            running: None,
        })
    }

    fn start(&self) -> std::result::Result<Running, SourceError> {
        let (supply, deliveries) = unbounded_channel();
        let (ending, ended) = oneshot::channel();
        let shared = Arc::new(Shared::new());
        self.rejecter.set_supply(supply.downgrade());
        let (options, flow) = (self.options.clone(), self.flow);
        let (mapping, rejecter) = (self.mapping.clone(), self.rejecter.clone());
        let of_thread = shared.clone();
        let work = move || {
            of_thread.set_thread(thread::current());
            match Poller::new(&options, flow, of_thread, supply.clone(), mapping, rejecter) {
                Ok(poller) => poller.run(),
                Err(error) => {
                    let _ = supply.send(Err(error));
                }
            }
            let _ = ending.send(());
        };
        let thread = thread::Builder::new().name("inbox-kafka".into());
        thread.spawn(work).map_err(SourceError::transient)?;
        Ok(Running {
            deliveries,
            shared,
            ended,
        })
    }
}

impl Source for KafkaSource {
    type Delivery = KafkaDelivery;

    async fn next(&mut self) -> std::result::Result<Option<KafkaDelivery>, SourceError> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        while let Some(running) = &mut self.running {
            match running.deliveries.recv().await {
                Some(Ok(delivery)) if delivery.hand_out() => return Ok(Some(delivery)),
                // Its partition has gone meanwhile, or is read again.
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    running.shared.note_told(&error);
                    return Err(error);
                }
                None => break,
            }
        }
        self.running = None;
        Err(SourceError::transient(
            "the consumer has ended; the next one joins the group",
        ))
    }

    fn set_flow(&mut self, flow: Flow) {
        self.flow = flow;
    }

    async fn close(&mut self) -> std::result::Result<(), SourceError> {
        let Some(mut running) = self.running.take() else {
            return Ok(());
        };
        running.shared.stop();
        match timeout(CLOSE_LIMIT, &mut running.ended).await {
            // It also ends without a word when it panics.
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(SourceError::transient("the consumer ended without closing")),
            Err(_) => Err(SourceError::transient("the consumer did not close in time")),
        }
    }

    fn name(&self) -> Cow<'static, str> {
        format!("kafka/{}", self.options.topics.join(",")).into()
    }

    fn lag(&self) -> Option<u64> {
        self.running.as_ref()?.shared.lag()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource")
            .field("options", &self.options)
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}
