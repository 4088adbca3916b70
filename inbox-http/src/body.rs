//! Bodies: read whole within limits, or passed on as they come.

use std::{
    collections::VecDeque,
    error::Error as StdError,
    fmt,
    ops::Deref,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::budget::{BodyBudget, Share};

/// What bodies fail with.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a body was not read whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadError {
    /// It is, or says that it is, longer than the limit.
    TooLarge,
    /// It did not come to its end in time.
    TooSlow,
    /// It broke off.
    Broken,
    /// There is no room for it at present.
    NoRoom,
}

/// What is asked of bodies.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) limit: usize,
    pub(crate) time: Duration,
    pub(crate) budget: BodyBudget,
}

/// A body that was read whole, with its part of the budget.
#[derive(Debug)]
pub(crate) struct Whole {
    bytes: Bytes,
    share: Share,
}

impl Whole {
    pub(crate) fn into_parts(self) -> (Bytes, Share) {
        (self.bytes, self.share)
    }
}

impl Deref for Whole {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl Reading {
    /// The most that a body can have.
    pub(crate) fn most(&self) -> usize {
        self.limit.min(self.budget.most())
    }

    /// Reads a body. Nothing is read of one that says beforehand that it is too long.
    pub(crate) async fn read<B: Body>(&self, body: B) -> Result<Whole, ReadError> {
        let (most, mut share) = (self.most(), self.budget.share());
        let announced = body.size_hint().lower();
        if !fits(announced, most) {
            return Err(ReadError::TooLarge);
        }
        if !share.has_room(usize::try_from(announced).unwrap_or(usize::MAX)) {
            return Err(ReadError::NoRoom);
        }
        let reading = async {
            let mut body = std::pin::pin!(body);
            let mut pieces = Pieces::default();
            while let Some(frame) = body.frame().await {
                let Ok(mut data) = frame.map_err(|_| ReadError::Broken)?.into_data() else {
                    continue; // trailers
                };
                let more = bytes::Buf::remaining(&data);
                if !fits((pieces.len() + more) as u64, most) {
                    return Err(ReadError::TooLarge);
                }
                if !share.grow(more) {
                    return Err(ReadError::NoRoom);
                }
                pieces.push(bytes::Buf::copy_to_bytes(&mut data, more));
            }
            Ok(pieces.join())
        };
        let bytes = timeout(self.time, reading)
            .await
            .unwrap_or(Err(ReadError::TooSlow))?;
        Ok(Whole { bytes, share })
    }
}

pub(crate) fn fits(bytes: u64, limit: usize) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| bytes <= limit)
}

/// A body's pieces. Most bodies come in one, which is not copied.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    all: Option<BytesMut>,
}

impl Pieces {
    fn len(&self) -> usize {
        self.all.as_ref().map_or(self.first.len(), BytesMut::len)
    }

    fn push(&mut self, piece: Bytes) {
        if let Some(all) = &mut self.all {
            all.extend_from_slice(&piece);
        } else if self.first.is_empty() {
            self.first = piece;
        } else {
            let mut all = BytesMut::with_capacity(self.first.len() + piece.len());
            all.extend_from_slice(&self.first);
            all.extend_from_slice(&piece);
            self.all = Some(all);
        }
    }

    fn join(self) -> Bytes {
        self.all.map_or(self.first, BytesMut::freeze)
    }
}

/// The body of a response behind an [`IdempotencyLayer`](crate::IdempotencyLayer): the service's as it
/// comes, or what was read of it, or a replay.
pub struct ReplyBody<B> {
    ready: VecDeque<Frame<Bytes>>,
    rest: Option<B>,
}

impl<B> ReplyBody<B> {
    /// The service's body, as it comes.
    pub(crate) fn streamed(body: B) -> Self {
        Self {
            ready: VecDeque::new(),
            rest: Some(body),
        }
    }
}

impl<B> From<Bytes> for ReplyBody<B> {
    fn from(bytes: Bytes) -> Self {
        let ready = (!bytes.is_empty()).then(|| Frame::data(bytes));
        Self {
            ready: ready.into_iter().collect(),
            rest: None,
        }
    }
}

impl<B> Default for ReplyBody<B> {
    fn default() -> Self {
        Self::from(Bytes::new())
    }
}

impl<B> Body for ReplyBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(frame) = self.ready.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ready: usize = self
            .ready
            .iter()
            .filter_map(Frame::data_ref)
            .map(Bytes::len)
            .sum();
        let ready = ready as u64;
        let rest = self.rest.as_ref().map(Body::size_hint);
        let rest = rest.unwrap_or_else(|| SizeHint::with_exact(0));
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(ready));
        // Of a body whose length is known, HTTP/1 sends no trailers.
        let has_trailers = self.ready.iter().any(Frame::is_trailers);
        if let Some(upper) = rest.upper().filter(|_| !has_trailers) {
            hint.set_upper(upper.saturating_add(ready));
        }
        hint
    }
}

impl<B> fmt::Debug for ReplyBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyBody")
            .field("ready", &self.ready.len())
            .field("is_streamed", &self.rest.is_some())
            .finish()
    }
}

/// What became of a response's body that was to be kept.
pub(crate) enum Taken<B> {
    /// It is whole, and these are its bytes.
    Whole(ReplyBody<B>, Bytes),
    /// It is too long, or a stream: nothing of it is kept.
    Passing(ReplyBody<B>),
    /// It broke off.
    Broken,
}

/// Reads a response's body, to be kept, up to `limit` bytes and for up to `time`. What is over either of
/// them goes to the client as it comes.
pub(crate) async fn take<B>(mut body: B, limit: usize, time: Duration) -> Taken<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    if !fits(body.size_hint().lower(), limit) {
        return Taken::Passing(ReplyBody::streamed(body));
    }
    let mut ready = VecDeque::new();
    let mut pieces = Pieces::default();
    let reading = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ())?;
            let data = frame.data_ref().cloned();
            ready.push_back(frame);
            if let Some(data) = data {
                if !fits((pieces.len() + data.len()) as u64, limit) {
                    return Ok(false);
                }
                pieces.push(data);
            }
        }
        Ok(true)
    };
    match timeout(time, reading).await {
        Ok(Ok(true)) => {
            let reply = ReplyBody { ready, rest: None };
            Taken::Whole(reply, pieces.join())
        }
        Ok(Ok(false)) | Err(_) => Taken::Passing(ReplyBody {
            ready,
            rest: Some(body),
        }),
        Ok(Err(())) => Taken::Broken,
    }
}
