//! The URI of a request.

use http::{Uri, request::Parts};

/// The URI as the client sent it: within a nested router `parts.uri` has lost its beginning.
pub(crate) fn sent(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}
