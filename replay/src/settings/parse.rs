//! The syntax of `PYTORCH_CUDA_ALLOC_CONF`, `key:value,key:value`, parsed as a version of torch parses it.
//!
//! Guarantees: a text that the allocator would reject gives an error with key, value and reason. An accepted key that
//! does not affect placement is ignored if it is about pinned memory. It gives a remark if the user may expect an
//! effect. `backend:cudaMallocAsync` is rejected because it packs inside the driver.

use memctl_model::allocator::LARGE_SEGMENT_BYTES;

use super::lexer::Words;
use super::version::Version;
use super::{Conf, LARGE_SEGMENT_BYTES_MAX, roundup};

/// Why a text cannot be used as settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// No version knows the key.
    #[error("unrecognized key {key:?}: torch refuses it")]
    Unknown {
        /// The key.
        key: String,
    },
    /// This version does not know the key yet.
    #[error("{key:?} came with torch {since}; torch {version} refuses it")]
    TooNew {
        /// The key.
        key: String,
        /// The first version that knows the key.
        since: Version,
        /// The version whose rules apply.
        version: Version,
    },
    /// The key takes other values.
    #[error("{key}:{value} is refused: {why}")]
    Refused {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Why.
        why: String,
    },
    /// Something is missing.
    #[error("expected {expected:?} after {after:?}")]
    Expected {
        /// The text that was expected.
        expected: &'static str,
        /// The text before it.
        after: String,
    },
    /// The text selects another allocator.
    #[error("backend:cudaMallocAsync packs inside the driver: nothing outside it can replay that")]
    Async,
}

/// A part that is accepted and may not have the intended effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The key.
    pub key: String,
    /// One sentence.
    pub text: String,
}

/// Keys that do not affect placement on the device.
const WITHOUT_EFFECT: [&str; 13] = [
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "throw_on_cudamalloc_oom",
    "graph_capture_record_stream_reuse",
    "expandable_segments_reserve",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
];

/// Keys that later versions introduced: PRs 136174, 161035, 172056.
const SINCE: [(&str, Version); 3] = [
    ("max_non_split_rounding_mb", Version::of(2, 6)),
    ("per_process_memory_fraction", Version::of(2, 10)),
    ("large_segment_size_mb", Version::of(2, 11)),
];

pub(super) fn parse(text: &str, version: Version) -> Result<(Conf, Vec<Remark>), ConfError> {
    let mut conf = Conf { ties: version.ties(), ..Conf::default() };
    let mut rounding = None;
    let mut words = Words::of(text);
    let mut remarks = Vec::new();
    while let Some(key) = words.next() {
        if key == "," {
            continue;
        }
        if let Some(&(_, since)) = SINCE.iter().find(|(name, since)| *name == key && version < *since) {
            return Err(ConfError::TooNew { key, since, version });
        }
        if !words.accept(":") {
            return Err(ConfError::Expected { expected: ":", after: key });
        }
        match key.as_str() {
            "roundup_power2_divisions" => conf.roundup_power2_divisions = roundup::read(&mut words)?,
            "max_split_size_mb" => conf.max_split_bytes = Some(mebibytes(&key, &value(&mut words))?),
            "max_non_split_rounding_mb" => rounding = Some(mebibytes(&key, &value(&mut words))?),
            "large_segment_size_mb" => conf.large_segment_bytes = mebibytes(&key, &value(&mut words))?,
            "garbage_collection_threshold" => {
                conf.garbage_collection_threshold = share(&key, &value(&mut words), false)?
            }
            "per_process_memory_fraction" => {
                let fraction = share(&key, &value(&mut words), true)?;
                conf.memory_fraction = (fraction < 1.0).then_some(fraction);
            }
            "expandable_segments" => conf.expandable_segments = switch(&key, &value(&mut words))?,
            "backend" => match value(&mut words).as_str() {
                "native" => {}
                "cudaMallocAsync" => return Err(ConfError::Async),
                other => return Err(refused(&key, other, "native or cudaMallocAsync")),
            },
            known if WITHOUT_EFFECT.contains(&known) => {
                let _ = value(&mut words);
                let text = "changes nothing about where blocks go".to_owned();
                remarks.push(Remark { key: key.clone(), text });
            }
            _ => return Err(ConfError::Unknown { key }),
        }
        if !words.accept(",")
            && let Some(next) = words.next()
        {
            return Err(ConfError::Expected { expected: ",", after: format!("the value of {key}, before {next:?}") });
        }
    }
    check(&mut conf, rounding, version, &mut remarks)?;
    Ok((conf, remarks))
}

/// Checks conditions between several keys.
fn check(conf: &mut Conf, rounding: Option<u64>, version: Version, remarks: &mut Vec<Remark>) -> Result<(), ConfError> {
    let large = conf.large_segment_bytes;
    if large <= LARGE_SEGMENT_BYTES / 2 {
        return Err(refused("large_segment_size_mb", &(large >> 20).to_string(), "must be above 10"));
    }
    if large > LARGE_SEGMENT_BYTES_MAX {
        return Err(refused("large_segment_size_mb", &(large >> 20).to_string(), "no device has as much"));
    }
    if let Some(split) = conf.max_split_bytes {
        // torch 2.15 accepts a value equal to the size of a large segment; 2.8 does not.
        let may_equal = version >= Version::of(2, 10);
        if split < large || split == large && !may_equal {
            let why = format!("must be {} {}", if may_equal { "at least" } else { "above" }, large >> 20);
            return Err(refused("max_split_size_mb", &(split >> 20).to_string(), &why));
        }
    }
    if let Some(rounding) = rounding
        && rounding < large
    {
        let why = format!("must be at least {}", large >> 20);
        return Err(refused("max_non_split_rounding_mb", &(rounding >> 20).to_string(), &why));
    }
    conf.max_non_split_rounding_bytes = rounding.unwrap_or(large);
    if conf.garbage_collection_threshold > 0.0 {
        let text = "does nothing unless the process's memory fraction is below 1".to_owned();
        remarks.push(Remark { key: "garbage_collection_threshold".to_owned(), text });
    }
    if conf.expandable_segments && conf.max_split_bytes.is_some() {
        let text = "does nothing for expandable segments, which are always split".to_owned();
        remarks.push(Remark { key: "max_split_size_mb".to_owned(), text });
    }
    Ok(())
}

/// A value: one word, or a list in brackets. Only one key interprets such a list.
fn value(words: &mut Words) -> String {
    let mut value = words.next().unwrap_or_default();
    if value == "[" {
        while let Some(word) = words.next() {
            value.push_str(&word);
            if word == "]" {
                break;
            }
        }
    }
    value
}

fn mebibytes(key: &str, value: &str) -> Result<u64, ConfError> {
    let count: u64 = value.parse().map_err(|_| refused(key, value, "must be a whole number of MiB"))?;
    Ok(count.min(u64::MAX >> 21) << 20)
}

fn share(key: &str, value: &str, one: bool) -> Result<f64, ConfError> {
    let share: f64 = value.parse().map_err(|_| refused(key, value, "must be a number"))?;
    let fits = share > 0.0 && (share < 1.0 || one && share <= 1.0);
    if fits { Ok(share) } else { Err(refused(key, value, "must lie between 0 and 1")) }
}

fn switch(key: &str, value: &str) -> Result<bool, ConfError> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(refused(key, value, "must be True or False")),
    }
}

fn refused(key: &str, value: &str, why: &str) -> ConfError {
    ConfError::Refused { key: key.to_owned(), value: value.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> Conf {
        parse(text, Version::of(2, 11)).unwrap_or_else(|error| panic!("{text}: {error}")).0
    }

    fn error(text: &str, version: Version) -> String {
        parse(text, version).expect_err(text).to_string()
    }

    #[test]
    fn every_key_is_read() {
        assert_eq!(conf(""), Conf::default());
        let all = conf("max_split_size_mb:128, garbage_collection_threshold:0.8,expandable_segments:True");
        assert_eq!(all.max_split_bytes, Some(128 << 20));
        assert_eq!(all.garbage_collection_threshold, 0.8);
        assert!(all.expandable_segments);
        let large = conf("large_segment_size_mb:32");
        assert_eq!((large.large_segment_bytes, large.max_non_split_rounding_bytes), (32 << 20, 32 << 20));
        assert_eq!(conf("per_process_memory_fraction:0.5").memory_fraction, Some(0.5));
        assert_eq!(conf("backend:native,pinned_num_register_threads:8"), Conf::default());
        assert_eq!(
            conf("expandable_segments_reserve:[small:0.5],max_split_size_mb:64").max_split_bytes,
            Some(64 << 20)
        );
    }

    #[test]
    fn divisions_by_size_fill_the_table_as_pytorch_does() {
        let mut table = [1; 16];
        table[9] = 2;
        table[10] = 4;
        table[11..].fill(8);
        assert_eq!(conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions, table);
        assert_eq!(conf("roundup_power2_divisions:4").roundup_power2_divisions, [4; 16]);
        let gap = conf("roundup_power2_divisions:[1:8,8:2]").roundup_power2_divisions;
        assert_eq!(gap[..5], [8, 0, 0, 2, 0]);
    }

    #[test]
    fn what_torch_refuses_is_refused_with_a_reason() {
        let now = Version::of(2, 11);
        assert_eq!(error("max_split:1", now), "unrecognized key \"max_split\": torch refuses it");
        assert_eq!(error("max_split_size_mb:19", now), "max_split_size_mb:19 is refused: must be at least 20");
        assert_eq!(error("max_split_size_mb", now), "expected \":\" after \"max_split_size_mb\"");
        assert_eq!(
            error("expandable_segments:true", now),
            "expandable_segments:true is refused: must be True or False"
        );
        assert!(error("garbage_collection_threshold:1.0", now).ends_with("must lie between 0 and 1"));
        assert!(error("roundup_power2_divisions:3", now).ends_with("must be a power of two"));
        assert!(error("backend:cudaMallocAsync", now).starts_with("backend:cudaMallocAsync packs"));
        let old = error("large_segment_size_mb:40", Version::of(2, 8));
        assert_eq!(old, "\"large_segment_size_mb\" came with torch 2.11; torch 2.8 refuses it");
        assert!(error("max_split_size_mb:20", Version::of(2, 8)).ends_with("above 20"));
        assert!(error("max_split_size_mb:64 expandable_segments:True", now).contains("refused"));
    }
}
