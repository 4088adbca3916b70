//! The way of a purge of all handlers. The index has the messages of a state by handler, so it goes from one group of
//! handlers to the next, in order of name, and spends its limit in the first ones that have something.
//!
//! A call that reaches its limit leaves its place to the next one of the process, which need not pass all those again
//! that have nothing. Wherever a walk begins, it ends when it has been around, so that a call which ends below its
//! limit has left nothing.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use inbox_api::{PurgeRequest, Result, State};
use mongodb::bson::doc;

use super::Content;
use crate::{connection::Connection, layout::STANDING_INDEX, rows::code};

/// A group has this many handlers, whose entries the server merges: without names it would sort all of them.
const HANDLERS_AT_ONCE: u32 = 50;

/// Handlers next to each other that have messages in a state.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) handlers: Vec<String>,
    /// Whether no other handler comes behind them.
    is_last: bool,
}

/// Where the next walk begins, by what it is for.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<HashMap<(State, Content), Group>>);

impl Places {
    fn lock(&self) -> MutexGuard<'_, HashMap<(State, Content), Group>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A walk, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// Of all handlers, unless it is of one.
    kind: Option<(State, Content)>,
    /// None when the next one is to be read.
    group: Option<Group>,
    /// The last handler of the group before.
    beyond: String,
    /// The last handler of the group with which it began, unless it began with the first handler.
    around_at: Option<String>,
    /// Whether it went on with the first handler.
    has_turned: bool,
}

impl Walk {
    pub(super) fn begin(places: &Places, request: &PurgeRequest, content: Content) -> Self {
        let mut walk = Self {
            kind: None,
            group: None,
            beyond: String::new(),
            around_at: None,
            has_turned: false,
        };
        if let Some(handler) = request.handler() {
            walk.group = Some(Group {
                handlers: vec![handler.to_string()],
                is_last: true,
            });
        } else {
            let kind = (request.state(), content);
            let place = places.lock().get(&kind).cloned();
            walk.kind = Some(kind);
            walk.around_at = place
                .as_ref()
                .and_then(|group| group.handlers.last().cloned());
            walk.group = place;
        }
        walk
    }

    /// The group that is looked at now: with a few requests, if it is to be read.
    pub(super) async fn group(
        &self,
        connection: &mut Connection<'_>,
        state: State,
    ) -> Result<Group> {
        match &self.group {
            Some(group) => Ok(group.clone()),
            None => read_group(connection, state, &self.beyond).await,
        }
    }

    /// Notes the group that was looked at.
    pub(super) fn stand_in(&mut self, group: Group) {
        self.group = Some(group);
    }

    /// Leaves its place to the next walk.
    pub(super) fn leave(&self, places: &Places) {
        if let (Some(kind), Some(group)) = (self.kind, &self.group) {
            places.lock().insert(kind, group.clone());
        }
    }

    /// Goes on to the next group, since nothing is left in this one. Answers whether there is any; if not, the next
    /// walk begins with the first one.
    pub(super) fn go_on(&mut self, places: &Places) -> bool {
        let goes_on = self.turn_or_pass();
        if let Some(kind) = self.kind.filter(|_| !goes_on) {
            places.lock().remove(&kind);
        }
        goes_on
    }

    fn turn_or_pass(&mut self) -> bool {
        let group = self.group.take().unwrap_or_default();
        let last = group.handlers.last();
        let turns = group.is_last && !self.has_turned && self.around_at.is_some();
        if turns {
            self.has_turned = true;
            self.beyond = String::new();
            return true;
        }
        let is_around = self.has_turned && last >= self.around_at.as_ref();
        self.beyond = last.cloned().unwrap_or_default();
        !group.is_last && !is_around
    }
}

/// The first handlers behind `beyond` that have messages in this state. Each step along the index reads as many
/// entries as a group has handlers: of handlers with few messages, it finds many.
async fn read_group(connection: &mut Connection<'_>, state: State, beyond: &str) -> Result<Group> {
    let mut group = Group::default();
    let handlers = &mut group.handlers;
    let enough = HANDLERS_AT_ONCE as usize;
    while handlers.len() < enough && !group.is_last {
        let beyond = handlers.last().map_or(beyond, String::as_str);
        let pipeline = vec![
            doc! { "$match": { "state": code(state), "handler": { "$gt": beyond } } },
            doc! { "$sort": { "handler": 1 } },
            doc! { "$limit": i64::from(HANDLERS_AT_ONCE) },
            doc! { "$project": { "_id": 0, "handler": 1 } },
        ];
        let found = connection.aggregate(Some(STANDING_INDEX), pipeline).await?;
        group.is_last = found.len() < enough;
        let names = found
            .iter()
            .filter_map(|found| found.get_str("handler").ok());
        handlers.extend(names.map(str::to_owned));
        handlers.dedup();
    }
    if group.handlers.len() > enough {
        group.handlers.truncate(enough);
        group.is_last = false;
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

    fn begin(places: &Places) -> Walk {
        let request = PurgeRequest::new(State::Dead, Duration::ZERO, 10).unwrap();
        Walk::begin(places, &request, Content::Any)
    }

    /// As it is read, with two handlers in a group.
    fn next(walk: &Walk) -> Group {
        let names = NAMES
            .into_iter()
            .filter(|name| *name > walk.beyond.as_str());
        let names: Vec<String> = names.map(str::to_owned).collect();
        walk.group.clone().unwrap_or_else(|| Group {
            is_last: names.len() <= 2,
            handlers: names.into_iter().take(2).collect(),
        })
    }

    /// The handlers that a walk meets which finds nothing.
    fn met(mut walk: Walk, places: &Places) -> String {
        let mut met = Vec::new();
        loop {
            let group = next(&walk);
            met.extend(group.handlers.clone());
            walk.stand_in(group);
            walk.leave(places);
            if !walk.go_on(places) {
                return met.concat();
            }
        }
    }

    #[test]
    fn a_walk_goes_around_once() {
        let places = Places::default();
        assert_eq!(met(begin(&places), &places), "abcde");
        let mut walk = begin(&places);
        walk.stand_in(next(&walk));
        assert!(walk.go_on(&places));
        walk.stand_in(next(&walk));
        walk.leave(&places);
        assert_eq!(met(begin(&places), &places), "cdeabcd");
        assert_eq!(met(begin(&places), &places), "abcde");
    }

    #[test]
    fn a_walk_meets_handlers_that_are_new_since_its_place_was_left() {
        let places = Places::default();
        let mut walk = begin(&places);
        walk.stand_in(Group {
            handlers: vec!["a".into(), "e".into()],
            is_last: true,
        });
        walk.leave(&places);
        assert_eq!(met(begin(&places), &places), "aeabcde");
    }

    #[test]
    fn a_walk_of_one_handler_goes_nowhere() {
        let places = Places::default();
        let request = PurgeRequest::new(State::Dead, Duration::ZERO, 10).unwrap();
        let request = request.for_handler("c".parse().unwrap());
        let walk = Walk::begin(&places, &request, Content::Any);
        assert_eq!(met(walk, &places), "c");
        assert!(places.lock().is_empty());
    }
}
