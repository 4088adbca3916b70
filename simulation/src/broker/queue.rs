//! What waits at the broker, in the order of its partitions or in none.

use tokio::time::Instant;

use super::AGAIN;
use crate::history::PartId;

/// Which delivery was taken, and from where.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Which one of the plan.
    pub(super) number: usize,
    /// In which partition, and where in it.
    offset: Option<(usize, usize)>,
}

pub(super) enum Queue {
    /// Each is acknowledged by itself, and comes again if it is not.
    Loose {
        waiting: Vec<(Instant, usize)>,
        held: usize,
    },
    /// Acknowledged is what comes before an offset, and what is behind it comes again when another consumer gets
    /// the partition.
    Partitions(Vec<Partition>),
}

pub(super) struct Partition {
    log: Vec<(Instant, usize)>,
    owner: Option<PartId>,
    free_since: Instant,
    next: usize,
    committed: usize,
    /// Up to where its owner has acknowledged, or tried to.
    finished: usize,
}

impl Queue {
    pub(super) fn loose(waiting: Vec<(Instant, usize)>) -> Self {
        Self::Loose { waiting, held: 0 }
    }

    pub(super) fn partitions(
        waiting: impl Iterator<Item = (Instant, usize)>,
        count: usize,
        place: impl Fn(usize) -> usize,
        is_backwards: bool,
    ) -> Self {
        let free_since = Instant::now();
        let partition = |_| Partition {
            log: Vec::new(),
            owner: None,
            free_since,
            next: 0,
            committed: 0,
            finished: 0,
        };
        let mut all: Vec<_> = (0..count).map(partition).collect();
        for (at, number) in waiting {
            if let Some(partition) = all.get_mut(place(number)) {
                partition.log.push((at, number));
            }
        }
        for partition in &mut all {
            // Those of one moment stay as they are.
            partition.log.sort_by_key(|(at, _)| *at);
            if is_backwards {
                partition.log.reverse();
            }
        }
        Self::Partitions(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Loose { waiting, held } => waiting.is_empty() && *held == 0,
            Self::Partitions(all) => all.iter().all(|one| one.finished >= one.log.len()),
        }
    }

    /// The next delivery for a consumer; otherwise when to ask again, if that is known.
    pub(super) fn take(
        &mut self,
        consumer: &PartId,
        own: usize,
        now: Instant,
    ) -> Result<Place, Option<Instant>> {
        match self {
            Self::Loose { waiting, held } => {
                let places = waiting.iter().enumerate();
                let first = places.min_by_key(|(place, (at, _))| (*at, *place));
                let (place, at) = first.map(|(place, (at, _))| (place, *at)).ok_or(None)?;
                if at > now {
                    return Err(Some(at));
                }
                let (_, number) = waiting.swap_remove(place);
                *held += 1;
                Ok(Place {
                    number,
                    offset: None,
                })
            }
            Self::Partitions(all) => take_in_order(all, consumer, own, now),
        }
    }

    /// The deliveries that are acknowledged with this one.
    pub(super) fn up_to(&self, place: Place) -> Vec<usize> {
        let (Self::Partitions(all), Some((partition, offset))) = (self, place.offset) else {
            return vec![place.number];
        };
        let partition = all.get(partition);
        let log = partition.and_then(|partition| partition.log.get(partition.committed..=offset));
        let log = log.unwrap_or_default().iter();
        log.map(|(_, number)| *number).collect()
    }

    /// A delivery is acknowledged, with those before it, or could not be.
    pub(super) fn finish(&mut self, place: Place, is_acknowledged: bool) {
        match (self, place.offset) {
            (Self::Loose { waiting, held }, _) => {
                *held = held.saturating_sub(1);
                if !is_acknowledged {
                    waiting.push((Instant::now() + AGAIN, place.number));
                }
            }
            (Self::Partitions(all), Some((partition, offset))) => {
                let Some(partition) = all.get_mut(partition) else {
                    return;
                };
                partition.finished = partition.finished.max(offset + 1);
                if is_acknowledged {
                    partition.committed = partition.committed.max(offset + 1);
                }
            }
            (Self::Partitions(_), None) => {}
        }
    }

    pub(super) fn keeps_order(&self) -> bool {
        matches!(self, Self::Partitions(_))
    }

    /// A consumer has left.
    pub(super) fn release(&mut self, consumer: &PartId, now: Instant) {
        let Self::Partitions(all) = self else { return };
        for partition in all {
            if partition.owner.take_if(|owner| owner == consumer).is_some() {
                partition.free_since = now;
                partition.next = partition.committed;
                partition.finished = partition.committed;
            }
        }
    }
}

fn take_in_order(
    all: &mut [Partition],
    consumer: &PartId,
    own: usize,
    now: Instant,
) -> Result<Place, Option<Instant>> {
    let mut later = None;
    let mut first: Option<(Instant, usize)> = None;
    for (index, partition) in all.iter_mut().enumerate() {
        let mut look_at =
            |at: Instant| later = Some(later.map_or(at, |later: Instant| later.min(at)));
        let for_others = partition.free_since + AGAIN;
        match &partition.owner {
            Some(owner) if owner != consumer => continue,
            None if index != own && now < for_others => {
                look_at(for_others);
                continue;
            }
            _ => partition.owner = Some(consumer.clone()),
        }
        let Some((at, _)) = partition.log.get(partition.next) else {
            continue;
        };
        if *at > now {
            look_at(*at);
        } else if first.is_none_or(|(earliest, _)| *at < earliest) {
            first = Some((*at, index));
        }
    }
    let (_, index) = first.ok_or(later)?;
    let partition = all.get_mut(index).ok_or(later)?;
    let offset = partition.next;
    let (_, number) = *partition.log.get(offset).ok_or(later)?;
    partition.next += 1;
    let offset = Some((index, offset));
    Ok(Place { number, offset })
}
