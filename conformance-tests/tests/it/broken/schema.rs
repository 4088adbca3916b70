//! Set-up, and the mistakes that are made at it.

use std::sync::{Arc, Mutex};

use conformance_tests::SchemaVariant;
use inbox_api::{Error, ErrorKind, Migration, Result};

use super::Defect;

/// The version that this build sets up. There is an older one.
pub(crate) const VERSION: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// Whatever is missing is set up on the way.
    SetsUpOnReceive,
    /// What is missing is told as an outage.
    MissingIsAway,
    /// There is always an inbox.
    AlwaysExists,
    /// Whatever is there is as it should be.
    CreateTakesAnything,
    CreateFailsTheSecondTime,
    CreateLosesARace,
    MigrateLosesARace,
    /// Works with its own version alone, whatever a newer inbox allows.
    RefusesWhatIsNewer,
    /// Takes a newer inbox for one of its own version.
    MigratesDown,
    MigrationHidesWhatWas,
    MigrateNeedsAnInbox,
    VersionsAreNotNamed,
    /// Takes what it has stored itself, in an earlier build of the same version, for incomplete.
    ChangesTheLayout,
    ForeignIsTaken,
    /// There is nothing to run, and nothing is said.
    NoStatements,
    RemoveNeedsAnInbox,
    RemovesAnything,
    RemovesNothing,
    /// Who asks while it is removed is told of a table that is gone.
    RemovalIsSeen,
}

/// What is found where the inbox should be.
#[derive(Clone, Debug)]
pub(crate) struct Condition(Arc<Mutex<Found>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    variant: Option<SchemaVariant>,
    times: u32,
    is_being_removed: bool,
}

impl Default for Condition {
    fn default() -> Self {
        Self::of(None)
    }
}

fn refused(operation: &'static str, kind: ErrorKind, text: &str) -> Error {
    Error::new(kind, text.to_owned()).in_operation(operation)
}

impl Condition {
    pub(crate) fn of(variant: Option<SchemaVariant>) -> Self {
        Self(Arc::new(Mutex::new(Found {
            variant,
            times: 0,
            is_being_removed: false,
        })))
    }

    fn variant(&self) -> Option<SchemaVariant> {
        self.0.lock().unwrap().variant
    }

    /// Fails unless there is an inbox that this build can work on.
    pub(crate) fn check(&self, defect: &impl Defect, operation: &'static str) -> Result<()> {
        let mistake = defect.at_set_up();
        match self.variant() {
            None | Some(SchemaVariant::Incomplete | SchemaVariant::Kept) => Ok(()),
            Some(SchemaVariant::Suitable) if mistake != Mistake::RefusesWhatIsNewer => Ok(()),
            Some(SchemaVariant::Missing) if mistake == Mistake::SetsUpOnReceive => Ok(()),
            Some(SchemaVariant::Missing) if mistake == Mistake::MissingIsAway => {
                Err(refused(operation, ErrorKind::Unavailable, "no such table"))
            }
            Some(SchemaVariant::Missing) => Err(refused(
                operation,
                ErrorKind::SchemaMissing,
                "there is no inbox",
            )),
            Some(SchemaVariant::Foreign) if mistake == Mistake::ForeignIsTaken => Ok(()),
            Some(_) => Err(refused(
                operation,
                ErrorKind::SchemaVersion,
                "this is no inbox of this version",
            )),
        }
    }

    pub(crate) fn exists(&self, defect: &impl Defect) -> Result<bool> {
        let mistake = defect.at_set_up();
        if mistake == Mistake::RemovalIsSeen && self.0.lock().unwrap().is_being_removed {
            let text = "no such table";
            return Err(refused("exists", ErrorKind::SchemaMissing, text));
        }
        match self.variant() {
            None => Ok(true),
            Some(SchemaVariant::Suitable) => Ok(mistake != Mistake::RefusesWhatIsNewer),
            Some(_) => Ok(mistake == Mistake::AlwaysExists),
        }
    }

    pub(crate) fn version(&self) -> Option<u32> {
        match self.variant() {
            None | Some(SchemaVariant::Incomplete | SchemaVariant::Kept) => Some(VERSION),
            Some(SchemaVariant::Older) => Some(VERSION - 1),
            Some(SchemaVariant::Newer | SchemaVariant::Suitable) => Some(VERSION + 1),
            Some(SchemaVariant::Missing | SchemaVariant::Foreign) => None,
        }
    }

    /// Sets up, unless there is something else.
    pub(crate) async fn create(&self, defect: &impl Defect) -> Result<()> {
        let mistake = defect.at_set_up();
        match self.variant() {
            None if mistake == Mistake::CreateFailsTheSecondTime => {
                let text = "the table exists already";
                return Err(refused("create", ErrorKind::Other, text));
            }
            Some(SchemaVariant::Suitable) if mistake != Mistake::RefusesWhatIsNewer => {
                return Ok(());
            }
            None | Some(SchemaVariant::Missing) => {}
            Some(SchemaVariant::Foreign) if mistake == Mistake::ForeignIsTaken => {}
            Some(SchemaVariant::Incomplete | SchemaVariant::Older)
                if mistake == Mistake::CreateTakesAnything => {}
            Some(_) => return Err(self.another("create", mistake)),
        }
        self.set_up(mistake).await
    }

    pub(crate) async fn migrate(&self, defect: &impl Defect) -> Result<Migration> {
        let mistake = defect.at_set_up();
        let mut from = self.version();
        match self.variant() {
            Some(SchemaVariant::Missing) if mistake == Mistake::MigrateNeedsAnInbox => {
                let text = "there is nothing to migrate";
                return Err(refused("migrate", ErrorKind::SchemaMissing, text));
            }
            Some(SchemaVariant::Suitable) if mistake != Mistake::RefusesWhatIsNewer => {
                return Ok(Migration {
                    from,
                    to: VERSION + 1,
                    works_from: VERSION,
                });
            }
            None | Some(SchemaVariant::Missing | SchemaVariant::Older) => {}
            Some(SchemaVariant::Newer) if mistake == Mistake::MigratesDown => {}
            Some(SchemaVariant::Foreign) if mistake == Mistake::ForeignIsTaken => {}
            Some(_) => return Err(self.another("migrate", mistake)),
        }
        self.set_up(mistake).await?;
        if mistake == Mistake::MigrationHidesWhatWas {
            from = Some(VERSION);
        }
        Ok(Migration {
            from,
            to: VERSION,
            works_from: VERSION,
        })
    }

    /// Makes the place empty, unless it is not this build's to touch.
    pub(crate) async fn remove(&self, defect: &impl Defect) -> Result<()> {
        let mistake = defect.at_set_up();
        match self.variant() {
            Some(SchemaVariant::Missing) if mistake == Mistake::RemoveNeedsAnInbox => {
                let text = "there is nothing to remove";
                return Err(refused("remove", ErrorKind::SchemaMissing, text));
            }
            Some(SchemaVariant::Newer | SchemaVariant::Foreign)
                if mistake != Mistake::RemovesAnything =>
            {
                return Err(self.another("remove", mistake));
            }
            _ if mistake == Mistake::RemovesNothing => return Ok(()),
            _ => {}
        }
        if mistake == Mistake::RemovalIsSeen {
            self.0.lock().unwrap().is_being_removed = true;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let mut found = self.0.lock().unwrap();
        found.variant = Some(SchemaVariant::Missing);
        found.is_being_removed = false;
        Ok(())
    }

    fn another(&self, operation: &'static str, mistake: Mistake) -> Error {
        let found = self.version().unwrap_or_default();
        let text = match mistake {
            Mistake::VersionsAreNotNamed => "another version".to_owned(),
            _ => format!("found version {found}, expected {VERSION}"),
        };
        refused(operation, ErrorKind::SchemaVersion, &text)
    }

    async fn set_up(&self, mistake: Mistake) -> Result<()> {
        let times = {
            let mut found = self.0.lock().unwrap();
            found.times += 1;
            found.times
        };
        let loses_a_race = match self.variant() {
            Some(SchemaVariant::Older) => mistake == Mistake::MigrateLosesARace,
            Some(_) => mistake == Mistake::CreateLosesARace,
            None => false,
        };
        if loses_a_race {
            tokio::task::yield_now().await;
            if times > 1 {
                let text = "the table exists already";
                return Err(refused("create", ErrorKind::Other, text));
            }
        }
        self.0.lock().unwrap().variant = None;
        Ok(())
    }
}

/// One mistake at the set-up.
pub(crate) struct SetsUp(pub(crate) Mistake);

impl Defect for SetsUp {
    fn at_set_up(&self) -> Mistake {
        self.0
    }
}
