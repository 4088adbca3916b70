//! PostgreSQL's `timestamptz`, to the microsecond, without another date library.

use std::time::Duration;

use inbox_api::duration_micros;
use sqlx::{
    Decode, Encode, Postgres, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{
        PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef, types::Oid,
    },
};

const TIMESTAMPTZ: Oid = Oid(1184);
const TIMESTAMPTZ_ARRAY: Oid = Oid(1185);

/// 2000-01-01, from which PostgreSQL counts, in microseconds since 1970-01-01.
const EPOCH: i64 = 946_684_800_000_000;

/// The longest duration that is sent, about 285 years: intervals are multiplied as floating-point
/// numbers, which are exact up to here.
const LONGEST: i64 = 1 << 53;

/// Microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instant(pub(crate) i64);

/// A duration in microseconds, for `$n * interval '1 microsecond'`.
pub(crate) fn micros(duration: Duration) -> i64 {
    duration_micros(duration).min(LONGEST)
}

impl Type<Postgres> for Instant {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl PgHasArrayType for Instant {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ_ARRAY)
    }
}

impl Encode<'_, Postgres> for Instant {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        // The year 294276 is PostgreSQL's last.
        let micros = self.0.saturating_sub(EPOCH).min(9_000_000_000_000_000_000);
        <i64 as Encode<'_, Postgres>>::encode(micros, buffer)
    }
}

impl Decode<'_, Postgres> for Instant {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return Err("timestamps are only read in binary".into());
        }
        let micros = <i64 as Decode<'_, Postgres>>::decode(value)?;
        Ok(Self(micros.saturating_add(EPOCH)))
    }
}
