//! Times and durations for people and for data.
//!
//! Guarantees: every `u64` of nanoseconds has a text; data is RFC 3339 in UTC with all its digits.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Nanoseconds since 1970; in an answer RFC 3339 in UTC, with all known digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(test, derive(ts_rs::TS), ts(type = "string"))]
pub struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&timestamp(self.0), f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let time: Timestamp = text.parse().map_err(de::Error::custom)?;
        u64::try_from(time.as_nanosecond()).map(Self).map_err(|_| de::Error::custom("a time before 1970"))
    }
}

fn timestamp(ns: u64) -> Timestamp {
    // 2^64 ns after 1970 is in the year 2554: every value is in range, so `MAX` never occurs.
    Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(Timestamp::MAX)
}

/// RFC 3339 in UTC, with all known digits.
#[must_use]
pub fn rfc3339(ns: u64) -> String {
    timestamp(ns).to_string()
}

/// `2026-11-20 10:12:03 UTC`.
#[must_use]
pub fn date(ns: u64) -> String {
    timestamp(ns).strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// `850 ms`, `1.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
#[must_use]
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0 if ns < 1_000_000 => format!("{} us", ns / 1_000),
        0 => format!("{} ms", ns / 1_000_000),
        1..60 => format!("{}.{} s", seconds, ns % 1_000_000_000 / 100_000_000),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// How long ago something was, in its largest unit: `12 s`, `3 min`, `5 h`, `12 d`.
#[must_use]
pub fn age(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_text() {
        for ns in [0, 1, 1_795_168_323_226_534_976, u64::MAX] {
            let text = serde_json::to_string(&Time(ns)).unwrap();
            assert_eq!(text, format!("\"{}\"", rfc3339(ns)));
            assert_eq!(serde_json::from_str::<Time>(&text).unwrap(), Time(ns));
        }
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_795_168_323_226_534_976), "2026-11-20T09:52:03.226534976Z");
        assert_eq!(rfc3339(u64::MAX), "2554-07-21T23:34:33.709551615Z");
        assert_eq!(date(1_795_168_323_226_534_976), "2026-11-20 09:52:03 UTC");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let second = 1_000_000_000;
        assert_eq!(duration(12_345), "12 us");
        assert_eq!(duration(850_000_000), "850 ms");
        assert_eq!(duration(59_990_000_000), "59.9 s");
        assert_eq!(duration(200 * second), "3 min 20 s");
        assert_eq!(duration(7_500 * second), "2 h 5 min");
        assert_eq!(duration(u64::MAX), "213503 d 23 h");
    }
}
