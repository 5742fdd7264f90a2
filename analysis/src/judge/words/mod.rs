//! The sentences of findings, written for a tired reader who wants to know what to do.
//!
//! Guarantees: a title is one sentence with figure, ranks and place. An explanation states what was observed. An
//! advice names the change in the user's terms. A text claims only what its evidence shows.

mod leak;
mod level;
pub(super) mod verdict;

pub(super) use leak::leak;
pub(super) use level::{Excess, Grown, Near, WHOLE_DEVICE, foreign, level, name_device_leak, near_oom, skew};

use memctl_model::{HumanBytes, Rate};

use crate::statistics::{thinned, upper_median};
use crate::wording::{place, places, plural};

/// An hour: a failure within this time is critical.
const SOON_SECONDS: f64 = 3_600.0;
/// A month: longer forecasts are not useful.
const FAR_SECONDS: f64 = 30.0 * 86_400.0;
/// Maximum number of points of a history in the evidence.
const SERIES_MAX: usize = 64;

/// Bytes of a rate in words.
fn bytes(rate: f64) -> HumanBytes {
    // The cast saturates.
    HumanBytes(rate.round() as i64)
}

/// The time to out of memory: `about 17 epochs`, `about 3 hours`; `None` beyond a month.
fn until(epochs: Option<f64>, seconds: Option<f64>) -> Option<String> {
    if seconds.is_some_and(|seconds| seconds > FAR_SECONDS) {
        return None;
    }
    match (epochs, seconds) {
        (Some(epochs), _) if epochs < 1.0 => Some("within this epoch".to_owned()),
        (Some(epochs), _) if epochs < 10_000.0 => Some(format!("in about {}", plural(epochs.round() as u64, "epoch"))),
        (_, Some(seconds)) if seconds < 120.0 => Some(format!("in about {seconds:.0} seconds")),
        (_, Some(seconds)) if seconds < 7_200.0 => Some(format!("in about {:.0} minutes", seconds / 60.0)),
        (_, Some(seconds)) if seconds < 172_800.0 => Some(format!("in about {:.0} hours", seconds / 3_600.0)),
        (_, Some(seconds)) => Some(format!("in about {:.0} days", seconds / 86_400.0)),
        _ => None,
    }
}

/// Ranks are uneven if one has less than this share of the highest rate, or of the most that one has gained.
const EVEN_SHARE: f64 = 0.9;

fn median_rate(rates: impl Iterator<Item = Option<Rate>>) -> Option<Rate> {
    let mut known: Vec<Rate> = rates.flatten().collect();
    known.sort_by(|a, b| a.value.total_cmp(&b.value));
    let value = upper_median(&known)?.value;
    let low = known.iter().map(|rate| rate.low).fold(f64::INFINITY, f64::min);
    let high = known.iter().map(|rate| rate.high).fold(f64::NEG_INFINITY, f64::max);
    Some(Rate { value, low, high })
}
