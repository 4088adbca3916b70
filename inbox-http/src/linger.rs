//! Refusals that reach those who are still sending.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::{runtime::Handle, time::timeout};

/// How long a body is read that nobody needs.
const LINGER: Duration = Duration::from_secs(5);

/// A request's body. If it is dropped before its end, because the request is refused, the rest of it is read for
/// a few seconds and thrown away, while the answer is sent. Otherwise the server would close the connection at
/// once, and most clients, which read no answer before they have sent everything, would be told that the
/// connection broke rather than why and when to come again.
#[derive(Debug)]
pub(crate) struct Lingering<B: Body + Send + 'static>
where
    B::Data: Send,
{
    body: Option<Pin<Box<B>>>,
    lingers: bool,
}

impl<B: Body + Send + 'static> Lingering<B>
where
    B::Data: Send,
{
    /// A body that came in a request with this head. Only HTTP/1 needs this. A client that asks before it sends
    /// (`Expect: 100-continue`) must not be told to go on.
    pub(crate) fn new(version: Version, headers: &HeaderMap, body: B) -> Self {
        Self {
            body: Some(Box::pin(body)),
            lingers: version < Version::HTTP_2 && !headers.contains_key(header::EXPECT),
        }
    }
}

/// A request whose body is read to its end, or for a few seconds, also if it is refused: a middleware of axum's.
#[cfg(feature = "axum")]
pub async fn lingering(request: axum::extract::Request) -> axum::extract::Request {
    let (parts, body) = request.into_parts();
    let body = Lingering::new(parts.version, &parts.headers, body);
    axum::extract::Request::from_parts(parts, axum::body::Body::new(body))
}

impl<B: Body + Send + 'static> Drop for Lingering<B>
where
    B::Data: Send,
{
    fn drop(&mut self) {
        let Some(mut body) = self.body.take() else {
            return;
        };
        if !self.lingers || body.is_end_stream() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(timeout(LINGER, async move {
                while let Some(Ok(_)) = body.frame().await {}
            }));
        }
    }
}

impl<B: Body + Send + 'static> Body for Lingering<B>
where
    B::Data: Send,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = body.as_mut().poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}
