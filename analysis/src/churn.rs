//! Churn: device memory that a job requests from the driver again and again in steady state.
//!
//! Taking memory once only fills the cache. Churn is memory that is taken although as much was released before. It is
//! slow: `cudaFree` waits for the whole device, and the following `cudaMalloc` costs milliseconds. The measure is
//! therefore the bytes taken minus the growth of reserved memory. Guarantees: a job whose steady state only fills its
//! cache has no churn.

use memctl_model::{EvidenceValue, Finding, FindingKind, Pattern, Severity, Stack, StackId};

use crate::steady::{DriverCalls, Steady};
use crate::wording::{REPLAYED, bytes, opening, place_or_none, plural, ranks, sentence};

/// Minimum steps of steady state before churn is judged.
pub const STEPS_MIN: u64 = 8;
/// Minimum steps that both took and released memory.
const STEPS_HIT_MIN: u64 = 3;

/// Maximum number of releasing stacks that are examined.
const PLACES_MAX: usize = 64;
/// Duration of a `cudaMalloc` or `cudaFree` in milliseconds: on an idle device, and on a device that must be waited
/// for.
const CALL_MS: (f64, f64) = (0.1, 1.0);
/// A place is named only if it releases at least this share of the released bytes.
const PLACE_SHARE_MIN: f64 = 0.5;

/// The place that releases most of the memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Emptied {
    /// The stack that releases memory.
    pub stack: Stack,
    /// Number of releases.
    pub times: u64,
    /// Bytes released.
    pub bytes: u64,
    /// Whether the memory is released by a call of `empty_cache()`. Otherwise it is released by an allocation that
    /// found no room.
    pub by_call: bool,
}

/// The driver calls of a rank in steady state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankChurn {
    /// The rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// Steps examined, without warm-up.
    pub steps: u64,
    /// Steps that took memory from the driver.
    pub steps_taking: u64,
    /// Steps that released memory to the driver.
    pub steps_returning: u64,
    /// The driver calls of these steps.
    pub calls: DriverCalls,
    /// Bytes taken beyond the growth of reserved memory.
    pub again_bytes: u64,
    /// Allocations per step.
    pub allocations_per_step: f64,
    /// How often the allocator emptied its cache and tried again during these steps; `None` if not measured.
    pub retries: Option<u64>,
    /// The place that releases most of the memory, if one place does.
    pub emptied: Option<Emptied>,
}

/// The largest number of steady steps of any device, if too few to judge churn on any.
#[must_use]
pub fn too_few(ranks: &[RankChurn]) -> Option<u64> {
    let most = ranks.iter().map(|rank| rank.steps).max().unwrap_or(0);
    (most < STEPS_MIN).then_some(most)
}

impl RankChurn {
    /// Evaluates a steady state. `retries` is the rise of `num_alloc_retries` during it; `resolve` returns the frames
    /// of a stack.
    #[must_use]
    pub fn of(
        rank: u32,
        device: u8,
        steady: &Steady,
        retries: Option<u64>,
        resolve: &dyn Fn(StackId) -> Stack,
    ) -> Self {
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
            emptied: emptied(steady, resolve),
        }
    }

    /// Whether the program calls `empty_cache()` again and again.
    #[must_use]
    pub fn is_emptied(&self) -> bool {
        self.emptied.as_ref().is_some_and(|emptied| emptied.by_call)
    }

    /// Calls of the driver per step.
    #[must_use]
    pub fn calls_per_step(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { (self.calls.takes + self.calls.returns) as f64 / self.steps as f64 }
    }

    /// Info if at least a tenth of the steps are affected, warning if at least half of them are. It is also a warning
    /// if the cache is emptied in at least a tenth of the steps because a request found no room; each such retry
    /// synchronises the device.
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

/// The place that releases most memory. Stacks with the same site count as one place.
fn emptied(steady: &Steady, resolve: &dyn Fn(StackId) -> Stack) -> Option<Emptied> {
    let mut places: Vec<Emptied> = Vec::new();
    for (id, returning) in steady.returning().into_iter().take(PLACES_MAX) {
        let stack = resolve(id);
        let by_call = stack.frames.iter().any(|frame| &*frame.function == "empty_cache");
        match places.iter_mut().find(|place| place.by_call == by_call && place.stack.site() == stack.site()) {
            Some(place) => {
                place.times += returning.times;
                place.bytes = place.bytes.saturating_add(returning.bytes);
            }
            None => places.push(Emptied { stack, times: returning.times, bytes: returning.bytes, by_call }),
        }
    }
    let all = places.iter().fold(0_u64, |sum, place| sum.saturating_add(place.bytes));
    let most = places.into_iter().max_by_key(|place| place.bytes)?;
    (!most.stack.frames.is_empty() && most.bytes as f64 >= all as f64 * PLACE_SHARE_MIN).then_some(most)
}

/// The finding about all ranks, if any rank has churn.
#[must_use]
pub fn finding(reports: &[RankChurn], known: usize) -> Option<Finding> {
    let said: Vec<&RankChurn> = reports.iter().filter(|report| report.severity().is_some()).collect();
    let worst =
        said.iter().max_by_key(|report| (report.severity(), report.again_bytes, std::cmp::Reverse(report.rank)))?;
    let mut numbers: Vec<u32> = said.iter().map(|report| report.rank).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let stack = worst.emptied.as_ref().map(|emptied| emptied.stack.clone()).unwrap_or_default();
    Some(Finding {
        all_ranks: numbers.len() > 1 && numbers.len() == known,
        title: title(worst, &numbers, known),
        explanation: explanation(worst),
        advice: sentence(advice(worst)),
        evidence: evidence(worst),
        pattern: worst.is_emptied().then_some(Pattern::CacheEmptied),
        site: stack.site().cloned(),
        stack: stack.frames,
        ..Finding::new(FindingKind::Churn, worst.severity()?, 0.95, numbers)
    })
}

fn title(worst: &RankChurn, numbers: &[u32], known: usize) -> String {
    let who = opening(&ranks(numbers, known));
    let one = numbers.len() == 1;
    let again = bytes(worst.again_bytes / worst.steps.max(1));
    let hit = worst.steps_taking.min(worst.steps_returning);
    let steps = worst.steps;
    if let Some(emptied) = worst.emptied.as_ref().filter(|emptied| emptied.by_call) {
        return format!(
            "{who} {} empty_cache() in {hit} of {steps} steps, in {}: {again} per step are released to the driver and requested again",
            if one { "calls" } else { "call" },
            place_or_none(emptied.stack.site()),
        );
    }
    let retried = worst.retries.filter(|&retries| retries > 0);
    let why = retried.map_or(String::new(), |retries| format!(", {} because a request found no room", times(retries)));
    let (give, take) = if one { ("releases", "requests") } else { ("release", "request") };
    format!("{who} {give} device memory and {take} it again in {hit} of {steps} steps ({again} per step){why}")
}

fn explanation(worst: &RankChurn) -> String {
    let per_step = worst.calls_per_step();
    format!(
        "In steady state, rank {} requested {} from the driver in {} and released {} in {}: {per_step:.1} calls of cudaMalloc and cudaFree per step. Each release waits for the whole device; at the usual {} to {} ms per call, that is {:.1} to {:.1} ms of each step.",
        worst.rank,
        bytes(worst.calls.taken_bytes),
        plural(worst.calls.takes, "call"),
        bytes(worst.calls.returned_bytes),
        plural(worst.calls.returns, "call"),
        CALL_MS.0,
        CALL_MS.1,
        per_step * CALL_MS.0,
        per_step * CALL_MS.1,
    )
}

fn advice(worst: &RankChurn) -> String {
    let retried = worst.retries.is_some_and(|retries| retries > 0);
    match &worst.emptied {
        Some(emptied) if emptied.by_call => format!(
            "remove torch.cuda.empty_cache() in {} from the loop: the allocator reuses free memory by itself and empties its cache before a request fails",
            place_or_none(emptied.stack.site())
        ),
        _ if retried => format!("the cache is emptied because the device is full: reduce the batch; {REPLAYED}"),
        _ => "remove torch.cuda.empty_cache() (and libraries that call it) from the training loop; with garbage_collection_threshold set, raise it".to_owned(),
    }
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
    if let Some(emptied) = &worst.emptied {
        evidence.push(("emptied_times".to_owned(), EvidenceValue::Count(emptied.times)));
        evidence.push(("emptied_bytes".to_owned(), EvidenceValue::Count(emptied.bytes)));
    }
    let per_step = worst.calls_per_step();
    evidence.push(("driver_calls_per_step".to_owned(), EvidenceValue::Number(per_step)));
    evidence.push(("driver_ms_per_step_low".to_owned(), EvidenceValue::Number(per_step * CALL_MS.0)));
    evidence.push(("driver_ms_per_step_high".to_owned(), EvidenceValue::Number(per_step * CALL_MS.1)));
    evidence.push(("allocations_per_step".to_owned(), EvidenceValue::Number(worst.allocations_per_step)));
    evidence
}

#[cfg(test)]
mod tests {
    use memctl_model::{Action, AllocatorSettings, Event, Frame, Levels};

    use super::*;
    use crate::rules::PlacementRules;

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
            emptied: None,
        }
    }

    #[test]
    fn empty_cache_in_every_step_is_told_at_the_line_that_calls_it() {
        let frame = |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
        let frames = vec![
            frame("empty_cache", "/venv/lib/python3.11/site-packages/torch/cuda/memory.py", 224),
            frame("train", "/home/me/train.py", 31),
        ];
        let mut steady = Steady::new(PlacementRules::new(&AllocatorSettings::default()), false);
        let levels = |reserved_bytes| Levels { reserved_bytes, allocated_bytes: reserved_bytes, ..Levels::default() };
        let mut number = 0;
        for step in 0..240 {
            steady.step_begins(step, levels(0));
            let mut event = |action, stack, reserved| {
                number += 1;
                let event = Event { action, size: 20 << 20, stack: StackId(stack), ..Event::default() };
                steady.event(number, &event, levels(reserved));
            };
            event(Action::SegmentAlloc, 1, 20 << 20);
            event(Action::SegmentAlloc, 1, 40 << 20);
            event(Action::Alloc, 1, 40 << 20);
            event(Action::FreeCompleted, 1, 40 << 20);
            event(Action::SegmentFree, 2, 20 << 20);
            event(Action::SegmentFree, 2, 0);
            // The result is the same whether the call is within the step or after it.
            steady.step_ends(levels(0));
        }
        let resolve = |id: StackId| Stack { frames: if id == StackId(2) { frames.clone() } else { Vec::new() } };
        let found = finding(&[RankChurn::of(0, 0, &steady, Some(0), &resolve)], 1).unwrap();
        assert_eq!(
            found.title,
            "Rank 0 calls empty_cache() in 230 of 230 steps, in train (train.py:31): 40.0 MiB per step are released to the driver and requested again"
        );
        assert_eq!((found.pattern, found.severity), (Some(Pattern::CacheEmptied), Severity::Warning));
        assert!(found.explanation.contains("4.0 calls of cudaMalloc and cudaFree per step"), "{}", found.explanation);
        assert!(found.evidence.contains(&("emptied_times".into(), EvidenceValue::Count(230))), "{:?}", found.evidence);
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
            "All 2 ranks release device memory and request it again in 40 of 80 steps (512 MiB per step), 33 times because a request found no room"
        );
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.advice.contains("reduce the batch"));
        let alone = finding(&[churn(20, 80, None), RankChurn { rank: 1, ..churn(0, 80, None) }], 2).unwrap();
        assert_eq!(
            alone.title,
            "Rank 0 releases device memory and requests it again in 20 of 80 steps (256 MiB per step)"
        );
        assert!(alone.advice.contains("empty_cache"));
        assert!(finding(&[churn(0, 80, None)], 1).is_none());
    }
}
