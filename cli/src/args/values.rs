//! Parses the values of flags: lists of ranks, ranges of epochs, moments, labels.
//!
//! Guarantees: an error message shows a correct example. A list of ranks is bounded, so that a large number cannot
//! exhaust memory.

use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use memctl_proto::convert::holders::BUDGET_MS_MAX;
use memctl_replay::fit::NUMBER_MAX;

/// The maximum number of ranks in one list: four times the ranks of the largest known training jobs.
const RANKS_MAX: usize = 1 << 16;

/// A list such as `0-3,7`, sorted and without duplicates.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RankList(pub Vec<u32>);

impl FromStr for RankList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a list of ranks; write it like 0-3,7");
        let mut ranks = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().map_err(|_| wrong())?;
            let last: u32 = last.trim().parse().map_err(|_| wrong())?;
            if last < first {
                return Err(format!("`{part}` runs backwards; write {last}-{first}"));
            }
            if ranks.len() as u64 + u64::from(last - first) >= RANKS_MAX as u64 {
                return Err(format!("`{text}` is more than {RANKS_MAX} ranks"));
            }
            ranks.extend(first..=last);
        }
        ranks.sort_unstable();
        ranks.dedup();
        Ok(Self(ranks))
    }
}

/// A range such as `2..5`, with both ends included. `3`, `2..` and `..5` are also ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EpochRange {
    /// The first epoch, if there is a lower end.
    pub first: Option<u32>,
    /// The last epoch, if there is an upper end.
    pub last: Option<u32>,
}

impl FromStr for EpochRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a range of epochs; write it like 2..5 (both ends included), 2.. or 3");
        let end = |part: &str| -> Result<Option<u32>, String> {
            if part.is_empty() { Ok(None) } else { part.parse().map(Some).map_err(|_| wrong()) }
        };
        let (first, last) = match text.split_once("..") {
            Some((first, last)) => (end(first)?, end(last.strip_prefix('=').unwrap_or(last))?),
            None => (end(text)?, end(text)?),
        };
        match (first, last) {
            (None, None) => Err(wrong()),
            (Some(first), Some(last)) if last < first => Err(format!("`{text}` runs backwards; write {last}..{first}")),
            _ => Ok(Self { first, last }),
        }
    }
}

/// A time such as `2026-11-20T10:00:00Z`, or `10m` for ten minutes ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBound {
    /// A point in time, ns since the Unix epoch.
    At(u64),
    /// A time before now.
    Ago(SignedDuration),
}

impl TimeBound {
    /// Nanoseconds since the Unix epoch. An earlier time becomes 0.
    #[must_use]
    pub fn resolve(self, now: Timestamp) -> u64 {
        match self {
            Self::At(ns) => ns,
            Self::Ago(ago) => {
                let ns = now.as_nanosecond().saturating_sub(ago.as_nanos());
                u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
            }
        }
    }
}

impl FromStr for TimeBound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse::<Timestamp>() {
            return u64::try_from(at.as_nanosecond()).map(Self::At).map_err(|_| format!("`{text}` is before 1970"));
        }
        match text.parse::<SignedDuration>() {
            Ok(ago) if !ago.is_negative() => Ok(Self::Ago(ago)),
            _ => Err(format!("`{text}` is not a time; write it like 2026-11-20T10:00:00Z, or 10m for ten minutes ago")),
        }
    }
}

/// A label, written `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelArg(pub String, pub String);

impl FromStr for LabelArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let max = memctl_model::limits::LABEL_BYTES_MAX;
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() && key.len() <= max && value.len() <= max => {
                Ok(Self(key.to_owned(), value.to_owned()))
            }
            Some((key, _)) if !key.is_empty() => Err(format!("a label's key and value have {max} bytes each at most")),
            _ => Err(format!("`{text}` is not a label; write it like team=vision")),
        }
    }
}

/// A job and, if given, its size (the number at which it was recorded): `gpt-b4=4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizedJob(pub String, pub Option<u64>);

impl FromStr for SizedJob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a job with its number; write it like gpt-b4=4");
        let Some((job, number)) = text.rsplit_once('=') else { return Ok(Self(known_job(text)?, None)) };
        let number = number.parse::<u64>().ok().filter(|number| (1..=NUMBER_MAX).contains(number)).ok_or_else(wrong)?;
        Ok(Self(known_job(job)?, Some(number)))
    }
}

/// The name of a new job.
///
/// # Errors
/// The name cannot be typed, printed or used in a path.
pub fn new_job(text: &str) -> Result<String, String> {
    if text == "latest" {
        return Err("`latest` stands for the newest job; choose another name".to_owned());
    }
    if memctl_model::limits::is_job_name(text) {
        return Ok(text.to_owned());
    }
    if let Some((name, _)) = text.split_once('#') {
        return Err(format!("the text after # is the number of a run, which memctl assigns; name the job: {name}"));
    }
    Err(format!(
        "a job's name consists of letters, digits and ._:@/+- (no leading -, no leading or trailing /, no . or .. between /), {} bytes at most",
        memctl_model::limits::LABEL_BYTES_MAX
    ))
}

/// The name of an existing job.
///
/// # Errors
/// The name is empty, probably because a script's variable was not set. An empty name must not mean the newest job.
pub fn known_job(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("the name is empty; `memctl jobs` lists the jobs, `latest` is the newest".to_owned());
    }
    Ok(text.to_owned())
}

/// A label for an environment variable, in which commas separate labels.
///
/// # Errors
/// Why the label is invalid.
pub fn run_label(text: &str) -> Result<LabelArg, String> {
    if text.contains(',') {
        return Err("a label must not contain a comma; repeat --label for several".to_owned());
    }
    text.parse()
}

/// A length of time: 30s, 2m, 1h, or seconds.
///
/// # Errors
/// Why the text is not a duration.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3_600),
        _ => None,
    };
    let number = digits.parse::<u64>().ok().zip(seconds).and_then(|(number, seconds)| number.checked_mul(seconds));
    // The limit is one day: no wait is longer, and sums of times do not overflow a clock.
    number
        .filter(|&seconds| seconds <= 86_400)
        .map(std::time::Duration::from_secs)
        .ok_or_else(|| format!("`{text}` is not a duration up to a day; write it like 30s, 2m or 1h"))
}

/// How long a process may be paused, in milliseconds: 100ms, 2s.
///
/// # Errors
/// Why the text is not such a time.
pub fn budget_ms(text: &str) -> Result<u32, String> {
    let number = match text.strip_suffix("ms") {
        Some(number) => number.parse::<u32>().ok(),
        None => text.strip_suffix('s').and_then(|number| number.parse::<u32>().ok()?.checked_mul(1_000)),
    };
    number.filter(|ms| (1..=BUDGET_MS_MAX).contains(ms)).ok_or_else(|| {
        format!("`{text}` is not a time from 1ms to {}s; write it like 100ms or 2s", BUDGET_MS_MAX / 1_000)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sized_job_is_a_name_and_a_number() {
        assert_eq!("a=b=4".parse::<SizedJob>(), Ok(SizedJob("a=b".to_owned(), Some(4))));
        assert_eq!("a".parse::<SizedJob>(), Ok(SizedJob("a".to_owned(), None)));
        for wrong in ["a=", "=4", "a=0", "a=-1", "a=4.5", "a=99999999999"] {
            assert!(wrong.parse::<SizedJob>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_budget_has_a_unit_and_a_bound() {
        assert_eq!((budget_ms("100ms"), budget_ms("2s"), budget_ms("10s")), (Ok(100), Ok(2_000), Ok(10_000)));
        for wrong in ["", "100", "0ms", "0s", "11s", "10001ms", "-1ms", "1m", "ms", "9999999999s"] {
            assert!(budget_ms(wrong).unwrap_err().contains("write it like 100ms"), "{wrong}");
        }
    }

    #[test]
    fn ranks() {
        let parse = |text: &str| text.parse::<RankList>().map(|list| list.0);
        assert_eq!(parse("0-3,7").unwrap(), [0, 1, 2, 3, 7]);
        assert_eq!(parse("7,1,1-2").unwrap(), [1, 2, 7]);
        assert_eq!(parse("5").unwrap(), [5]);
        assert_eq!(parse("3-1").unwrap_err(), "`3-1` runs backwards; write 1-3");
        for wrong in ["", "a", "1,,2", "-1", "1-", "99999999999"] {
            assert!(parse(wrong).unwrap_err().contains("write it like 0-3,7"), "{wrong}");
        }
        assert!(parse("0-4294967295").unwrap_err().contains("more than 65536 ranks"));
        assert!(parse("0-65535,0-65535").unwrap_err().contains("more than 65536 ranks"));
    }

    #[test]
    fn epochs() {
        let parse = |text: &str| text.parse::<EpochRange>().map(|range| (range.first, range.last));
        assert_eq!(parse("2..5").unwrap(), (Some(2), Some(5)));
        assert_eq!(parse("2..=5").unwrap(), (Some(2), Some(5)));
        assert_eq!(parse("2..").unwrap(), (Some(2), None));
        assert_eq!(parse("..5").unwrap(), (None, Some(5)));
        assert_eq!(parse("3").unwrap(), (Some(3), Some(3)));
        assert_eq!(parse("5..2").unwrap_err(), "`5..2` runs backwards; write 2..5");
        for wrong in ["", "..", "a..b", "1...2", "-1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn moments() {
        let now: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        let resolve = |text: &str| text.parse::<TimeBound>().map(|moment| moment.resolve(now));
        assert_eq!(resolve("1970-01-01T00:00:01.5Z").unwrap(), 1_500_000_000);
        assert_eq!(resolve("2026-11-20T11:50:00+02:00").unwrap(), resolve("10m").unwrap());
        assert_eq!(resolve("2h 30m").unwrap(), resolve("2026-11-20T07:30:00Z").unwrap());
        assert_eq!(resolve("1000000h").unwrap(), 0);
        for wrong in ["", "yesterday", "-10m", "1969-01-01T00:00:00Z", "10"] {
            assert!(resolve(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_and_names() {
        assert_eq!("a=b=c".parse::<LabelArg>().unwrap(), LabelArg("a".into(), "b=c".into()));
        assert!("=b".parse::<LabelArg>().is_err());
        assert!("a".parse::<LabelArg>().is_err());
        assert!(format!("a={}", "x".repeat(257)).parse::<LabelArg>().unwrap_err().contains("256 bytes"));
        assert!(run_label("a=b,c=d").unwrap_err().contains("comma"));
        assert!(run_label("a=b").is_ok());
        assert!(new_job("run/1").is_ok());
        assert!(new_job("latest").unwrap_err().contains("newest"));
        for path in ["a b", "..", "/", "a/../b", "a/"] {
            assert!(new_job(path).is_err(), "{path}");
        }
        assert!(known_job("").unwrap_err().contains("empty"));
    }

    #[test]
    fn lengths_of_time() {
        let seconds = |text: &str| duration(text).map(|time| time.as_secs());
        assert_eq!(["0", "30s", "2m", "1h"].map(|text| seconds(text).unwrap()), [0, 30, 120, 3_600]);
        for wrong in ["", "s", "-1s", "1.5h", "25h", "99999999999999999999", "1d", "3 s", "5é"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
