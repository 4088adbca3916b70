//! Inline use: may this message's handler run now?

use inbox_api::{
    Begun, Bytes, Error, ErrorKind, LeaseTerms, Message, Result, check_size, duration_micros,
    from_micros,
};
use redis::Value;

use crate::{
    connection::Connection,
    cross_shard::{Destination, draw_and_locate},
    keys::field,
    receive::add_message,
    reply::{self, Taker, Unexpected},
    rows,
    scripts::BEGIN,
};

/// How often a message whose shard changes under our hands is looked for again.
const ROUNDS: u32 = 8;

/// What a shard answered.
enum Answer {
    Begun(Begun),
    /// It is not there, where an earlier copy was known to be.
    Absent,
    /// It is in this shard, or will be.
    Elsewhere(u16),
}

pub(crate) async fn begin(
    connection: &Connection,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Begun> {
    connection.check_open()?;
    let limit = connection.options.payload_limit;
    check_size("payload", message.payload().len(), limit)?;
    for _ in 0..ROUNDS {
        let (seq, destinations) = draw_and_locate(connection, 1, &[message]).await?;
        let destination = destinations.first().copied();
        let destination = destination.unwrap_or(Destination::Home(0));
        let mut answer = begin_in(connection, destination, seq, message, terms).await?;
        if let Answer::Elsewhere(shard) = answer {
            let noted = Destination::Noted(shard);
            answer = begin_in(connection, noted, seq, message, terms).await?;
        }
        // One that was at home a moment ago may have been purged: the next round tells.
        if let Answer::Begun(begun) = answer {
            return Ok(begun);
        }
    }
    Err(Error::new(
        ErrorKind::Conflict,
        "copies of the message raced with its purges for its place",
    ))
}

async fn begin_in(
    connection: &Connection,
    destination: Destination,
    seq: u64,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Answer> {
    let shard = destination.shard();
    let mut call = connection.call(&BEGIN, shard, [message.handler()]);
    call.arg(seq);
    add_message(&mut call, message);
    call.arg(u8::from(destination.is_noted()))
        .arg(u8::from(!matches!(destination, Destination::Known(..))))
        .arg(duration_micros(terms.length()))
        .arg(terms.worker().as_str());
    let answer = connection.run_confirmed(call).await?;
    read_answer(connection, shard, message, answer)
}

fn read_answer(
    connection: &Connection,
    shard: u16,
    message: &Message,
    answer: Value,
) -> Result<Answer> {
    let mut answer = Taker::of(answer)?;
    let what = answer.next()?;
    let corrupt = |reason: String| {
        rows::corrupt_error(connection.layout(), shard, &field(message.key()), reason)
    };
    Ok(Answer::Begun(
        match reply::text(&what)?.ok_or(Unexpected)? {
            "run" => match rows::read_taken(shard, answer.next()?)?.leased {
                Ok(leased) => Begun::Run(Box::new(leased)),
                Err(reason) => return Err(corrupt(reason)),
            },
            "processed" => Begun::Processed {
                result: reply::bytes(answer.optional())?,
            },
            "dead" => Begun::Dead {
                reason: reply::bytes(answer.optional())?.map_or_else(String::new, lossy),
            },
            "discarded" => Begun::Discarded,
            "busy" => Begun::Busy {
                until: from_micros(answer.number()?),
            },
            "blocked" => Begun::Blocked,
            "absent" => return Ok(Answer::Absent),
            "elsewhere" => return Ok(Answer::Elsewhere(answer.small()?)),
            "corrupt" => return Err(corrupt("its state or body cannot be read".into())),
            _ => return Err(Unexpected.into()),
        },
    ))
}

fn lossy(bytes: Bytes) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
