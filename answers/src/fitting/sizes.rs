//! The memory of a training at other sizes, as an answer: figures of replays at the requested sizes, or a curve around
//! the recorded size.
//!
//! Guarantees: everything that makes a figure less certain is stated with it; a curve includes the recorded size and
//! the largest that fits. Does not say that a size fits if the memory was not given.

use memctl_model::HumanBytes;
use memctl_replay::fit::{self as replay, FitError};

use super::refused::{Refused, Wanted};
use super::{Meaning, Recorded};
use crate::fit::{Aligned, At, Fit, Recording, Replayed, Scaled};

/// Memory that no figure covers.
pub const OUTSIDE: &str = "Memory outside PyTorch's allocator: the context, libraries, other processes.";
/// Memory that no forecast covers.
const OTHER_SIZES: [&str; 2] = [
    "What a program or a library does at another size only: another kernel with another workspace, a split of the batch. The interval has room for one request twice as large as the largest that grows, with its segment, and for how memory is cut at sizes nearby.",
    "Sizes below the smaller recording are less certain than those above.",
];
/// The limitation of a forecast from one recording.
const ALONE: &str = "What scales is concluded from what each request was for, because there is one recording only: weaker than two. Memory that grows with the square of the number, or only in part, is assumed to grow in proportion.";

/// Points of a curve, as quarters of the recorded size.
const QUARTERS: [u64; 12] = [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32];

/// An incomplete answer, and the basis of its figures.
pub(super) struct Fitted {
    /// The result so far.
    pub(super) answer: Fit,
    /// The requests, and how they follow the size.
    pub(super) fit: replay::Fit,
    /// What they were for: of two recordings, those of the larger.
    pub(super) meaning: Meaning,
}

/// Begins the answer for one recording; `scales` is whether other sizes are requested.
///
/// # Errors
/// The recorded size is missing or invalid.
pub(super) fn alone(
    recording: Recording,
    recorded: Recorded,
    memory: Option<u64>,
    scales: bool,
) -> Result<Fitted, FitError> {
    let meaning = recorded.meaning(recording.size);
    let mut answer = Fit::new(Vec::new(), memory);
    answer.not_looked_at = caveats(&recording, &recorded);
    // Without a size, the query contains nothing that depends on it.
    let number = recording.size.unwrap_or(1) as f64;
    let fit = replay::Fit::alone((number, recorded.script), |request| meaning.scale(request), recorded.conf)?;
    if scales {
        answer.scaled = fit.scaled().map(scaled);
        answer.not_looked_at.push(ALONE.to_owned());
    }
    answer.recordings = vec![recording];
    Ok(Fitted { answer, fit, meaning })
}

/// Begins the answer for two recordings, of which the first has the smaller size.
///
/// # Errors
/// They are recordings of different trainings.
pub(super) fn two(
    small: (Recording, Recorded),
    large: (Recording, Recorded),
    memory: Option<u64>,
) -> Result<Fitted, FitError> {
    let mut answer = Fit::new(Vec::new(), memory);
    for (recording, recorded) in [&small, &large] {
        answer.not_looked_at.extend(caveats(recording, recorded));
    }
    let ((small, few), (large, many)) = (small, large);
    let meaning = many.meaning(large.size);
    let number = |recording: &Recording| recording.size.unwrap_or(0) as f64;
    let fit = replay::Fit::new((number(&small), few.script), (number(&large), many.script), many.conf)?;
    let replay::Aligned { requests, constant, linear, quadratic, other, unmatched, unmatched_bytes } = *fit.aligned();
    answer.aligned = Some(Aligned { requests, constant, linear, quadratic, other, unmatched, unmatched_bytes });
    answer.recordings = vec![small, large];
    Ok(Fitted { answer, fit, meaning })
}

impl Fitted {
    /// Adds the peaks at these sizes, and the largest size that fits.
    pub(super) fn sizes(&mut self, sizes: &[u64], wanted: Wanted<'_>) -> Result<(), Refused> {
        let memory = self.answer.device_memory_bytes;
        for &size in sizes {
            wanted.check()?;
            self.answer.at.push(at(&self.fit, size, memory));
        }
        self.answer.largest_that_fits = memory.and_then(|memory| self.fit.largest(memory, wanted.0));
        self.answer.not_looked_at.extend(OTHER_SIZES.map(str::to_owned));
        wanted.check()
    }

    /// Adds the peaks around the size of the larger recording, and at the largest size that fits.
    pub(super) fn curve(&mut self, wanted: Wanted<'_>) -> Result<(), Refused> {
        let size = self.answer.recordings.last().and_then(|recording| recording.size).unwrap_or(1);
        self.sizes(&around(size), wanted)?;
        let points = &mut self.answer.at;
        let Some(largest) = self.answer.largest_that_fits else { return Ok(()) };
        let place = points.partition_point(|point| point.size < largest);
        if points.get(place).is_none_or(|point| point.size != largest) {
            points.insert(place, at(&self.fit, largest, self.answer.device_memory_bytes));
        }
        Ok(())
    }
}

/// Distinct sizes from half to eight times the given size.
fn around(size: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> = QUARTERS.iter().map(|quarters| (size.saturating_mul(*quarters) / 4).max(1)).collect();
    sizes.dedup();
    sizes
}

/// Circumstances that make the figures of a recording less certain.
fn caveats(recording: &Recording, recorded: &Recorded) -> Vec<String> {
    let mut caveats = Vec::new();
    if !recorded.exact {
        caveats.push(format!("The replay does not repeat {}: figures are less certain.", recording.job));
    }
    if recorded.began_with_bytes > 0 {
        let live = HumanBytes::of(recorded.began_with_bytes);
        caveats.push(format!("{} began with {live} in use, taken as the same at every size.", recording.job));
    }
    let Replayed { failed_requests, failed_bytes, .. } = recording.replayed;
    if failed_requests > 0 {
        let (job, bytes) = (&recording.job, HumanBytes::of(failed_bytes));
        let failed = match failed_requests {
            1 => format!("the request for {bytes} that failed"),
            many => format!("the {many} requests that failed, the largest for {bytes}"),
        };
        caveats
            .push(format!("What {job} would have asked for behind {failed}: a step that was cut short may need more."));
    }
    caveats
}

fn scaled(scaled: &replay::Scaled) -> Scaled {
    let replay::Scaled { requests, fixed, fixed_bytes, proportional, proportional_bytes, doubtful, doubtful_bytes } =
        *scaled;
    Scaled { requests, fixed, fixed_bytes, proportional, proportional_bytes, doubtful, doubtful_bytes }
}

fn at(fit: &replay::Fit, size: u64, memory: Option<u64>) -> At {
    let forecast = fit.at(size as f64, memory);
    At {
        size,
        peak_allocated_bytes: forecast.likely.counts.peak_allocated_bytes,
        peak_reserved_bytes: forecast.likely.counts.peak_reserved_bytes,
        low: forecast.low_bytes,
        high: forecast.high_bytes,
        fits: forecast.fits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_the_recorded_size_and_none_twice() {
        assert_eq!(around(4), [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32]);
        assert_eq!(around(1), [1, 2, 3, 4, 5, 6, 8]);
        assert_eq!(around(7), [3, 5, 7, 8, 10, 14, 17, 21, 28, 35, 42, 56]);
        for size in [2, 3, 5, 1000, 1 << 24, u64::MAX] {
            let sizes = around(size);
            assert!(sizes.contains(&size) || size > 1 << 24, "{sizes:?}");
            assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]), "{sizes:?}");
        }
    }
}
