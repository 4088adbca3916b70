//! What a third party writes: how to get a fresh inbox of its store, and what else the suite may
//! do to it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::{Inbox, Key};

use crate::{
    needs::{Corruption, Need, Offered, SchemaVariant, Settings, Unable},
    server::ServerControl,
    transactions::AnyTransactions,
};

/// A store under test. One value serves all cases; see the [crate documentation](crate) for a
/// complete one.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// What the report calls the store.
    fn name(&self) -> String;

    /// A fresh inbox: set up, empty, and not touched by anything else, whatever runs at the same
    /// time. Everything behind it is cleaned up when the fixture is dropped.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] with [`Need::PayloadLimit`], [`Need::DroppedPayloads`] or
    /// [`Need::OperationTimeout`] when `settings` asks for what the store has no option for;
    /// [`Unable::Failed`] otherwise.
    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>>;

    /// A fresh place in the condition `variant`, with a store that has not been set up on it.
    /// [`Fixture::inbox`] of what is returned opens without creating or migrating an inbox; it may make
    /// what an inbox is kept in, such as an empty file or database.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless the harness overrides this.
    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        Err(Unable::NotOffered(Need::Schema(variant)))
    }

    /// Removes what the run has left behind: fixtures cannot wait for a server when they are dropped.
    /// A program calls this once, after the last case or an interrupt.
    ///
    /// # Errors
    /// [`Unable::Failed`], with what is still there.
    async fn clean_up(&self) -> Offered<()> {
        Ok(())
    }

    /// What this harness and its store are known to lack. A case that cannot be checked for any
    /// other reason fails, so that nothing is skipped silently.
    fn expected_not_checked(&self) -> Vec<Need> {
        Vec::new()
    }
}

#[async_trait]
impl<H: Harness + ?Sized> Harness for Arc<H> {
    fn name(&self) -> String {
        (**self).name()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        (**self).fresh(settings).await
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        (**self).schema_variant(variant).await
    }

    async fn clean_up(&self) -> Offered<()> {
        (**self).clean_up().await
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        (**self).expected_not_checked()
    }
}

/// One isolated inbox, and what the harness can do to it. Dropping it cleans up.
///
/// Only [`inbox`](Self::inbox) is required; each further ability lets more cases be checked.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// The inbox. Called several times, it may return the same value.
    fn inbox(&self) -> Arc<dyn Inbox>;

    /// What can be done to the server that the inbox is on.
    fn server(&self) -> &dyn ServerControl {
        &()
    }

    /// Moves the store's clock forward. Without it, cases wait for short real times, and those
    /// that would have to wait longer than a fifth of a second are not checked.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        let _ = by;
        Err(Unable::NotOffered(Need::Clock))
    }

    /// Opens the same inbox as another process would: own connections, own memory, the same
    /// clock.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Err(Unable::NotOffered(Need::SecondConnection))
    }

    /// Checks the store's own tables, indexes or keys against each other, by the database's own means
    /// and without the store's own statements: that counts are those of the rows, that each message
    /// is in one state and where a claim finds it, that no index has what the rows do not, that each
    /// ordering key has one message that can be claimed, leased or blocking. Answers what does not
    /// agree, a sentence each; nothing when all does.
    ///
    /// The suite asks after each case that passed, once for each inbox that the case made, and the case
    /// fails with what is answered. So it should be quick: one query, or one round trip. The store may
    /// still finish what a case has dropped, so the query has to see one moment. It is not asked about an
    /// inbox in an [outage](ServerControl::begin_outage), nor after [`corrupt`](Self::corrupt),
    /// [`silence`](Self::silence) or [`lose_power`](ServerControl::lose_power), nor where there is no inbox. No
    /// clock may decide the answer: a lease that has run out is no contradiction.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn check_invariants(&self) -> Offered<Vec<String>> {
        Err(Unable::NotOffered(Need::Invariants))
    }

    /// Keeps all that is stored, as a file of the store's source, from which
    /// [`SchemaVariant::Kept`] is made from then on. So later builds show that they read what this one
    /// has written. Asked for by a run of the case `schema::a_kept_inbox_answers_as_it_did` with
    /// `INBOX_CONFORMANCE_KEEP=1` in the environment: for each version of the layout, before its release.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn keep(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::Schema(SchemaVariant::Kept)))
    }

    /// Spoils the stored row of `key` with the database's own means.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let _ = (key, corruption);
        Err(Unable::NotOffered(Need::CorruptRows))
    }

    /// Makes every connection that is open now go silent, for good: nothing that is sent on it
    /// arrives or is refused, as behind a firewall that has forgotten it. New connections work.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn silence(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::Silence))
    }

    /// The store's transactions; see [`Transactions`](crate::Transactions).
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        Err(Unable::NotOffered(Need::Transactions))
    }
}
