//! Claiming, settling and extending.

use std::{collections::BTreeMap, time::Instant};

use futures_util::future::join_all;
use inbox_api::{
    AfterDead, ClaimRequest, Claims, CorruptRow, Extended, HandlerName, Lease, Outcome, Result,
    Settled, Settlement, check_size, duration_micros, error_text, from_micros,
};
use redis::Value;

use crate::{
    clocks::{Clocks, Moment},
    keys::field,
    reply::{self, Reply, Taker, Unexpected, unexpected},
    rows::{self, Taken},
    scripts::{CLAIM, Call, EXTEND, OPERATE, PEEK, SETTLE},
    store::RedisStore,
};

/// One script takes at most so many messages and about so many bytes, since the server does
/// nothing else meanwhile.
const CLAIM_STEP: u32 = 500;
const CLAIM_BYTES: usize = 32 * 1024 * 1024;
/// One script settles or extends at most so many.
const STEP: usize = 500;

/// How one settlement reads in the script's arguments.
struct Written<'a> {
    field: String,
    seq: u64,
    token: i64,
    outcome: u8,
    value: std::borrow::Cow<'a, [u8]>,
    flag: i64,
}

/// The outcomes as `settle.lua` numbers them.
const DONE: u8 = 0;
const RESULT: u8 = 1;
const RETRY: u8 = 2;
const DIED: u8 = 3;
const RELEASE: u8 = 4;
const CORRUPT: u8 = 5;
/// The latest that a retry is put off, in microseconds: over a hundred years. Scripts hold no
/// greater numbers exactly.
const LONGEST: i64 = 1 << 52;

fn written<'a>(field: String, seq: u64, token: i64, outcome: &'a Outcome) -> Written<'a> {
    let text = |text: &'a str| match error_text(text) {
        std::borrow::Cow::Borrowed(text) => text.as_bytes().into(),
        std::borrow::Cow::Owned(text) => text.into_bytes().into(),
    };
    let (outcome, value, flag) = match outcome {
        Outcome::Processed { result } => (
            if result.is_some() { RESULT } else { DONE },
            result.as_deref().unwrap_or_default().into(),
            0,
        ),
        Outcome::Retry { after, error } => {
            (RETRY, text(error), duration_micros(*after).min(LONGEST))
        }
        Outcome::Dead { reason, after } => {
            (DIED, text(reason), i64::from(*after == AfterDead::Block))
        }
        Outcome::Release => (RELEASE, (&[][..]).into(), 0),
    };
    Written {
        field,
        seq,
        token,
        outcome,
        value,
        flag,
    }
}

impl Written<'_> {
    fn add_to(&self, call: &mut Call) {
        // Six bytes of number, seven each of token and flag; a token that does not fit is nobody's.
        let token = u64::try_from(self.token)
            .unwrap_or(u64::MAX)
            .min((1 << 56) - 1);
        let flag = u64::try_from(self.flag).unwrap_or(0);
        let mut packed = [0; 21];
        let parts = [
            (1, u64::from(self.outcome)),
            (6, self.seq),
            (7, token),
            (7, flag),
        ];
        let mut at = 0;
        for (length, number) in parts {
            let bytes = number.to_be_bytes();
            let (_, low) = bytes.split_at(8 - length);
            if let Some(part) = packed.get_mut(at..at + length) {
                part.copy_from_slice(low);
            }
            at += length;
        }
        call.arg(&self.field).arg(&packed[..]);
        if self.outcome != DONE {
            call.arg(&*self.value);
        }
    }
}

impl RedisStore {
    pub(crate) async fn claim_batch(&self, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = Claims::default();
        let mut left = request.limit;
        while left > 0 {
            let step = match self.claim_step(request, left.min(CLAIM_STEP)).await {
                Ok(step) => step,
                // What the steps before have leased must not be lost.
                Err(_) if !claims.leased.is_empty() => break,
                Err(error) => return Err(error),
            };
            let got = u32::try_from(step.taken.len()).unwrap_or(u32::MAX);
            self.hand_out(step.taken, &mut claims).await;
            self.take_apart(request, step.unreadable, &mut claims).await;
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
    async fn claim_step(&self, request: &ClaimRequest, limit: u32) -> Result<Claimed> {
        const OPERATION: &str = "claim";
        if self.layout().shards() == 1 && !self.inner.options.confirmations.any() {
            let call = self.claim_call(request, 0, limit, Moment::default());
            let answer = self.run(OPERATION, call).await?;
            return claimed(&self.inner.caller.clocks, 0, answer).map_err(unexpected(OPERATION));
        }
        let (quotas, mut failure) = self.quotas(request, limit).await?;
        let full = quotas.values().sum::<u32>() >= limit;
        let moment = self.inner.caller.clocks.moment();
        let calls = quotas.iter().map(|(shard, quota)| async {
            if self.inner.options.confirmations.any() {
                let call = self.inner.caller.confirm_call(*shard);
                self.run_confirmed(OPERATION, call).await?;
            }
            let call = self.claim_call(request, *shard, *quota, moment);
            let answer = self.run_confirmed(OPERATION, call).await?;
            claimed(&self.inner.caller.clocks, *shard, answer).map_err(unexpected(OPERATION))
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
        all.taken.sort_by_key(|taken| (taken.at, taken.seq));
        Ok(all)
    }

    /// How many of the longest-due messages each shard has, and an error if one did not answer.
    async fn quotas(
        &self,
        request: &ClaimRequest,
        limit: u32,
    ) -> Result<(BTreeMap<u16, u32>, Option<inbox_api::Error>)> {
        const OPERATION: &str = "claim";
        let looks = self.layout().all().map(|shard| async move {
            let mut call = self.inner.caller.call(&PEEK, shard, &request.handlers);
            call.arg(limit);
            let sent = Instant::now();
            let answer = self.run(OPERATION, call).await?;
            due(&self.inner.caller.clocks, shard, sent, answer).map_err(unexpected(OPERATION))
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
        for (_, _, shard) in found.into_iter().take(limit as usize) {
            *quotas.entry(shard).or_insert(0) += 1;
        }
        Ok((quotas, failure))
    }

    fn claim_call(&self, request: &ClaimRequest, shard: u16, limit: u32, moment: Moment) -> Call {
        let caller = &self.inner.caller;
        let mut call = caller.call_with(&CLAIM, shard, &request.handlers, &[], moment);
        call.arg(limit)
            .arg(CLAIM_BYTES)
            .arg(duration_micros(request.terms.length()))
            .arg(request.terms.worker().as_str());
        call
    }

    /// Sorts what was claimed into messages and those that cannot be read, and makes these dead.
    async fn hand_out(&self, taken: Vec<Taken>, claims: &mut Claims) {
        let mut spoilt: BTreeMap<u16, Vec<Written<'static>>> = BTreeMap::new();
        for taken in taken {
            let reason = match taken.leased {
                Ok(leased) => {
                    claims.leased.push(leased);
                    continue;
                }
                Err(reason) => reason,
            };
            let text = format!("corrupt: {reason}");
            let row = rows::corrupt_row(self.layout(), taken.shard, &taken.field, reason);
            claims.corrupt.push(row);
            // The script itself has set aside what it could not read: it has no token.
            if taken.token > 0 {
                spoilt.entry(taken.shard).or_default().push(Written {
                    field: taken.field,
                    seq: taken.seq,
                    token: taken.token,
                    outcome: CORRUPT,
                    value: text.into_bytes().into(),
                    flag: 0,
                });
            }
        }
        for (shard, spoilt) in spoilt {
            let handlers: Vec<HandlerName> = spoilt
                .iter()
                .filter_map(|written| rows::key(&written.field).ok())
                .map(|key| key.handler)
                .collect();
            let call = self.settle_call(shard, &handlers, &spoilt, Moment::default());
            // One that stays leased is found again when its lease ends; the others are leased too,
            // and must not be lost for it.
            if let Err(error) = self.run("claim", call).await {
                tracing::warn!(%error, "messages that cannot be read were not set aside");
            }
        }
    }

    /// Makes single messages of runs that cannot be read: when their leases end they are claimed one
    /// by one, and those that cannot be read are set aside.
    async fn take_apart(
        &self,
        request: &ClaimRequest,
        unreadable: Vec<(u16, u64)>,
        claims: &mut Claims,
    ) {
        for (shard, base) in unreadable {
            let mut call = self.inner.caller.call(&OPERATE, shard, &request.handlers);
            call.arg("apart").arg(base);
            if let Err(error) = self.run("claim", call).await {
                tracing::warn!(%error, "messages that cannot be read were not taken apart");
            }
            claims.corrupt.push(CorruptRow {
                place: format!("{}:blobs, field {base}", self.layout().tag(shard)),
                reason: "the messages of a batch cannot be told apart".into(),
            });
        }
    }

    fn settle_call<'a>(
        &self,
        shard: u16,
        handlers: impl IntoIterator<Item = &'a HandlerName>,
        settlements: &[Written<'_>],
        moment: Moment,
    ) -> Call {
        let caller = &self.inner.caller;
        let mut call = caller.call_with(&SETTLE, shard, handlers, &[], moment);
        self.settle_options(&mut call);
        call.arg(-1);
        for written in settlements {
            written.add_to(&mut call);
        }
        call
    }

    fn settle_options(&self, call: &mut Call) {
        let options = &self.inner.options;
        call.arg(u8::from(options.drop_processed_payloads))
            .arg(options.keep_processed.map_or(-1, duration_micros));
    }

    /// The beginning of a call that settles one lease with commands on `keys`.
    pub(crate) fn settle_call_with(&self, lease: &Lease, keys: &[Vec<u8>]) -> Result<Call> {
        let (shard, _) = self.located(lease)?;
        let handlers = [&lease.key.handler];
        let caller = &self.inner.caller;
        let mut call = caller.call_with(&SETTLE, shard, handlers, keys, Moment::default());
        self.settle_options(&mut call);
        Ok(call)
    }

    pub(crate) fn add_settlement(
        &self,
        call: &mut Call,
        lease: &Lease,
        outcome: &Outcome,
    ) -> Result<()> {
        let (_, seq) = self.located(lease)?;
        written(field(&lease.key), seq, lease.token.get(), outcome).add_to(call);
        Ok(())
    }

    pub(crate) async fn settle_batch(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle";
        let limit = self.inner.options.payload_limit;
        let mut settled = vec![Settled::LeaseLost; settlements.len()];
        let mut by_shard: BTreeMap<u16, Vec<(usize, u64)>> = BTreeMap::new();
        for (place, (settlement, answer)) in settlements.iter().zip(&mut settled).enumerate() {
            if let Outcome::Processed {
                result: Some(result),
            } = &settlement.outcome
                && let Err(invalid) = check_size("result", result.len(), limit)
            {
                *answer = Settled::Refused(invalid);
            } else if let Some((shard, seq)) = self.layout().located(settlement.lease.locator) {
                by_shard.entry(shard).or_default().push((place, seq));
            }
        }
        let moment = self.inner.caller.clocks.moment();
        let (mut calls, mut places) = (Vec::new(), Vec::new());
        for (shard, members) in by_shard {
            for step in members.chunks(STEP) {
                let of = |place: usize| settlements.get(place);
                let written: Vec<_> = step
                    .iter()
                    .filter_map(|(place, seq)| Some((of(*place)?, *seq)))
                    .map(|(settlement, seq)| {
                        let lease = &settlement.lease;
                        let token = lease.token.get();
                        written(field(&lease.key), seq, token, &settlement.outcome)
                    })
                    .collect();
                let handlers = step
                    .iter()
                    .filter_map(|(place, _)| Some(&of(*place)?.lease.key.handler));
                calls.push(self.settle_call(shard, handlers, &written, moment));
                let step: Vec<usize> = step.iter().map(|(place, _)| *place).collect();
                places.push((shard, step));
            }
        }
        let answers = self.run_all_confirmed(OPERATION, calls).await?;
        for ((shard, places), answer) in places.into_iter().zip(answers) {
            let (answers, gone) = self.settled(answer).map_err(unexpected(OPERATION))?;
            if answers.len() != places.len() {
                return Err(unexpected(OPERATION)(Unexpected));
            }
            for (place, done) in places.into_iter().zip(answers) {
                if let (true, Some(answer)) = (done, settled.get_mut(place)) {
                    *answer = Settled::Done;
                }
            }
            self.forget_places(OPERATION, shard, gone).await;
        }
        Ok(settled)
    }

    fn settled(&self, answer: Value) -> Reply<(Vec<bool>, Vec<Value>)> {
        let mut answer = Taker::of(answer)?;
        let done = answer.list()?;
        let _replies = answer.next()?;
        let done = done.iter().map(|done| Ok(reply::number(done)? == 1));
        Ok((done.collect::<Reply<_>>()?, answer.list()?))
    }

    pub(crate) async fn extend_batch(
        &self,
        leases: &[Lease],
        length: std::time::Duration,
    ) -> Result<Vec<Extended>> {
        const OPERATION: &str = "extend";
        let mut extended = vec![Extended::LeaseLost; leases.len()];
        let mut by_shard: BTreeMap<u16, Vec<(usize, u64, &Lease)>> = BTreeMap::new();
        for (place, lease) in leases.iter().enumerate() {
            if let Some((shard, seq)) = self.layout().located(lease.locator) {
                by_shard.entry(shard).or_default().push((place, seq, lease));
            }
        }
        let moment = self.inner.caller.clocks.moment();
        let (mut calls, mut places) = (Vec::new(), Vec::new());
        for (shard, members) in by_shard {
            for step in members.chunks(STEP) {
                let handlers = step.iter().map(|(_, _, lease)| &lease.key.handler);
                let caller = &self.inner.caller;
                let mut call = caller.call_with(&EXTEND, shard, handlers, &[], moment);
                call.arg(duration_micros(length));
                for (_, seq, lease) in step {
                    call.arg(field(&lease.key)).arg(*seq).arg(lease.token.get());
                }
                calls.push(call);
                places.push(step.iter().map(|(place, ..)| *place).collect::<Vec<_>>());
            }
        }
        let answers = self.run_all_confirmed(OPERATION, calls).await?;
        for (places, answer) in places.into_iter().zip(answers) {
            let ends = reply::list(answer).map_err(unexpected(OPERATION))?;
            for (place, end) in places.into_iter().zip(ends) {
                let end = reply::number(&end).map_err(unexpected(OPERATION))?;
                if let (true, Some(answer)) = (end > 0, extended.get_mut(place)) {
                    *answer = Extended::Until(from_micros(end));
                }
            }
        }
        Ok(extended)
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

fn claimed(clocks: &Clocks, shard: u16, answer: Value) -> Reply<Claimed> {
    let mut answer = Taker::of(answer)?;
    let mut taken = answer
        .list()?
        .into_iter()
        .map(|row| rows::taken(shard, row))
        .collect::<Reply<Vec<_>>>()?;
    for field in answer.list()? {
        taken.push(Taken {
            shard,
            field: reply::text(&field)?.unwrap_or_default().to_owned(),
            seq: 0,
            at: 0,
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
        match rows::taken_run(shard, run) {
            Ok(messages) => taken.extend(messages),
            Err(Unexpected) => unreadable.push((shard, base.ok_or(Unexpected)?)),
        }
    }
    for one in &mut taken {
        one.at = clocks.common(shard, one.at);
    }
    taken.sort_by_key(|taken| (taken.at, taken.seq));
    Ok(Claimed {
        taken,
        unreadable,
        more,
    })
}

/// When a message became claimable, as it compares with others of all shards, its number and its
/// shard.
type Due = (i64, i64, u16);

/// The longest-due messages that `peek.lua` found.
fn due(clocks: &Clocks, shard: u16, sent: Instant, answer: Value) -> Reply<Vec<Due>> {
    let mut answer = Taker::of(answer)?;
    clocks.hear(shard, answer.number()?, sent);
    let found = answer.list()?.into_iter().map(|pair| {
        let mut pair = Taker::of(pair)?;
        let at = clocks.common(shard, pair.number()?);
        Ok((at, pair.number()?, shard))
    });
    found.collect()
}
