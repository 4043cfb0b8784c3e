//! Points in time as the databases keep them: microseconds, since PostgreSQL keeps no more.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::{Database, Decode, Encode, Postgres, Sqlite, Type};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

const RFC3339_MICROS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// Microseconds since 1970-01-01T00:00:00Z. `TIMESTAMPTZ` on PostgreSQL, `INTEGER` on SQLite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The time, cut to whole microseconds.
    #[must_use]
    pub fn of(time: OffsetDateTime) -> Self {
        Self(i64::try_from(time.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX))
    }

    /// This much later.
    #[must_use]
    pub fn plus(self, span: std::time::Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// This much earlier.
    #[must_use]
    pub fn minus(self, span: std::time::Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// Reads what [`Display`](std::fmt::Display) writes; `None` if it is anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let time = time::PrimitiveDateTime::parse(text, RFC3339_MICROS).ok()?;
        Some(Self::of(time.assume_utc())).filter(|time| time.to_string() == text)
    }

    fn to_time(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

/// RFC 3339, UTC, six decimals.
impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self
            .to_time()
            .format(RFC3339_MICROS)
            .map_err(|_| std::fmt::Error)?;
        f.write_str(&text)
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Type<Sqlite> for Timestamp {
    fn type_info() -> <Sqlite as Database>::TypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }

    fn compatible(ty: &<Sqlite as Database>::TypeInfo) -> bool {
        <i64 as Type<Sqlite>>::compatible(ty)
    }
}

impl<'q> Encode<'q, Sqlite> for Timestamp {
    fn encode_by_ref(
        &self,
        buf: &mut <Sqlite as Database>::ArgumentBuffer,
    ) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<'q, Sqlite>>::encode_by_ref(&self.0, buf)
    }
}

impl<'r> Decode<'r, Sqlite> for Timestamp {
    fn decode(value: <Sqlite as Database>::ValueRef<'r>) -> Result<Self, BoxDynError> {
        <i64 as Decode<'r, Sqlite>>::decode(value).map(Self)
    }
}

impl Type<Postgres> for Timestamp {
    fn type_info() -> <Postgres as Database>::TypeInfo {
        <OffsetDateTime as Type<Postgres>>::type_info()
    }
}

impl<'q> Encode<'q, Postgres> for Timestamp {
    fn encode_by_ref(
        &self,
        buf: &mut <Postgres as Database>::ArgumentBuffer,
    ) -> Result<IsNull, BoxDynError> {
        <OffsetDateTime as Encode<'q, Postgres>>::encode_by_ref(&self.to_time(), buf)
    }
}

impl<'r> Decode<'r, Postgres> for Timestamp {
    fn decode(value: <Postgres as Database>::ValueRef<'r>) -> Result<Self, BoxDynError> {
        <OffsetDateTime as Decode<'r, Postgres>>::decode(value).map(Self::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_six_decimals() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(
            Timestamp(1_795_987_288_000_120).to_string(),
            "2026-11-29T21:21:28.000120Z"
        );
    }
}
