//! All that a filter means, line by line: read page by page as the client takes it.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::stream;
use inbox::{Cursor, Error, Listing, Page, pace::Slices};

use crate::{
    dashboard::Shared,
    fault::Fault,
    query::{Parameters, Selection},
    reading,
    view::{RecordView, WholeView},
};

/// How many records are in memory at a time; with payloads, which may be large, as many as fit.
const STEP: u32 = 500;
/// Payloads that come behind small ones may be of any size.
const STEP_WITH_PAYLOADS: u32 = 20;

/// `GET export` and `GET api/export`: NDJSON. With `payloads`, with payloads. A store that fails on the way
/// ends it with a line that says so, and only that one has the member `export_error`.
pub(crate) async fn ndjson(
    State(shared): State<Arc<Shared>>,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let wanted = parameters.wanted()?;
    let after = parameters.take("after")?.map(Cursor::new);
    let with_payload = parameters.has("payloads")?;
    parameters.end()?;
    if with_payload && shared.options.hides_payloads {
        return Err(Fault::hidden());
    }
    let selection = wanted.selection()?;
    let page = Page {
        after,
        limit: match with_payload {
            true => Slices::new(STEP_WITH_PAYLOADS).size(),
            false => STEP,
        },
        newest_first: false,
        with_payload,
    };
    // The first page before the status is said.
    let first = reading::within(reading::list(shared.store.as_ref(), &selection, &page)).await?;
    let export = Export {
        shared,
        selection,
        page,
        slices: Slices::new(STEP_WITH_PAYLOADS),
    };
    let lines = stream::unfold(Some((export, Ok(first))), |state| async {
        let (mut export, read) = state?;
        let listing = match read {
            Ok(listing) => listing,
            Err(error) => return Some((Ok::<_, Infallible>(broken(&error)), None)),
        };
        let lines = export.lines(&listing);
        let Some(next) = listing.next else {
            return Some((Ok(lines), None));
        };
        export.page.after = Some(next);
        if export.page.with_payload {
            export.slices.saw(&listing.records);
            export.page.limit = export.slices.size();
        }
        let store = export.shared.store.as_ref();
        let read = reading::list(store, &export.selection, &export.page).await;
        Some((Ok(lines), Some((export, read))))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"messages.ndjson\"",
        ),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}

struct Export {
    shared: Arc<Shared>,
    selection: Selection,
    page: Page,
    slices: Slices,
}

impl Export {
    fn lines(&self, listing: &Listing) -> Bytes {
        let mut lines = Vec::new();
        for record in &listing.records {
            let view = RecordView::from(record);
            let written = if self.page.with_payload {
                serde_json::to_writer(&mut lines, &WholeView::from(record))
            } else if self.shared.options.hides_payloads {
                serde_json::to_writer(&mut lines, &view.without_headers())
            } else {
                serde_json::to_writer(&mut lines, &view)
            };
            if written.is_ok() {
                lines.push(b'\n');
            }
        }
        for row in &listing.corrupt {
            let line = serde_json::json!({ "corrupt_row": row.place, "reason": row.reason });
            lines.extend_from_slice(format!("{line}\n").as_bytes());
        }
        lines.into()
    }
}

fn broken(error: &Error) -> Bytes {
    let line = serde_json::json!({ "export_error": error.to_string() });
    format!("{line}\n").into()
}
