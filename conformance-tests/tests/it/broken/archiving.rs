//! Defects of the purge of what was archived.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{Key, Operate as _, PurgeRequest, Result, State};
use inbox_memory::MemoryStore;

use super::Defect;

const FINALS: [State; 3] = [State::Processed, State::Dead, State::Discarded];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Archived {
    /// By their keys alone, whatever has become of them.
    WhateverTheyAre,
    /// In any final state.
    InAnyFinalState,
    /// Of any age.
    OfAnyAge,
    /// Also when they are pending again.
    AlsoPending,
    /// Of any age as long as they are of the state: and no more than the limit of a step.
    UpToTheLimit,
    /// Answers with the number of keys.
    CountedByKeys,
    /// Counts each key as often as it is named.
    CountedTwice,
}

#[async_trait]
impl Defect for Archived {
    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        let of = |state, age| PurgeRequest::new(state, age, expired.limit()).unwrap();
        let mut purged = inner.purge_archived(expired, &[]).await?;
        match self {
            Self::WhateverTheyAre | Self::AlsoPending => {
                for key in keys {
                    let one = std::slice::from_ref(key);
                    let _ = inner.discard(key).await?;
                    for state in FINALS {
                        if *self == Self::WhateverTheyAre || state == State::Discarded {
                            purged += inner
                                .purge_archived(&of(state, Duration::ZERO), one)
                                .await?;
                        }
                    }
                }
                if *self == Self::AlsoPending {
                    purged += inner.purge_archived(expired, keys).await?;
                }
            }
            Self::InAnyFinalState => {
                for state in FINALS {
                    let any = of(state, expired.older_than());
                    purged += inner.purge_archived(&any, keys).await?;
                    let any = of(state, Duration::ZERO);
                    if state != expired.state() {
                        purged += inner.purge_archived(&any, keys).await?;
                    }
                }
            }
            Self::OfAnyAge => {
                let any = of(expired.state(), Duration::ZERO);
                purged += inner.purge_archived(&any, keys).await?;
            }
            Self::UpToTheLimit => {
                let some = keys.len().min(expired.limit() as usize);
                purged += inner.purge_archived(expired, &keys[..some]).await?;
            }
            Self::CountedByKeys => {
                let _ = inner.purge_archived(expired, keys).await?;
                purged += keys.len() as u64;
            }
            Self::CountedTwice => {
                for (n, key) in keys.iter().enumerate() {
                    let one = std::slice::from_ref(key);
                    if inner.purge_archived(expired, one).await? > 0 {
                        purged += keys[n..].iter().filter(|other| *other == key).count() as u64;
                    }
                }
            }
        }
        Ok(purged)
    }
}
