//! Worker processes on one inbox, killed again and again, and their server too: the crash part of
//! the conformance suite. On MariaDB; `INBOX_CRASH_SERVER=mysql` makes it MySQL.
//!
//! `cargo test -p inbox-mysql --test crash -- --kills 200 --operations 100000` is the full run.

use std::{
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    BoxError, Offered, Restart, Transactions, Unable,
    crash::{self, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_mysql::{MySqlOptions, MySqlStore};
use test_servers::{Kind, Server, require_or_skip};

mod common;

use common::{connect_options, harness::Effects};

struct Database(Kind);

#[async_trait]
impl Target for Database {
    fn name(&self) -> String {
        self.0.name().into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let kind = self.0;
        let server = tokio::task::spawn_blocking(move || require_or_skip(kind)).await??;
        let server = server.ok_or("no server")?;
        let place = Place {
            address: server.url().to_owned(),
            server: Arc::new(Mutex::new(server)),
        };
        let store = connect(&place.address).await?;
        store.create().await?;
        store.close().await;
        let options = connect_options(&place.address, None);
        let mut connection = sqlx::ConnectOptions::connect(&options).await?;
        sqlx::raw_sql("CREATE TABLE effects (note TEXT NOT NULL)")
            .execute(&mut connection)
            .await?;
        Ok(Box::new(place))
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        let store = Arc::new(connect(address).await?);
        let effects = Arc::new(Effects(connect_options(address, None)));
        Ok(Opened {
            inbox: store.clone(),
            transactions: Some(Arc::new(Transactions::new(store).with_writes(effects))),
        })
    }
}

struct Place {
    address: String,
    server: Arc<Mutex<Server>>,
}

#[async_trait]
impl Site for Place {
    fn address(&self) -> String {
        self.address.clone()
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        if common::lock(&self.server).is_shared() {
            return Err(Unable::NotOffered(conformance_tests::Need::Restart));
        }
        common::restart(&self.server, how).await
    }
}

/// Waits for a server that is just being restarted.
async fn connect(url: &str) -> inbox_api::Result<MySqlStore> {
    let options = MySqlOptions::new(connect_options(url, None)).timeout(Duration::from_secs(5));
    let mut tries = 0;
    loop {
        match MySqlStore::connect(options.clone()).await {
            Err(error) if error.is_retryable() && tries < 300 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

fn main() -> ExitCode {
    let kind = match std::env::var("INBOX_CRASH_SERVER").as_deref() {
        Ok("mysql") => Kind::Mysql,
        _ => Kind::Mariadb,
    };
    // A worker of this program must not look for servers of its own.
    if std::env::var_os("INBOX_CRASH_WORKER").is_none() && test_servers::locate(kind).is_err() {
        eprintln!("crash: skipped, there is no {kind} server");
        return ExitCode::SUCCESS;
    }
    crash::main(&Database(kind))
}
