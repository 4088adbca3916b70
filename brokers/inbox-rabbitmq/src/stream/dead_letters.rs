//! What is rejected, written to another stream.

use std::time::Duration;

use inbox_source::SourceError;
use tokio::time::timeout;

use super::{
    error::{Outcome, refused},
    frame::{Incoming, code, key},
    open,
    options::RabbitMqStreamOptions,
    wire::Writer,
};

/// How long it may take, with connecting.
const LIMIT: Duration = Duration::from_secs(20);
/// What is in a frame with a message, in bytes, at most.
const AROUND: usize = 64;

const DOING: &str = "writing to the dead letters";

/// Writes a record as it came, and returns when it is confirmed. Over a connection of its own: it has to be to the leader, and
/// is rarely needed.
pub(crate) async fn write(
    options: &RabbitMqStreamOptions,
    stream: &str,
    record: &[u8],
) -> Outcome<()> {
    let late = |_| SourceError::transient(format!("{DOING}: not confirmed in time"));
    let written = timeout(LIMIT, try_write(options, stream, record));
    written.await.map_err(late)?
}

async fn try_write(options: &RabbitMqStreamOptions, stream: &str, record: &[u8]) -> Outcome<()> {
    let mut link = open::to_write(options, stream).await?;
    let most = usize::try_from(link.frame_max).unwrap_or(usize::MAX);
    if most != 0 && record.len().saturating_add(AROUND) > most {
        return Err(refused(DOING, code::FRAME_TOO_LARGE));
    }
    let publisher = |writer: Writer| writer.u8(1).text("").text(stream);
    link.asked(DOING, key::DECLARE_PUBLISHER, publisher).await?;
    let message = Writer::default().u8(1).u32(1).u64(1).long(record);
    link.say(key::PUBLISH, message).await?;
    loop {
        match link.read().await? {
            Incoming::Confirmed => break,
            Incoming::NotPublished(refusal) => return Err(refused(DOING, refusal)),
            Incoming::Close(_, reason) => {
                return Err(SourceError::transient(format!("{DOING}: {reason}")));
            }
            _ => {}
        }
    }
    // It is written, however this ends.
    let end = |writer: Writer| writer.u16(code::OK).text("closing");
    let _ = link.answer(key::CLOSE, end).await;
    Ok(())
}
