//! Whether the tables of an inbox agree with each other, by SQL that knows their layout and
//! nothing of the store's own statements.

use inbox_api::{Filter, Operate as _, State};

use super::{Place, Ready};

/// Rules that do not hold in the tables of an inbox.
pub async fn find_broken_rules(place: &Place) -> sqlx::Result<Vec<String>> {
    place.find_column(include_str!("invariants.sql")).await
}

/// As [`find_broken_rules`], where the server is there.
pub async fn broken_rules(place: &Place) -> Vec<String> {
    find_broken_rules(place).await.unwrap()
}

/// Fails unless the tables agree with each other, and the statistics with the listing.
pub async fn check_consistent(ready: &Ready) {
    assert_eq!(broken_rules(&ready.place).await, [""; 0]);
    let statistics = ready.store.statistics().await.unwrap();
    for state in State::ALL {
        let filter = Filter {
            states: vec![state],
            ..Filter::default()
        };
        let counted = ready.store.count(&filter).await.unwrap();
        assert_eq!(statistics.count(state), counted, "{state}");
    }
}
