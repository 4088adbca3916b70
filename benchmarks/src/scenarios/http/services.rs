//! The services that are compared.

use std::sync::Arc;

use anyhow::{Result, bail};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
    serve::ListenerExt as _,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use inbox::{Inbox, Store};
use inbox_http::{
    Endpoint, IdempotencyLayer, Provider, WebhookReceiver,
    idempotency::{IdempotencyKey, Tx},
};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

use super::by_hand::Tables;
use crate::{scenarios::pair, stores::AnyStore};

pub(super) const PATH: &str = "/payments";
const SECRET: &str = "a-secret-for-benchmarks";
const RESPONSE: &str = r#"{"status":"paid"}"#;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// Writes a row, whatever the key.
    Alone,
    /// The same behind an insert of the key, and before an update.
    ByHand,
    Layer,
    /// Writes its row in the transaction of the update.
    ByHandInTransaction,
    LayerInTransaction,
    /// Verifies, and inserts.
    WebhooksByHand,
    Webhooks,
}

impl Service {
    /// Each at the place of its number.
    pub(super) const ALL: [Self; 7] = [
        Self::Alone,
        Self::ByHand,
        Self::Layer,
        Self::ByHandInTransaction,
        Self::LayerInTransaction,
        Self::WebhooksByHand,
        Self::Webhooks,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alone => "service alone",
            Self::ByHand => "insert and update by hand",
            Self::Layer => "layer",
            Self::ByHandInTransaction => "by hand in a transaction",
            Self::LayerInTransaction => "layer in a transaction",
            Self::WebhooksByHand => "webhooks by hand",
            Self::Webhooks => "webhooks",
        }
    }

    pub(super) fn is_webhook(self) -> bool {
        matches!(self, Self::WebhooksByHand | Self::Webhooks)
    }

    pub(super) fn router(self, store: &AnyStore, tables: &Tables) -> Result<Router> {
        let app = Router::new();
        let app = match self {
            Self::Alone => app.route(PATH, post(alone)),
            Self::ByHand => app.route(PATH, post(by_hand)),
            Self::Layer => {
                let layer = IdempotencyLayer::new(erased(store), "payments")?;
                app.route(PATH, post(alone)).layer(layer)
            }
            Self::ByHandInTransaction => app.route(PATH, post(by_hand_in_transaction)),
            Self::LayerInTransaction => return in_transaction(store),
            Self::WebhooksByHand => app.route(PATH, post(webhook_by_hand)),
            Self::Webhooks => {
                let endpoint = Endpoint::new(Provider::github([SECRET])?, ["ci"])?;
                let receiver = WebhookReceiver::new(erased(store)).endpoint(PATH, endpoint)?;
                receiver.into_router()
            }
        };
        Ok(app.with_state(tables.clone()))
    }
}

fn erased(store: &AnyStore) -> Arc<dyn Store> {
    let inbox: Arc<dyn Inbox> = store.inbox();
    inbox
}

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, app: Router) -> std::io::Result<()> {
    let listener = listener.tap_io(|stream| {
        // Only slower without it.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, app).await
}

type Answer = Result<(StatusCode, &'static str), StatusCode>;

/// What fails is no figure: the client ends the run.
fn failed(_: anyhow::Error) -> StatusCode {
    StatusCode::INTERNAL_SERVER_ERROR
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, StatusCode> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.ok_or(StatusCode::BAD_REQUEST)
}

async fn alone(State(tables): State<Tables>, headers: HeaderMap, _: Bytes) -> Answer {
    let key = header(&headers, "idempotency-key")?;
    tables.effect(key).await.map_err(failed)?;
    Ok((StatusCode::CREATED, RESPONSE))
}

async fn by_hand(State(tables): State<Tables>, headers: HeaderMap, body: Bytes) -> Answer {
    let key = begin(&tables, &headers, &body).await?;
    tables.effect(key).await.map_err(failed)?;
    let updating = tables.update(key, RESPONSE.as_bytes());
    updating.await.map_err(failed)?;
    Ok((StatusCode::CREATED, RESPONSE))
}

async fn by_hand_in_transaction(
    State(tables): State<Tables>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let key = begin(&tables, &headers, &body).await?;
    let working = tables.effect_and_update(key, RESPONSE.as_bytes());
    working.await.map_err(failed)?;
    Ok((StatusCode::CREATED, RESPONSE))
}

async fn begin<'a>(
    tables: &Tables,
    headers: &'a HeaderMap,
    body: &[u8],
) -> Result<&'a str, StatusCode> {
    let key = header(headers, "idempotency-key")?;
    let fingerprint = Sha256::digest(body);
    let is_new = tables.insert(key, fingerprint.as_slice()).await;
    if is_new.map_err(failed)? {
        Ok(key)
    } else {
        Err(StatusCode::CONFLICT)
    }
}

fn in_transaction(store: &AnyStore) -> Result<Router> {
    macro_rules! in_sql {
        ($store:expr, $type:ty, $effect:expr) => {{
            let layer = IdempotencyLayer::in_transaction($store.clone(), "payments")?;
            let handler = |mut tx: Tx<$type>, key: axum::Extension<IdempotencyKey>| async move {
                let effect = sqlx::query($effect).bind(key.0.as_str().to_owned());
                match effect.execute(&mut **tx).await {
                    Ok(_) => Ok((StatusCode::CREATED, RESPONSE)),
                    Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
                }
            };
            Router::new().route(PATH, post(handler)).layer(layer)
        }};
    }
    Ok(match store {
        AnyStore::Postgres(store) => {
            in_sql!(
                store,
                inbox::postgres::PostgresStore,
                pair::postgres::EFFECT
            )
        }
        AnyStore::Sqlite(store) => {
            in_sql!(store, inbox::sqlite::SqliteStore, pair::sqlite::EFFECT)
        }
        _ => bail!("measured on SQLite and PostgreSQL only"),
    })
}

async fn webhook_by_hand(
    State(tables): State<Tables>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    let signature = header(&headers, "x-hub-signature-256")?;
    let signature = signature.strip_prefix("sha256=").unwrap_or_default();
    let signature = hex::decode(signature).map_err(|_| StatusCode::UNAUTHORIZED)?;
    let verified = mac(&body).is_some_and(|mac| mac.verify_slice(&signature).is_ok());
    if !verified {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let id = header(&headers, "x-github-delivery")?;
    let is_new = tables.event(id, &body).await.map_err(failed)?;
    Ok(if is_new {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    })
}

fn mac(body: &[u8]) -> Option<Hmac<Sha256>> {
    let mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).ok()?;
    Some(mac.chain_update(body))
}

/// As GitHub signs.
pub(super) fn sign(body: &[u8]) -> String {
    let signature = mac(body).map(|mac| mac.finalize().into_bytes());
    format!("sha256={}", signature.map(hex::encode).unwrap_or_default())
}
