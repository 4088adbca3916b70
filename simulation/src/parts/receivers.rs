//! Receivers, and the one that only records.

use std::sync::Arc;

use inbox::{
    CancellationToken, HandlerName, Receiver,
    receiver::{ReceiverBuilder, ReceiverError},
};

use super::{SLACK, millis, seen, watched};
use crate::{
    broker::{Broker, Consumer},
    history::PartId,
    scenario::Rejected,
    world::{REJECTED, World},
};

pub(crate) async fn receiver(
    world: Arc<World>,
    broker: Arc<Broker>,
    number: u8,
    part: PartId,
    stop: CancellationToken,
) {
    let builder = builder(&world, &part);
    receive(&world, broker, number, &part, &stop, builder).await;
}

/// One that only records.
pub(crate) async fn recorder(
    world: Arc<World>,
    broker: Arc<Broker>,
    part: PartId,
    stop: CancellationToken,
) {
    let builder = builder(&world, &part).record_only();
    receive(&world, broker, 0, &part, &stop, builder).await;
}

fn builder(world: &Arc<World>, part: &PartId) -> ReceiverBuilder {
    let settings = &world.scenario.settings;
    let mut builder = Receiver::builder(Arc::new(seen(world, part)))
        .batch_size(settings.receive_batch)
        .max_unacknowledged(settings.unacknowledged)
        .linger(millis(settings.linger))
        .drain_limit(millis(settings.drain_limit))
        .store_timeout(millis(settings.store_timeout));
    if matches!(settings.rejected, Rejected::Keep | Rejected::KeepOrStop)
        && let Ok(handler) = HandlerName::new(REJECTED)
    {
        builder = builder.keep_rejected(handler);
    }
    if matches!(settings.rejected, Rejected::Stop | Rejected::KeepOrStop) {
        builder = builder.stop_at_rejected();
    }
    builder
}

async fn receive(
    world: &Arc<World>,
    broker: Arc<Broker>,
    number: u8,
    part: &PartId,
    stop: &CancellationToken,
    builder: ReceiverBuilder,
) {
    let settings = &world.scenario.settings;
    let receiver = builder.build();
    let mut source = Consumer {
        broker: broker.clone(),
        part: part.clone(),
        number,
        taken: 0,
    };
    let running = receiver.run(&mut source, stop.clone());
    let (ended, told) = watched(world, part, stop, settings.drain_limit, running).await;
    let taken = source.taken;
    let mut history = world.history();
    match ended {
        Ok(summary) => history.receiver_ended(part, taken, &summary),
        Err(ReceiverError::Rejected(rejection)) if !broker.stops(part) => {
            let what = format!("{part} ended: {rejection}");
            history.violated("rejected as it was told to", what);
        }
        Err(error) => history.trace(|| format!("{part} ended: {error:?}")),
    }
    if let Some(told) = told {
        history.ended_within(part, told, settings.drain_limit * 1_000 + SLACK);
    }
}
