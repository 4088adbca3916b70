//! Setting an inbox up.

use async_trait::async_trait;

use crate::Result;

/// The result of [`Schema::migrate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The version before, or `None` when there was no inbox.
    pub from: Option<u32>,
    /// The version now.
    pub to: u32,
    /// The oldest version whose builds may go on working with the inbox as it is now.
    pub works_from: u32,
}

/// The schema of an inbox: tables and indexes, or whatever the database has in their place.
///
/// # Rules for implementors
/// - Everything here MUST be harmless when done twice or by many processes at once.
/// - Nothing here may touch objects that are not the inbox's own.
///
/// # Errors
/// `SchemaVersion` when the place holds a newer inbox or something that is not one, with a
/// message that names what was found and what this build expects; otherwise as
/// [`Store`](crate::Store).
#[async_trait]
pub trait Schema: Send + Sync {
    /// The statements that set up an empty inbox of this version with this store's options, for
    /// people whose databases are changed by review. Running them is the same as
    /// [`create`](Self::create). A store without statements answers a comment that says so, never
    /// empty text.
    fn ddl(&self) -> String;

    /// What those people run to see whether a complete inbox of this version is there, as
    /// [`exists`](Self::exists) does, with this store's options: a query that answers one row with one
    /// boolean, and `false` rather than an error when there is none. A store without queries says in a
    /// comment what `exists` looks at, never in empty text.
    fn exists_query(&self) -> String;

    /// The version that this build sets up and works with.
    fn expected_version(&self) -> u32;

    /// The oldest version whose builds may work with what this build sets up: workers of such a build may
    /// stay while an inbox is migrated, and after it. A build works with a newer inbox that says so, and
    /// refuses any other newer one.
    fn works_from(&self) -> u32 {
        self.expected_version()
    }

    /// The version of the inbox that is there, or `None` when there is none.
    async fn version(&self) -> Result<Option<u32>>;

    /// Whether a complete inbox of the expected version is there. `false` when there is none, an
    /// older one, or one that lacks a part; a newer or foreign one is an error (see above).
    ///
    /// Implementors MUST check columns and indexes, not just names.
    async fn exists(&self) -> Result<bool>;

    /// Sets up the inbox if there is none. Does nothing when a complete one of the expected
    /// version is there.
    ///
    /// # Errors
    /// Also `SchemaVersion` for an older inbox (migrate it) and for an incomplete one.
    async fn create(&self) -> Result<()>;

    /// Brings the inbox to the expected version, under a lock: creates it, upgrades an older one,
    /// or does nothing. Messages keep their state.
    async fn migrate(&self) -> Result<Migration>;

    /// Removes the inbox with all that is in it, and nothing else. Does nothing when there is none; an
    /// older or incomplete one is removed as well, as one is that an earlier call has left half-removed.
    /// Operations fail with `SchemaMissing` afterwards, until it is set up again.
    async fn remove(&self) -> Result<()>;
}
