//! Setting up.

use inbox_api::{ErrorKind, Inbox, Message, Migration, State, StoreExt};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    harness::SchemaVariant,
    place::{Context, Place, message, numbered, processed},
};

/// It does what an inbox does.
async fn works(place: &Place, message: &Message) -> CaseResult {
    place.accept(message).await?;
    let leased = place.claim_one().await?;
    place.finish(&leased, processed()).await
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
async fn does_not_exist(place: &Place) -> CaseResult {
    match place.exists().await {
        Ok(exists) => same("exists", &exists, &false),
        Err(error) => same(
            "kind of the error of exists",
            &error.kind(),
            &ErrorKind::SchemaVersion,
        ),
    }
}

pub(crate) async fn a_fresh_inbox_is_complete(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    same("exists", &place.exists().await?, &true)?;
    let expected = place.expected_version();
    same("version", &place.version().await?, &Some(expected))?;
    ensure!(
        !place.ddl().trim().is_empty(),
        "ddl: expected statements or a comment, saw nothing"
    );
    Ok(())
}

pub(crate) async fn setting_up_twice_changes_nothing(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let sent = message("1")?;
    place.accept_in(&sent, State::Processed).await?;
    place.create().await?;
    let expected = Migration {
        from: Some(place.expected_version()),
        to: place.expected_version(),
    };
    same("migrate", &place.migrate().await?, &expected)?;
    place.has_state(sent.key(), State::Processed).await?;
    place.refuses_copy(&sent, "after setting up again").await
}

/// Defect: a missing table is accepted silently.
pub(crate) async fn a_missing_inbox_is_told(cx: Context) -> CaseResult {
    let place = cx.variant(SchemaVariant::Missing).await?;
    same("exists", &place.exists().await?, &false)?;
    same("version", &place.version().await?, &None)?;
    refused(
        "receive",
        place.receive(&numbered(1)?).await,
        ErrorKind::SchemaMissing,
    )?;
    refused(
        "statistics",
        place.statistics().await,
        ErrorKind::SchemaMissing,
    )?;
    refused(
        "get",
        place.get(message("1")?.key()).await,
        ErrorKind::SchemaMissing,
    )?;
    same(
        "exists after refused operations",
        &place.exists().await?,
        &false,
    )
}

pub(crate) async fn create_sets_up(cx: Context) -> CaseResult {
    let place = cx.variant(SchemaVariant::Missing).await?;
    place.create().await?;
    same("exists", &place.exists().await?, &true)?;
    same(
        "version",
        &place.version().await?,
        &Some(place.expected_version()),
    )?;
    works(&place, &message("1")?).await
}

pub(crate) async fn migrate_sets_up(cx: Context) -> CaseResult {
    let place = cx.variant(SchemaVariant::Missing).await?;
    let expected = Migration {
        from: None,
        to: place.expected_version(),
    };
    same("migrate", &place.migrate().await?, &expected)?;
    same("exists", &place.exists().await?, &true)?;
    works(&place, &message("1")?).await
}

/// Defect: processes that start together break each other's set-up.
pub(crate) async fn many_can_set_up_at_once(cx: Context) -> CaseResult {
    for migrate in [false, true] {
        let place = cx.variant(SchemaVariant::Missing).await?;
        let mut tasks = Vec::new();
        for inbox in place.connections(6).await? {
            tasks.push(tokio::spawn(set_up(inbox, migrate)));
        }
        for task in tasks {
            task.await??;
        }
        same("exists", &place.exists().await?, &true)?;
        works(&place, &message("1")?).await?;
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
    let place = cx.variant(SchemaVariant::Incomplete).await?;
    same("exists", &place.exists().await?, &false)?;
    refused("create", place.create().await, ErrorKind::SchemaVersion).map(drop)
}

pub(crate) async fn an_older_inbox_is_migrated(cx: Context) -> CaseResult {
    let place = cx.variant(SchemaVariant::Older).await?;
    same("exists", &place.exists().await?, &false)?;
    let found = place.version().await?;
    ensure!(
        found.is_some_and(|found| found < place.expected_version()),
        "version: expected less than {}, saw {found:?}",
        place.expected_version()
    );
    refused("create", place.create().await, ErrorKind::SchemaVersion)?;
    let expected = Migration {
        from: found,
        to: place.expected_version(),
    };
    same("migrate", &place.migrate().await?, &expected)?;
    same("exists", &place.exists().await?, &true)?;
    works(&place, &message("new")?).await
}

/// Defect: a wrong version is accepted silently.
pub(crate) async fn a_newer_inbox_is_refused(cx: Context) -> CaseResult {
    let place = cx.variant(SchemaVariant::Newer).await?;
    does_not_exist(&place).await?;
    let (expected, found) = (place.expected_version(), place.version().await?);
    let Some(found) = found.filter(|found| *found > expected) else {
        return Err(Unmet::Failed(format!(
            "version: expected more than {expected}, saw {found:?}"
        )));
    };
    for (what, answer) in [
        ("create", place.create().await),
        ("migrate", place.migrate().await.map(drop)),
    ] {
        let error = refused(what, answer, ErrorKind::SchemaVersion)?;
        ensure!(
            error.contains(&found.to_string()) && error.contains(&expected.to_string()),
            "{what}: expected an error that names the versions {found} and {expected}, saw {error:?}"
        );
    }
    same(
        "version after the refusals",
        &place.version().await?,
        &Some(found),
    )
}

pub(crate) async fn something_foreign_is_refused(cx: Context) -> CaseResult {
    let place = cx.variant(SchemaVariant::Foreign).await?;
    does_not_exist(&place).await?;
    refused("create", place.create().await, ErrorKind::SchemaVersion)?;
    refused("migrate", place.migrate().await, ErrorKind::SchemaVersion)?;
    ensure!(
        place.receive_one(&message("1")?).await.is_err(),
        "receive into something foreign: expected an error, saw an answer"
    );
    Ok(())
}

pub(crate) async fn the_statements_are_text(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let statements = place.ddl();
    ensure!(
        !statements.trim().is_empty(),
        "ddl: expected the statements, or a comment that there are none, saw {statements:?}"
    );
    same("ddl, asked again", &place.ddl(), &statements)
}
