//! The janitor.

use std::sync::Arc;

use inbox::{CancellationToken, HandlerName, Janitor};

use super::{after_dead, millis, seen};
use crate::{
    Flaw,
    history::PartId,
    world::{CALLS, World},
};

pub(crate) async fn janitor(world: Arc<World>, part: PartId, stop: CancellationToken) {
    let settings = &world.scenario.settings;
    let retention = millis(settings.retention);
    let after = match world.flaw {
        Some(Flaw::GivesUpAtOnce) => 1,
        _ => settings.give_up_after,
    };
    let janitor = Janitor::builder(world.operate.clone())
        .store_timeout(millis(settings.store_timeout))
        .give_up_after(
            Arc::new(seen(&world, &part)),
            HandlerName::new(CALLS).ok(),
            millis(after),
            after_dead(&world),
        )
        .keep_processed(retention)
        .keep_dead(retention)
        .interval(millis(3_000))
        .slice(2)
        .build();
    match janitor {
        Ok(janitor) => {
            world.follow();
            janitor.run(stop).await;
        }
        Err(invalid) => {
            let what = invalid.to_string();
            world.history().violated("valid settings", what);
        }
    }
}
