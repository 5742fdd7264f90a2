//! Churn: device memory asked of the driver again and again in steady state.
//!
//! Taking memory once is how a cache fills; what counts is memory that was taken although as much had been given back:
//! `cudaFree` waits for the whole device, and `cudaMalloc` behind it costs milliseconds. So the figure is bytes taken beyond
//! what reserved memory grew by. Guarantees: a job whose steady state only fills its cache has no churn.

use memctl_model::{EvidenceValue, Finding, FindingKind, Severity};

use crate::steady::{DriverCalls, Steady};
use crate::wording::{bytes, plural, ranks};

/// Steps of steady state before anything is said.
const STEPS_MIN: u64 = 8;
/// Steps that both gave back or took, before it is "again and again".
const STEPS_HIT_MIN: u64 = 3;

/// What a rank asked of the driver in steady state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankChurn {
    /// The rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// Steps looked at, warm-up left out.
    pub steps: u64,
    /// Steps that took memory from the driver.
    pub steps_taking: u64,
    /// Steps that gave memory back.
    pub steps_returning: u64,
    /// What was asked of the driver.
    pub calls: DriverCalls,
    /// Bytes taken beyond what reserved memory grew by.
    pub again_bytes: u64,
    /// Allocations per step.
    pub allocations_per_step: f64,
    /// Times the allocator emptied its cache and tried again, over the same time; `None` where it was not measured.
    pub retries: Option<u64>,
}

impl RankChurn {
    /// Reads a steady state. `retries` = how much `num_alloc_retries` rose meanwhile.
    #[must_use]
    pub fn of(rank: u32, device: u8, steady: &Steady, retries: Option<u64>) -> Self {
        let growth = steady.reserved.map_or(0, |(first, last)| last.saturating_sub(first));
        Self {
            rank,
            device,
            steps: steady.steps,
            steps_taking: steady.steps_taking,
            steps_returning: steady.steps_returning,
            calls: steady.calls,
            again_bytes: steady.calls.taken_bytes.saturating_sub(growth).min(steady.calls.returned_bytes),
            allocations_per_step: if steady.steps == 0 { 0.0 } else { steady.allocations as f64 / steady.steps as f64 },
            retries,
        }
    }

    /// Info from a tenth of the steps on, warning from half of them or where the cache is emptied that often because a
    /// request found no room (each costs a synchronisation of the device).
    #[must_use]
    pub fn severity(&self) -> Option<Severity> {
        let hit = self.steps_taking.min(self.steps_returning);
        if self.steps < STEPS_MIN || hit < STEPS_HIT_MIN || hit * 10 < self.steps || self.again_bytes == 0 {
            return None;
        }
        let retried = self.retries.is_some_and(|retries| retries >= STEPS_HIT_MIN && retries * 10 >= self.steps);
        Some(if retried || hit * 2 >= self.steps { Severity::Warning } else { Severity::Info })
    }
}

/// What the ranks amount to.
#[must_use]
pub fn finding(reports: &[RankChurn], known: usize) -> Option<Finding> {
    let said: Vec<&RankChurn> = reports.iter().filter(|report| report.severity().is_some()).collect();
    let worst =
        said.iter().max_by_key(|report| (report.severity(), report.again_bytes, std::cmp::Reverse(report.rank)))?;
    let mut numbers: Vec<u32> = said.iter().map(|report| report.rank).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let again = worst.again_bytes / worst.steps.max(1);
    let hit = worst.steps_taking.min(worst.steps_returning);
    let verb = if numbers.len() == 1 { "gives" } else { "give" };
    let retried = worst.retries.filter(|&retries| retries > 0);
    let why = retried.map_or(String::new(), |retries| format!(", {} because a request found no room", times(retries)));
    Some(Finding {
        all_ranks: numbers.len() > 1 && numbers.len() == known,
        title: format!(
            "{} {verb} device memory back and {} it again in {hit} of {} steps ({} a step){why}",
            ranks(&numbers, known),
            if numbers.len() == 1 { "takes" } else { "take" },
            worst.steps,
            bytes(again),
        ),
        explanation: format!(
            "In steady state rank {} took {} from the driver in {} and gave {} back in {}; every release waits for the whole device, which costs each of these steps milliseconds.",
            worst.rank,
            bytes(worst.calls.taken_bytes),
            plural(worst.calls.takes, "call"),
            bytes(worst.calls.returned_bytes),
            plural(worst.calls.returns, "call"),
        ),
        advice: match retried {
            Some(_) => "the cache is emptied because the device is full: lower the batch, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True so that freed memory fits again".to_owned(),
            None => "take torch.cuda.empty_cache() (and libraries that call it) out of the training loop; with garbage_collection_threshold set, raise it".to_owned(),
        },
        evidence: evidence(worst),
        ..Finding::new(FindingKind::Churn, worst.severity()?, 0.95, numbers)
    })
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn evidence(worst: &RankChurn) -> Vec<(String, EvidenceValue)> {
    let mut evidence: Vec<(String, EvidenceValue)> = [
        ("rank", u64::from(worst.rank)),
        ("steps", worst.steps),
        ("steps_taking", worst.steps_taking),
        ("steps_returning", worst.steps_returning),
        ("takes", worst.calls.takes),
        ("taken_bytes", worst.calls.taken_bytes),
        ("returns", worst.calls.returns),
        ("returned_bytes", worst.calls.returned_bytes),
        ("taken_again_bytes", worst.again_bytes),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), EvidenceValue::Count(value)))
    .collect();
    if let Some(retries) = worst.retries {
        evidence.push(("alloc_retries".to_owned(), EvidenceValue::Count(retries)));
    }
    evidence.push(("allocations_per_step".to_owned(), EvidenceValue::Number(worst.allocations_per_step)));
    evidence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn churn(hit: u64, steps: u64, retries: Option<u64>) -> RankChurn {
        RankChurn {
            rank: 0,
            device: 0,
            steps,
            steps_taking: hit,
            steps_returning: hit,
            calls: DriverCalls { takes: hit * 2, taken_bytes: hit << 30, returns: hit * 2, returned_bytes: hit << 30 },
            again_bytes: hit << 30,
            allocations_per_step: 900.0,
            retries,
        }
    }

    #[test]
    fn a_cache_that_fills_is_no_churn() {
        assert_eq!(RankChurn { again_bytes: 0, ..churn(40, 80, None) }.severity(), None);
        assert_eq!(churn(2, 100, None).severity(), None);
        assert_eq!(churn(7, 80, None).severity(), None);
        assert_eq!(churn(8, 80, None).severity(), Some(Severity::Info));
        assert_eq!(churn(40, 80, None).severity(), Some(Severity::Warning));
        assert_eq!(churn(8, 80, Some(9)).severity(), Some(Severity::Warning));
    }

    #[test]
    fn the_sentence() {
        let found = finding(&[churn(40, 80, Some(33)), RankChurn { rank: 1, ..churn(30, 80, None) }], 2).unwrap();
        assert_eq!(
            found.title,
            "all 2 ranks give device memory back and take it again in 40 of 80 steps (512 MiB a step), 33 times because a request found no room"
        );
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.advice.contains("lower the batch"));
        let alone = finding(&[churn(20, 80, None), RankChurn { rank: 1, ..churn(0, 80, None) }], 2).unwrap();
        assert_eq!(
            alone.title,
            "rank 0 gives device memory back and takes it again in 20 of 80 steps (256 MiB a step)"
        );
        assert!(alone.advice.contains("empty_cache"));
        assert!(finding(&[churn(0, 80, None)], 1).is_none());
    }
}
