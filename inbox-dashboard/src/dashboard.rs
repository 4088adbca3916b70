//! What an application sets up and mounts.

use std::{
    fmt,
    sync::{Arc, Once},
};

use axum::{Router, http::HeaderName};
use inbox::{Inbox, service::Health};
use inbox_http::Token;

use crate::{TraceLink, access::Access, jobs::Jobs, routes, tally::Tallies, watch::Watch};

/// A dashboard of the inbox in `store`, to be set up further and mounted. See the [crate](crate).
#[must_use]
pub fn dashboard(store: Arc<dyn Inbox>) -> Dashboard {
    Dashboard {
        store,
        access: Access::default(),
        options: Options {
            title: "Inbox".to_owned(),
            place: None,
            is_read_only: false,
            hides_payloads: false,
            trace_link: None,
            body_limit: Dashboard::BODY_LIMIT,
            health: None,
        },
    }
}

/// A dashboard that is being set up; from [`dashboard`].
pub struct Dashboard {
    store: Arc<dyn Inbox>,
    access: Access,
    options: Options,
}

/// What pages have to know.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) title: String,
    pub(crate) place: Option<String>,
    pub(crate) is_read_only: bool,
    pub(crate) hides_payloads: bool,
    pub(crate) trace_link: Option<TraceLink>,
    pub(crate) body_limit: usize,
    pub(crate) health: Option<Health>,
}

impl Dashboard {
    /// The largest body of a request unless set, in bytes: 4 MiB.
    pub const BODY_LIMIT: usize = 4 * 1024 * 1024;

    /// Sets what the pages are called. Default: `Inbox`.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.options.title = title.into();
        self
    }

    /// Sets what the pages say of where the inbox is, such as `postgres://db.example/shop`. Must not contain
    /// a password.
    pub fn place(mut self, place: impl Into<String>) -> Self {
        self.options.place = Some(place.into());
        self
    }

    /// Refuses every change, and leaves out what would make one.
    pub fn read_only(mut self) -> Self {
        self.options.is_read_only = true;
        self
    }

    /// Shows no payloads, no results and no values of headers but the trace's id, on no page, in no download
    /// and in no answer of the API. Error texts are shown: what handlers write there is theirs to choose.
    pub fn hide_payloads(mut self) -> Self {
        self.options.hides_payloads = true;
        self
    }

    /// Links each message that has the header `traceparent` to its trace.
    pub fn trace_link(mut self, link: TraceLink) -> Self {
        self.options.trace_link = Some(link);
        self
    }

    /// Shows on the overview how a [`Service`](inbox::Service) of this process does: its receivers,
    /// processors and janitor.
    pub fn health(mut self, health: Health) -> Self {
        self.options.health = Some(health);
        self
    }

    /// Takes the operator's name, in UTF-8, from this header, which the application's own authentication, or a proxy
    /// in front, sets **and removes from what clients send**. An [`Operator`](crate::Operator) in the request's
    /// extensions comes first.
    pub fn operator_header(mut self, name: HeaderName) -> Self {
        self.access.operator_header = Some(name);
        self
    }

    /// Admits those only who show a token: as `Authorization: Bearer …`, or, since that is all that a browser
    /// can do, as the password of any name, which the audit log then has. Several are for rotation.
    pub fn token(mut self, token: Token) -> Self {
        self.access.guard.add_token(token);
        self
    }

    /// Admits this user with this password (HTTP basic authentication: over TLS only).
    pub fn user(mut self, name: impl Into<String>, password: Token) -> Self {
        self.access.users.push((name.into(), password));
        self
    }

    /// Answers only requests to this host, such as `localhost`, without a port; repeat it for several. What
    /// listens on a loopback address without authentication needs it: otherwise a site can give its own name
    /// that address, and a browser takes the dashboard for a part of the site.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.access.guard.add_host(host);
        self
    }

    /// Sets the largest body of a request, in bytes. Default: [`BODY_LIMIT`](Self::BODY_LIMIT).
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.options.body_limit = bytes;
        self
    }

    /// The pages and the API, to be served, or mounted under any path: by `nest`, or by `nest_service`, which
    /// answers there with a slash at the end, too. No I/O happens yet.
    pub fn into_router(self) -> Router {
        routes::router(Arc::new(Shared {
            store: self.store,
            access: self.access,
            options: self.options,
            watch: Arc::default(),
            tallies: Tallies::default(),
            jobs: Jobs::default(),
            watching: Once::new(),
        }))
    }
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard")
            .field("access", &self.access)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Inbox>,
    pub(crate) access: Access,
    pub(crate) options: Options,
    pub(crate) watch: Arc<Watch>,
    pub(crate) tallies: Tallies,
    pub(crate) jobs: Jobs,
    watching: Once,
}

impl Shared {
    /// Begins to take samples, with the first request: before it there may be no runtime.
    pub(crate) fn begin_watching(&self) {
        self.watching.call_once(|| {
            let watch = Arc::downgrade(&self.watch);
            tokio::spawn(Watch::run(watch, Arc::clone(&self.store)));
        });
    }

    /// Forgets what was read, as after a change.
    pub(crate) async fn renew(&self) {
        self.watch.renew().await;
        self.tallies.forget();
    }
}
