//! Claiming.

use std::{collections::BTreeMap, time::Instant};

use futures_util::future::join_all;
use inbox_api::{ClaimRequest, Claims, CorruptRow, Error, HandlerName, Result, duration_micros};
use redis::Value;

use crate::{
    clocks::{Clocks, Moment},
    connection::Connection,
    reply::{self, Reply, Taker, Unexpected},
    rows::{self, Taken},
    scripts::{CLAIM, CLAIM_PEEK, CLAIM_TAKE_APART, Call},
    settle::{self, Arguments},
};

/// One script takes at most so many messages and about so many bytes, since the server does
/// nothing else meanwhile.
const CLAIM_STEP: u32 = 500;
const CLAIM_BYTES: usize = 32 * 1024 * 1024;

pub(crate) async fn claim(connection: &Connection, request: &ClaimRequest) -> Result<Claims> {
    connection.check_open()?;
    if request.handlers.is_empty() || request.limit == 0 {
        return Ok(Claims::default());
    }
    let mut claims = Claims::default();
    let mut left = request.limit;
    while left > 0 {
        let step = match claim_step(connection, request, left.min(CLAIM_STEP)).await {
            Ok(step) => step,
            // What the steps before have leased must not be lost.
            Err(_) if !claims.leased.is_empty() => break,
            Err(error) => return Err(error),
        };
        let got = u32::try_from(step.taken.len()).unwrap_or(u32::MAX);
        hand_out(connection, step.taken, &mut claims).await;
        take_apart(connection, request, step.unreadable, &mut claims).await;
        left = left.saturating_sub(got);
        if !step.more || got == 0 {
            break;
        }
    }
    Ok(claims)
}

/// Claims from all shards what has been due for longest. Answers also whether a full step
/// was found, so that there may be more. Of several shards, and where claims are confirmed, it looks
/// first: a claim that finds nothing is no write to wait for. And one that nobody would confirm takes
/// nothing, since that would use up attempts.
async fn claim_step(
    connection: &Connection,
    request: &ClaimRequest,
    limit: u32,
) -> Result<Claimed> {
    if connection.layout().shards() == 1 && !connection.confirms() {
        let call = claim_call(connection, request, 0, limit, Moment::default());
        let answer = connection.run(call).await?;
        return Ok(Claimed::read(connection.clocks(), 0, answer)?);
    }
    let (quotas, mut failure) = share_out(connection, request, limit).await?;
    let full = quotas.values().sum::<u32>() >= limit;
    let moment = connection.clocks().moment();
    let calls = quotas.iter().map(|(shard, quota)| async {
        if connection.confirms() {
            let call = connection.caller.confirm_call(*shard);
            connection.run_confirmed(call).await?;
        }
        let call = claim_call(connection, request, *shard, *quota, moment);
        let answer = connection.run_confirmed(call).await?;
        Ok(Claimed::read(connection.clocks(), *shard, answer)?)
    });
    let mut all = Claimed {
        more: full,
        ..Claimed::default()
    };
    for answer in join_all(calls).await {
        match answer {
            Ok(one) => {
                all.taken.extend(one.taken);
                all.unreadable.extend(one.unreadable);
            }
            Err(error) => failure = Some(error),
        }
    }
    // What one shard cannot give does not hold up the others' messages, which are leased now.
    if let (true, Some(error)) = (all.taken.is_empty(), failure) {
        return Err(error);
    }
    all.taken.sort_by_key(Taken::place);
    Ok(all)
}

/// How many of the longest-due messages each shard has, and an error if one did not answer.
async fn share_out(
    connection: &Connection,
    request: &ClaimRequest,
    limit: u32,
) -> Result<(BTreeMap<u16, u32>, Option<Error>)> {
    let looks = connection.layout().all().map(|shard| async move {
        let mut call = connection.call(&CLAIM_PEEK, shard, &request.handlers);
        call.arg(limit).arg(request.run_limit);
        let sent = Instant::now();
        let answer = connection.run(call).await?;
        Ok(read_due(connection.clocks(), shard, sent, answer)?)
    });
    let (mut found, mut failure, mut answered) = (Vec::new(), None, false);
    for answer in join_all(looks).await {
        match answer {
            Ok(due) => {
                answered = true;
                found.extend(due);
            }
            Err(error) => failure = Some(error),
        }
    }
    let failure = match failure {
        Some(error) if !answered => return Err(error),
        failure => failure,
    };
    found.sort_unstable();
    let mut quotas = BTreeMap::new();
    let mut left = limit;
    for due in found {
        let quota = due.messages.min(left);
        left -= quota;
        if quota > 0 {
            *quotas.entry(due.shard).or_insert(0) += quota;
        }
    }
    Ok((quotas, failure))
}

fn claim_call(
    connection: &Connection,
    request: &ClaimRequest,
    shard: u16,
    limit: u32,
    moment: Moment,
) -> Call {
    let mut call = connection.call_at(&CLAIM, shard, &request.handlers, moment);
    call.arg(limit)
        .arg(CLAIM_BYTES)
        .arg(duration_micros(request.terms.length()))
        .arg(request.terms.worker().as_str())
        .arg(request.run_limit);
    call
}

/// Sorts what was claimed into messages and those that cannot be read, and makes these dead.
async fn hand_out(connection: &Connection, taken: Vec<Taken>, claims: &mut Claims) {
    let mut spoilt: BTreeMap<u16, Vec<Arguments<'static>>> = BTreeMap::new();
    for taken in taken {
        let reason = match taken.leased {
            Ok(leased) => {
                claims.leased.push(leased);
                continue;
            }
            Err(reason) => reason,
        };
        // The script itself has set aside what it could not read: it has no token.
        if taken.token > 0 {
            let field = taken.field.clone();
            let set_aside = Arguments::corrupt(field, taken.seq, taken.token, &reason);
            spoilt.entry(taken.shard).or_default().push(set_aside);
        }
        let row = rows::corrupt_row(connection.layout(), taken.shard, &taken.field, reason);
        claims.corrupt.push(row);
    }
    for (shard, spoilt) in spoilt {
        let handlers: Vec<HandlerName> = spoilt
            .iter()
            .filter_map(|message| rows::key(&message.field).ok())
            .map(|key| key.handler)
            .collect();
        let call = settle::call(connection, shard, &handlers, &spoilt, Moment::default());
        // One that stays leased is found again when its lease ends; the others are leased too,
        // and must not be lost for it.
        if let Err(error) = connection.run(call).await {
            tracing::warn!(%error, "messages that cannot be read were not set aside");
        }
    }
}

/// Makes single messages of runs that cannot be read: when their leases end they are claimed one
/// by one, and those that cannot be read are set aside.
async fn take_apart(
    connection: &Connection,
    request: &ClaimRequest,
    unreadable: Vec<(u16, u64)>,
    claims: &mut Claims,
) {
    for (shard, base) in unreadable {
        let mut call = connection.call(&CLAIM_TAKE_APART, shard, &request.handlers);
        call.arg(base);
        if let Err(error) = connection.run(call).await {
            tracing::warn!(%error, "messages that cannot be read were not taken apart");
        }
        claims.corrupt.push(CorruptRow {
            place: format!("{}:blobs, field {base}", connection.layout().tag(shard)),
            reason: "the messages of a batch cannot be told apart".into(),
        });
    }
}

/// What `claim.lua` took and set aside.
#[derive(Default)]
struct Claimed {
    taken: Vec<Taken>,
    /// Runs whose blob cannot be taken apart: shard and first number.
    unreadable: Vec<(u16, u64)>,
    /// Whether there may be more.
    more: bool,
}

impl Claimed {
    fn read(clocks: &Clocks, shard: u16, answer: Value) -> Reply<Self> {
        let mut answer = Taker::of(answer)?;
        let mut taken = answer
            .list()?
            .into_iter()
            .map(|row| rows::read_taken(shard, row))
            .collect::<Reply<Vec<_>>>()?;
        for field in answer.list()? {
            taken.push(Taken {
                shard,
                field: reply::text(&field)?.unwrap_or_default().to_owned(),
                seq: 0,
                at: 0,
                first: 0,
                token: 0,
                leased: Err("its state or body cannot be read".into()),
            });
        }
        let more = answer.number()? == 1;
        let mut unreadable = Vec::new();
        for run in answer.list()? {
            let base = match &run {
                Value::Array(parts) => parts.last().map(reply::unsigned).transpose()?,
                _ => None,
            };
            match rows::read_taken_run(shard, run) {
                Ok(messages) => taken.extend(messages),
                Err(Unexpected) => unreadable.push((shard, base.ok_or(Unexpected)?)),
            }
        }
        for one in &mut taken {
            one.at = clocks.common(shard, one.at);
        }
        taken.sort_by_key(Taken::place);
        Ok(Self {
            taken,
            unreadable,
            more,
        })
    }
}

/// A message that can be claimed, in the order in which it is.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    /// Since when, as it compares with others of all shards.
    at: i64,
    seq: u64,
    shard: u16,
    /// How many are taken with it, itself included.
    messages: u32,
}

/// The longest-due messages that `claim_peek.lua` found.
fn read_due(clocks: &Clocks, shard: u16, sent: Instant, answer: Value) -> Reply<Vec<Due>> {
    let mut answer = Taker::of(answer)?;
    clocks.hear(shard, answer.number()?, sent);
    let found = answer.list()?.into_iter().map(|pair| {
        let mut pair = Taker::of(pair)?;
        let at = clocks.common(shard, pair.number()?);
        Ok(Due {
            at,
            seq: pair.unsigned()?,
            shard,
            messages: u32::try_from(pair.number()?).map_err(|_| Unexpected)?,
        })
    });
    found.collect()
}
