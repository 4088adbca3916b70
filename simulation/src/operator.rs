//! An operator, who changes messages and pauses handlers as planned.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use inbox::{Due, Edit, HandlerName, Intervention};
use tokio::time::{sleep, sleep_until};

use crate::{
    scenario::Change,
    world::{HANDLERS, World},
};

pub(crate) async fn operator(world: Arc<World>) {
    for intervention in &world.scenario.interventions {
        sleep_until(world.at(intervention.at)).await;
        let _turn = world.turn().await;
        world.follow();
        if let Err(error) = change(&world, intervention.does).await {
            world
                .history()
                .violated("operators are answered", error.to_string());
        }
    }
}

async fn change(world: &Arc<World>, change: Change) -> inbox::Result<()> {
    // What is only recorded would stay pending.
    let message = |number: usize| {
        let message = world.messages.get(number);
        let message = message.filter(|_| !world.scenario.is_recorded(number));
        message.map(inbox::Message::key)
    };
    match change {
        Change::Replay(number) => {
            let Some(key) = message(number) else {
                return Ok(());
            };
            let answer = world.operate.replay(key, &Edit::default()).await?;
            if answer == Intervention::Done {
                world.history().replayed(key);
            }
        }
        Change::Discard(number) => {
            let Some(key) = message(number) else {
                return Ok(());
            };
            let answer = world.operate.discard(key).await?;
            if answer == Intervention::Done {
                world.history().discarded(key);
            }
        }
        Change::Reschedule(number, after) => {
            let Some(key) = message(number) else {
                return Ok(());
            };
            let now = u64::try_from(world.store_now()).unwrap_or_default();
            let due = UNIX_EPOCH + Duration::from_micros(now) + Duration::from_millis(after);
            let answer = world.operate.reschedule(key, Due::At(due)).await?;
            if answer == Intervention::Done {
                let due = i64::try_from(now + after * 1_000).unwrap_or(i64::MAX);
                world.history().rescheduled(key, due);
            }
        }
        Change::Pause(handler, length) => {
            let Some(handler) = HANDLERS.get(usize::from(handler)) else {
                return Ok(());
            };
            let handler = HandlerName::new(*handler).map_err(|why| why.in_operation("pause"))?;
            world.operate.pause(&handler).await?;
            world.history().trace(|| format!("{handler} is paused"));
            let world = world.clone();
            tokio::spawn(async move {
                sleep(Duration::from_millis(length)).await;
                world.follow();
                let _ = world.operate.resume(&handler).await;
                world.history().trace(|| format!("{handler} is resumed"));
            });
        }
    }
    Ok(())
}

/// Ends the pauses that are left.
pub(crate) async fn resume_all(world: &World) {
    for handler in HANDLERS {
        if let Ok(handler) = HandlerName::new(handler) {
            let _ = world.operate.resume(&handler).await;
        }
    }
}
