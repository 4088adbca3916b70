//! One process that serves many tenants, each with a store of its own:
//! `multi-tenant ADDRESS FOLDER TENANT…`. A note is `POST /TENANT/ID`, as often as its sender likes.

mod shutdown;

use std::{collections::HashMap, error::Error, path::Path, sync::Arc, time::Duration};

use axum::extract::{Path as UrlPath, State};
use axum::{body::Bytes, http::StatusCode, routing::post};
use inbox::sqlite::{SqliteOptions, SqliteStore, sqlx};
use inbox::{Context, HandlerName, Invalid, Janitor, Kind, Message, MessageId};
use inbox::{Processor, Receipt, Router, Schema as _, Service, StoreExt as _};
use inbox::{Transactional as _, in_transaction_fn};
use tokio::task::JoinSet;

type Stores = HashMap<String, Arc<SqliteStore>>;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS note (id TEXT NOT NULL, text BLOB NOT NULL)";

/// Adding a tenant is this: a file that nobody else's messages or notes are in.
async fn open(folder: &Path, tenant: &str) -> Result<Arc<SqliteStore>, Box<dyn Error>> {
    let file = folder.join(format!("{tenant}.db"));
    let store = SqliteStore::connect(SqliteOptions::new(file)).await?;
    store.migrate().await?;
    let mut setup = store.open().await?;
    sqlx::query(TABLE).execute(&mut *setup).await?;
    store.commit(setup).await?;
    Ok(Arc::new(store))
}

/// What works on a tenant's store. What one tenant waits for holds up none of the others.
fn service(store: &Arc<SqliteStore>) -> Result<Service, Invalid> {
    let keep = in_transaction_fn(
        SqliteStore::clone(store),
        |mut tx, context: Context| async move {
            let message = context.message();
            let insert = sqlx::query("INSERT INTO note (id, text) VALUES (?, ?)");
            let insert = insert
                .bind(message.id().as_str())
                .bind(&message.payload()[..]);
            insert.execute(&mut **tx).await?;
            Ok::<_, sqlx::Error>(())
        },
    );
    let processor = Processor::builder(store.clone())
        .router(Router::new("notes").on("note", keep).concurrency(4))
        .lease(Duration::from_secs(10)) // when another process takes over from one that was killed
        .build()?;
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let janitor = Janitor::builder(store.clone()).keep_processed(month);
    Service::builder(store.clone())
        .processor("notes", processor)
        .janitor("retention", janitor.build()?)
        .build()
}

async fn receive(
    State(stores): State<Arc<Stores>>,
    UrlPath((tenant, id)): UrlPath<(String, String)>,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    let store = stores.get(&tenant).ok_or(StatusCode::NOT_FOUND)?;
    let message = || {
        let (handler, kind) = (HandlerName::new("notes")?, Kind::new("note")?);
        Ok::<_, Invalid>(Message::new(handler, MessageId::new(id)?, kind, body))
    };
    let message = message().map_err(|_| StatusCode::BAD_REQUEST)?;
    match store.receive_one(&message).await {
        Ok(Receipt::Accepted) => Ok(StatusCode::ACCEPTED),
        Ok(_) => Ok(StatusCode::OK),
        Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE), // its sender tries again
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: multi-tenant ADDRESS FOLDER TENANT…";
    let address = arguments.next().ok_or(usage)?;
    let folder = arguments.next().ok_or(usage)?;
    let shutdown = shutdown::shutdown()?;
    let (mut stores, mut running) = (Stores::new(), JoinSet::new());
    for tenant in arguments {
        let store = open(folder.as_ref(), &tenant).await?;
        running.spawn(service(&store)?.run(shutdown.clone()));
        stores.insert(tenant, store);
    }
    let app = axum::Router::new().route("/{tenant}/{id}", post(receive));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.with_state(Arc::new(stores)))
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await?;
    while let Some(ended) = running.join_next().await {
        println!("{}", ended??);
    }
    Ok(())
}
