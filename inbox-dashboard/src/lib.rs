//! A dashboard and an admin API for an [inbox], ready to mount.
//!
//! ```no_run
//! use inbox_dashboard::dashboard;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("sqlite://orders.db").await?;
//! let pages = dashboard(store)
//!     .title("Orders")
//!     .trace_link("https://jaeger.example/trace/{trace_id}".parse()?)
//!     .into_router();
//! let app = axum::Router::new().nest("/inbox", pages); // behind your own authentication
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, app).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The command `inbox dashboard` serves the same without an application. Pages are HTML from the server, and
//! looking needs no JavaScript; with it, the overview and the progress of changes renew themselves.
//!
//! # What the store is asked
//! No page counts or reads all messages at once. What a store does not keep, groups of dead letters, blocked
//! ordering keys and workers, is found by looking at messages, the newest first, a thousand a request: a page goes on
//! until it has seen all, or 100,000, and an answer of the API looks at 10,000. Both say whether these were all.
//! Statistics are read once a second at most, however many look. A filter that almost
//! nothing matches can make a store look at all it has; a read is given up after ten seconds.
//!
//! # Who may do what
//! Without more, all who reach the router may look and change. Put it behind the application's own
//! authentication, and tell the dashboard who it is: an [`Operator`] in the request's extensions, or
//! [`Dashboard::operator_header`]. Or let it ask by itself: [`Dashboard::token`], [`Dashboard::user`].
//! [`Dashboard::read_only`] and [`Dashboard::hide_payloads`] take rights away from all who come this way;
//! two routers, one of them read-only, can be mounted at two paths.
//!
//! Changes are POST. Those that a page of another origin makes a browser send are refused: by what the
//! browser says of them (`Sec-Fetch-Site`, `Origin`), and by a secret in each form. The API takes JSON only,
//! which such a page cannot send. Each response has a strict `Content-Security-Policy`.
//!
//! # Audit log
//! Each change is told through `tracing` at its begin and its end, as INFO with the target `inbox::audit`:
//! `operator`, `action`, `messages` (which), `changed`, `refused`, `error`; of a pause and its end, `handler`. Where
//! several messages are named, `messages` is their number, and `keys` of further lines (`meant`) behind the begin names
//! them, up to 50 in each. Never a payload. Each changed message keeps who did what and when, too:
//! [`Record::interventions`](inbox::Record::interventions).
//!
//! # Admin API
//! Under `api/`, with the same authentication; its description is `api/openapi.json` (OpenAPI 3.1).

mod access;
mod api;
pub mod command_pauses;
mod dashboard;
mod export;
mod fault;
mod form;
mod guard;
mod jobs;
mod json_layout;
mod pages;
mod query;
mod reading;
mod replaying;
mod routes;
mod tally;
pub mod text;
mod trace_link;
pub mod view;
mod watch;
mod work;

pub use access::Operator;
pub use dashboard::{Dashboard, dashboard};
pub use reading::total_of;
pub use trace_link::TraceLink;

/// The examples of the page about it, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/dashboard.md")]
struct Page;
