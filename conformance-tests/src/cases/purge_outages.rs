//! Purges that an outage cuts short.

use std::time::Duration;

use inbox_api::{Effect, Key, Page, PurgeRequest, Record, Result, Settlement, State};

use super::outage::recovered;
use crate::{
    check::{CaseResult, ensure, same},
    test_inbox::{Context, LONG, TestInbox, message, numbered, processed},
};

/// Enough for many slices of a purge.
const MANY: usize = 3_000;

/// What takes something from many final messages, slice by slice.
#[derive(Clone, Copy, Debug)]
enum Purging {
    Purge,
    PurgeArchived,
    DropPayloads,
}

impl Purging {
    /// The messages that have what this takes.
    async fn left(self, inbox: &TestInbox, all: &PurgeRequest) -> Result<usize> {
        let listing = inbox.expired(all).await?;
        let has_payload = |record: &&Record| record.payload.is_some();
        Ok(match self {
            Self::Purge | Self::PurgeArchived => listing.records.len(),
            Self::DropPayloads => listing.records.iter().filter(has_payload).count(),
        })
    }

    /// Does it, with an outage from its first slice on.
    async fn cut_short(
        self,
        inbox: &TestInbox,
        all: &PurgeRequest,
        keys: &[Key],
    ) -> CaseResult<Result<u64>> {
        let purging = async {
            match self {
                Self::Purge => inbox.purge(all).await,
                Self::PurgeArchived => inbox.purge_archived(all, keys).await,
                Self::DropPayloads => inbox.drop_payloads(all).await,
            }
        };
        let first_slice = async {
            while self.left(inbox, all).await? == MANY {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            CaseResult::Ok(())
        };
        let mut purging = std::pin::pin!(purging);
        tokio::select! {
            purged = &mut purging => return Ok(purged),
            seen = first_slice => seen?,
        }
        let (purged, begun) = tokio::join!(purging, inbox.fixture.server().begin_outage());
        begun?;
        inbox.fixture.server().end_outage().await?;
        Ok(purged)
    }
}

/// Defect: what a later slice failed with, that nothing was changed, is said of all of them.
pub(crate) async fn a_purge_that_it_cuts_short_says_so(cx: Context) -> CaseResult {
    let all = PurgeRequest::new(State::Processed, Duration::ZERO, Page::MAX)?;
    for purging in [
        Purging::Purge,
        Purging::PurgeArchived,
        Purging::DropPayloads,
    ] {
        let inbox = cx.fresh_to_disrupt().await?;
        let messages = numbered(MANY)?;
        inbox.accept_all(&messages).await?;
        loop {
            let leased = inbox.claim_up_to(500, LONG).await?;
            if leased.is_empty() {
                break;
            }
            let settlements = leased.into_iter().map(|leased| Settlement {
                lease: leased.lease,
                outcome: processed(),
            });
            let settlements: Vec<_> = settlements.collect();
            let _ = inbox.settle(&settlements).await?;
        }
        same("processed", &purging.left(&inbox, &all).await?, &MANY)?;
        let keys: Vec<Key> = messages
            .iter()
            .map(|message| message.key().clone())
            .collect();
        let purged = purging.cut_short(&inbox, &all, &keys).await?;
        let _ = recovered(&inbox, &message("after")?).await?;
        let Err(error) = purged else { continue };
        // What had arrived at the server is done by now.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let changed = MANY - purging.left(&inbox, &all).await?;
        ensure!(
            error.effect() == Effect::Unknown || changed == 0,
            "effect of {purging:?}, which failed after it had taken {changed} of {MANY}: expected \
             Unknown, saw {:?} ({error})",
            error.effect()
        );
    }
    Ok(())
}
