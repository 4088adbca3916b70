//! A source that counts what is handed out and not finished.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use inbox::{
    Message, Receipt,
    receiver::{Delivery, Flow, Raw, Rejection, Source, SourceError},
};

/// Deliveries and bytes that are out now, and at most.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    out: AtomicUsize,
    most: AtomicUsize,
    bytes: AtomicUsize,
    most_bytes: AtomicUsize,
    lag: AtomicUsize,
}

impl Counts {
    pub(crate) fn out(&self) -> usize {
        self.out.load(SeqCst)
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(SeqCst)
    }

    pub(crate) fn most_bytes(&self) -> usize {
        self.most_bytes.load(SeqCst)
    }

    /// The greatest lag that the source has told.
    pub(crate) fn most_lag(&self) -> usize {
        self.lag.load(SeqCst)
    }
}

pub(crate) struct Counted<S> {
    source: S,
    counts: Arc<Counts>,
}

impl<S> Counted<S> {
    pub(crate) fn new(source: S, counts: Arc<Counts>) -> Self {
        Self { source, counts }
    }
}

impl<S: Source> Source for Counted<S> {
    type Delivery = CountedDelivery<S::Delivery>;

    async fn next(&mut self) -> Result<Option<Self::Delivery>, SourceError> {
        let next = self.source.next().await?;
        if let Some(lag) = self.source.lag() {
            let lag = usize::try_from(lag).unwrap_or(usize::MAX);
            self.counts.lag.fetch_max(lag, SeqCst);
        }
        Ok(next.map(|delivery| CountedDelivery::new(delivery, &self.counts)))
    }

    fn set_flow(&mut self, flow: Flow) {
        self.source.set_flow(flow);
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.source.close().await
    }

    fn name(&self) -> Cow<'static, str> {
        self.source.name()
    }

    fn lag(&self) -> Option<u64> {
        self.source.lag()
    }
}

pub(crate) struct CountedDelivery<D> {
    delivery: D,
    _out: Out,
}

/// One that is out, until this is dropped.
struct Out {
    counts: Arc<Counts>,
    bytes: usize,
}

impl Drop for Out {
    fn drop(&mut self) {
        self.counts.out.fetch_sub(1, SeqCst);
        self.counts.bytes.fetch_sub(self.bytes, SeqCst);
    }
}

impl<D: Delivery> CountedDelivery<D> {
    fn new(delivery: D, counts: &Arc<Counts>) -> Self {
        let bytes = delivery
            .message()
            .map_or(0, |message| message.payload().len());
        let out = counts.out.fetch_add(1, SeqCst) + 1;
        counts.most.fetch_max(out, SeqCst);
        let bytes_out = counts.bytes.fetch_add(bytes, SeqCst) + bytes;
        counts.most_bytes.fetch_max(bytes_out, SeqCst);
        let counts = Arc::clone(counts);
        Self {
            delivery,
            _out: Out { counts, bytes },
        }
    }
}

impl<D: Delivery> Delivery for CountedDelivery<D> {
    fn message(&self) -> Result<Message, Rejection> {
        self.delivery.message()
    }

    fn bytes(&self) -> Option<usize> {
        self.delivery.bytes()
    }

    fn raw(&self) -> Option<Raw> {
        self.delivery.raw()
    }

    fn stored(&mut self, receipt: &Receipt) {
        self.delivery.stored(receipt);
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        self.delivery.acknowledge().await
    }

    async fn reject(self, rejection: Rejection) -> Result<(), SourceError> {
        self.delivery.reject(rejection).await
    }

    async fn acknowledge_all(run: Vec<Self>) -> Vec<SourceError> {
        let (deliveries, _out): (Vec<D>, Vec<Out>) = run
            .into_iter()
            .map(|counted| (counted.delivery, counted._out))
            .unzip();
        D::acknowledge_all(deliveries).await
    }
}
