//! Retention of many handlers, and of messages that are lost.

use std::time::Duration;

use inbox_api::{AfterDead, Operate as _, PurgeRequest, Schema as _, State};

use crate::common::{TestInbox, accept, claim, dead, key, message, on_each, processed, settle};

const HANDLERS: usize = 300;
/// Of which the last ones have messages that have expired.
const WITH_EXPIRED: usize = 50;
const OF_EACH: usize = 60;
const EXPIRED: usize = WITH_EXPIRED * OF_EACH;
const HOUR: Duration = Duration::from_secs(3600);

/// A processed message of each handler that is young, and old ones of the last handlers: those of all handlers finished
/// in turn, the one with the highest number first.
async fn fill(inbox: &TestInbox) {
    let young = (0..HANDLERS).map(|handler| (handler, 0));
    let old = (0..EXPIRED).map(|n| {
        (
            HANDLERS - 1 - n % WITH_EXPIRED,
            2 * HOUR.as_micros() - n as u128,
        )
    });
    let rows: Vec<_> = young
        .chain(old)
        .enumerate()
        .map(|(n, (handler, age))| format!("({}, 'h{handler:03}', @now - {age})", n + 1))
        .collect();
    let fill = format!(
        "SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
         CREATE TABLE filled (seq BIGINT PRIMARY KEY, handler VARBINARY(128), finished_at BIGINT);
         INSERT INTO filled VALUES {};
         INSERT INTO inbox_message (seq, handler, id, kind, headers, accepted_at, first_due_at, batch, fingerprint,
             payload_bytes, payload)
         SELECT seq, handler, seq, 'k', '{{}}', 0, 0, 0, 0, 1, 'x' FROM filled;
         INSERT INTO inbox_done (seq, handler, state, due_at, leased_at, token, started, finished, replays,
             finished_at, kept)
         SELECT seq, handler, 2, 0, 0, 1, 1, 1, 0, finished_at, 1 FROM filled;
         INSERT INTO inbox_tally (handler, backlog, processed, dead, discarded)
         SELECT handler, 0, COUNT(*), 0, 0 FROM filled GROUP BY handler;
         DROP TABLE filled",
        rows.join(", ")
    );
    inbox.run(fill).await.unwrap();
}

fn expired(limit: usize) -> PurgeRequest {
    PurgeRequest::new(State::Processed, HOUR, u32::try_from(limit).unwrap()).unwrap()
}

#[test]
fn what_has_expired_of_many_handlers_is_taken_to_the_last() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        fill(&inbox).await;
        // The longest-finished first, of whichever handler.
        let listing = store.expired(&expired(75)).await.unwrap();
        let found: Vec<_> = listing
            .records
            .iter()
            .map(|record| record.key.handler.as_str().to_owned())
            .collect();
        let oldest: Vec<_> = (0..75)
            .map(|n| format!("h{}", HANDLERS - 1 - n % WITH_EXPIRED))
            .collect();
        assert_eq!(found, oldest);

        let all = expired(EXPIRED);
        assert_eq!(store.expired(&all).await.unwrap().records.len(), EXPIRED);
        assert_eq!(store.drop_payloads(&all).await.unwrap(), EXPIRED as u64);
        assert_eq!(store.drop_payloads(&all).await.unwrap(), 0);
        // Less than the limit says that nothing is left.
        assert_eq!(store.purge(&expired(75)).await.unwrap(), 75);
        assert_eq!(store.purge(&all).await.unwrap(), EXPIRED as u64 - 75);
        let left = inbox.number("SELECT COUNT(*) FROM inbox_message").await;
        assert_eq!(left, HANDLERS as i64);
        assert!(store.exists().await.unwrap());
    });
}

/// It took the place of another one, so that a sweep with an archiver ended early.
#[test]
fn a_final_message_that_is_lost_is_listed_as_corrupt() {
    on_each(async |inbox, _| {
        for (state, outcome) in [
            (State::Processed, processed()),
            (State::Dead, dead(AfterDead::Continue)),
        ] {
            let store = inbox.store().await;
            accept(&store, &[message("lost"), message("kept")]).await;
            for leased in claim(&store, 2).await {
                settle(&store, &leased.lease, outcome.clone()).await;
            }
            let lost = "DELETE FROM inbox_message WHERE id = 'lost'";
            inbox.run(lost).await.unwrap();
            let request = PurgeRequest::new(state, Duration::ZERO, 2).unwrap();
            let listing = store.expired(&request).await.unwrap();
            let keys: Vec<_> = listing.records.iter().map(|record| &record.key).collect();
            assert_eq!(keys, [&key("kept")]);
            let reasons: Vec<_> = listing
                .corrupt
                .iter()
                .map(|row| row.reason.as_str())
                .collect();
            assert_eq!(reasons, ["message is missing"]);
            assert_eq!(store.purge(&request).await.unwrap(), 2);
        }
    });
}
