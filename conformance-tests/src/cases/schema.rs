//! Setting up.

use inbox_api::{ErrorKind, Inbox, Message, Migration, State, StoreExt};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    kept,
    needs::SchemaVariant,
    test_inbox::{Context, TestInbox, message, numbered, processed},
};

/// Set in the environment to keep an inbox of this version rather than look at the one that is kept.
const KEEP: &str = "INBOX_CONFORMANCE_KEEP";

/// It does what an inbox does.
async fn works(inbox: &TestInbox, message: &Message) -> CaseResult {
    inbox.accept(message).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, processed()).await
}

fn refused<T: std::fmt::Debug>(
    what: &str,
    answer: Result<T, inbox_api::Error>,
    kind: ErrorKind,
) -> CaseResult<String> {
    match answer {
        Ok(answer) => Err(Unmet::Failed(format!(
            "{what}: expected {kind:?}, saw {answer:?}"
        ))),
        Err(error) => {
            same(&format!("{what}: kind of the error"), &error.kind(), &kind)?;
            Ok(error.to_string())
        }
    }
}

/// Where there is something that this build must not touch, `exists` is false or says what it is.
async fn does_not_exist(inbox: &TestInbox) -> CaseResult {
    match inbox.exists().await {
        Ok(exists) => same("exists", &exists, &false),
        Err(error) => same(
            "kind of the error of exists",
            &error.kind(),
            &ErrorKind::SchemaVersion,
        ),
    }
}

pub(crate) async fn a_fresh_inbox_is_complete(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    same("exists", &inbox.exists().await?, &true)?;
    let expected = inbox.expected_version();
    same("version", &inbox.version().await?, &Some(expected))?;
    ensure!(
        !inbox.ddl().trim().is_empty(),
        "ddl: expected statements or a comment, saw nothing"
    );
    Ok(())
}

pub(crate) async fn setting_up_twice_changes_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Processed).await?;
    inbox.create().await?;
    let expected = Migration {
        from: Some(inbox.expected_version()),
        to: inbox.expected_version(),
        works_from: inbox.works_from(),
    };
    same("migrate", &inbox.migrate().await?, &expected)?;
    inbox.has_state(sent.key(), State::Processed).await?;
    inbox.refuses_copy(&sent, "after setting up again").await
}

/// Defect: a missing table is accepted silently.
pub(crate) async fn a_missing_inbox_is_told(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Missing).await?;
    same("exists", &inbox.exists().await?, &false)?;
    same("version", &inbox.version().await?, &None)?;
    refused(
        "receive",
        inbox.receive(&numbered(1)?).await,
        ErrorKind::SchemaMissing,
    )?;
    refused(
        "statistics",
        inbox.statistics().await,
        ErrorKind::SchemaMissing,
    )?;
    refused(
        "get",
        inbox.get(message("1")?.key()).await,
        ErrorKind::SchemaMissing,
    )?;
    same(
        "exists after refused operations",
        &inbox.exists().await?,
        &false,
    )
}

pub(crate) async fn create_sets_up(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Missing).await?;
    inbox.create().await?;
    same("exists", &inbox.exists().await?, &true)?;
    same(
        "version",
        &inbox.version().await?,
        &Some(inbox.expected_version()),
    )?;
    works(&inbox, &message("1")?).await
}

pub(crate) async fn migrate_sets_up(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Missing).await?;
    let expected = Migration {
        from: None,
        to: inbox.expected_version(),
        works_from: inbox.works_from(),
    };
    same("migrate", &inbox.migrate().await?, &expected)?;
    same("exists", &inbox.exists().await?, &true)?;
    works(&inbox, &message("1")?).await
}

/// Defect: processes that start together break each other's set-up.
pub(crate) async fn many_can_set_up_at_once(cx: Context) -> CaseResult {
    for migrate in [false, true] {
        let inbox = cx.variant(SchemaVariant::Missing).await?;
        let mut tasks = Vec::new();
        for connection in inbox.connections(6).await? {
            tasks.push(tokio::spawn(set_up(connection, migrate)));
        }
        for task in tasks {
            task.await??;
        }
        same("exists", &inbox.exists().await?, &true)?;
        works(&inbox, &message("1")?).await?;
    }
    Ok(())
}

async fn set_up(inbox: std::sync::Arc<dyn Inbox>, migrate: bool) -> CaseResult {
    if migrate {
        super::concurrency::persist(|| inbox.migrate()).await?;
    } else {
        super::concurrency::persist(|| inbox.create()).await?;
    }
    Ok(())
}

pub(crate) async fn an_incomplete_inbox_is_refused(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Incomplete).await?;
    same("exists", &inbox.exists().await?, &false)?;
    refused("create", inbox.create().await, ErrorKind::SchemaVersion).map(drop)
}

pub(crate) async fn an_older_inbox_is_migrated(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Older).await?;
    same("exists", &inbox.exists().await?, &false)?;
    let found = inbox.version().await?;
    ensure!(
        found.is_some_and(|found| found < inbox.expected_version()),
        "version: expected less than {}, saw {found:?}",
        inbox.expected_version()
    );
    refused("create", inbox.create().await, ErrorKind::SchemaVersion)?;
    let expected = Migration {
        from: found,
        to: inbox.expected_version(),
        works_from: inbox.works_from(),
    };
    same("migrate", &inbox.migrate().await?, &expected)?;
    same("exists", &inbox.exists().await?, &true)?;
    if kept::is_filled(&*inbox).await? {
        kept::check(&inbox).await?;
    }
    works(&inbox, &message("new")?).await
}

/// Defect: workers that are upgraded together take the same step twice, or the second fails at what the first has made.
pub(crate) async fn many_can_migrate_at_once(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Older).await?;
    let (older, expected) = (inbox.version().await?, inbox.expected_version());
    let mut tasks = Vec::new();
    for connection in inbox.connections(6).await? {
        tasks.push(tokio::spawn(async move {
            super::concurrency::persist(|| connection.migrate()).await
        }));
    }
    let mut changes = 0;
    for task in tasks {
        let migration = task.await??;
        same("migrate: to", &migration.to, &expected)?;
        ensure!(
            migration.from == older || migration.from == Some(expected),
            "migrate: expected to begin at {older:?} or {expected}, saw {migration:?}"
        );
        changes += usize::from(migration.from == older);
    }
    ensure!(
        changes > 0,
        "migrate: expected that one says it began at {older:?}"
    );
    same("exists", &inbox.exists().await?, &true)?;
    if kept::is_filled(&*inbox).await? {
        kept::check(&inbox).await?;
    }
    works(&inbox, &message("new")?).await
}

/// Defect: a change of the layout without a step that brings it about.
pub(crate) async fn a_kept_inbox_answers_as_it_did(cx: Context) -> CaseResult {
    if std::env::var_os(KEEP).is_some() {
        let inbox = cx.fresh().await?;
        kept::fill(&*inbox).await?;
        return Ok(inbox.fixture.keep().await?);
    }
    let inbox = cx.variant(SchemaVariant::Kept).await?;
    let expected = inbox.expected_version();
    same("version", &inbox.version().await?, &Some(expected))?;
    ensure!(
        inbox.exists().await?,
        "the layout is not that of the inbox of version {expected} which is kept: if that version was \
         released, add a step that brings about the change; then keep an inbox of the new version \
         (run this case once with {KEEP}=1)"
    );
    let expected = Migration {
        from: Some(expected),
        to: expected,
        works_from: inbox.works_from(),
    };
    same("migrate", &inbox.migrate().await?, &expected)?;
    kept::check(&inbox).await
}

/// Defect: a wrong version is accepted silently.
pub(crate) async fn a_newer_inbox_is_refused(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Newer).await?;
    does_not_exist(&inbox).await?;
    let (expected, found) = (inbox.expected_version(), inbox.version().await?);
    let Some(found) = found.filter(|found| *found > expected) else {
        return Err(Unmet::Failed(format!(
            "version: expected more than {expected}, saw {found:?}"
        )));
    };
    for (what, answer) in [
        ("create", inbox.create().await),
        ("migrate", inbox.migrate().await.map(drop)),
    ] {
        let error = refused(what, answer, ErrorKind::SchemaVersion)?;
        ensure!(
            error.contains(&found.to_string()) && error.contains(&expected.to_string()),
            "{what}: expected an error that names the versions {found} and {expected}, saw {error:?}"
        );
    }
    same(
        "version after the refusals",
        &inbox.version().await?,
        &Some(found),
    )
}

/// Defect: a worker that is started again during an upgrade refuses what its neighbours work with.
pub(crate) async fn a_newer_inbox_that_allows_it_is_used(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Suitable).await?;
    same("exists", &inbox.exists().await?, &true)?;
    let (expected, found) = (inbox.expected_version(), inbox.version().await?);
    let Some(found) = found.filter(|found| *found > expected) else {
        return Err(Unmet::Failed(format!(
            "version: expected more than {expected}, saw {found:?}"
        )));
    };
    inbox.create().await?;
    let migration = inbox.migrate().await?;
    same(
        "migrate",
        &(migration.from, migration.to),
        &(Some(found), found),
    )?;
    ensure!(
        migration.works_from <= expected,
        "migrate: expected builds from {expected} or earlier on to be allowed, saw {migration:?}"
    );
    works(&inbox, &message("1")?).await?;
    same("version afterwards", &inbox.version().await?, &Some(found))
}

pub(crate) async fn something_foreign_is_refused(cx: Context) -> CaseResult {
    let inbox = cx.variant(SchemaVariant::Foreign).await?;
    does_not_exist(&inbox).await?;
    refused("create", inbox.create().await, ErrorKind::SchemaVersion)?;
    refused("migrate", inbox.migrate().await, ErrorKind::SchemaVersion)?;
    ensure!(
        inbox.receive_one(&message("1")?).await.is_err(),
        "receive into something foreign: expected an error, saw an answer"
    );
    Ok(())
}

pub(crate) async fn the_statements_are_text(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let statements = inbox.ddl();
    ensure!(
        !statements.trim().is_empty(),
        "ddl: expected the statements, or a comment that there are none, saw {statements:?}"
    );
    same("ddl, asked again", &inbox.ddl(), &statements)
}
