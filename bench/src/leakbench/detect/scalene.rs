//! Scalene's rule: among the allocations at which the footprint reached a new high, those of one line were hardly ever
//! freed.
//!
//! Per line 1 − (frees + 1) / (allocations − frees + 2) ≥ 0.95, if the footprint grew by at least 1 %
//! (scalene_leak_analysis.py). Its sampler is in `replay`, with a tenth of its threshold: 1 MiB.

use std::collections::BTreeMap;

use memctl_model::{Frame, SiteTable};

use super::super::replay::Settled;
use super::{Detector, RunFacts, Verdict, line};

/// `1 - leak_reporting_threshold`.
const LIKELY: f64 = 0.95;
/// `growth_rate_threshold`.
const GROWTH: f64 = 0.01;

#[derive(Default)]
struct Rank {
    /// Lines by stack id − 1.
    lines: Vec<Option<Frame>>,
    scores: BTreeMap<Frame, (u64, u64)>,
    first_bytes: Option<u64>,
    last_bytes: u64,
}

/// See the module.
#[derive(Default)]
pub struct Scalene(Vec<Rank>);

impl Detector for Scalene {
    fn name(&self) -> &'static str {
        "Scalene's rule"
    }

    fn names_sites(&self) -> bool {
        true
    }

    fn begin(&mut self, given: &RunFacts<'_>) {
        let lines = |stacks: &Vec<&[Frame]>| stacks.iter().map(|stack| line(stack).cloned()).collect();
        self.0 = given.stacks.iter().map(|stacks| Rank { lines: lines(stacks), ..Rank::default() }).collect();
    }

    fn table(&mut self, rank: usize, table: &SiteTable) {
        let rank = &mut self.0[rank];
        rank.last_bytes = table.counters.allocated_bytes;
        rank.first_bytes.get_or_insert(rank.last_bytes);
    }

    fn settled(&mut self, rank: usize, sample: &Settled) {
        let rank = &mut self.0[rank];
        let line = (sample.stack.0 as usize).checked_sub(1).and_then(|place| rank.lines.get(place)?.clone());
        if let Some(line) = line {
            let (allocations, frees) = rank.scores.entry(line).or_default();
            *allocations += 1;
            *frees += u64::from(sample.freed);
        }
    }

    fn verdicts(&mut self) -> Vec<Verdict> {
        let mut found: BTreeMap<&Frame, (f64, Vec<u32>)> = BTreeMap::new();
        for (number, rank) in (0..).zip(&self.0) {
            let first = rank.first_bytes.unwrap_or(0) as f64;
            if (rank.last_bytes as f64) < first * (1.0 + GROWTH) {
                continue;
            }
            for (line, &(allocations, frees)) in &rank.scores {
                let likelihood = 1.0 - (frees + 1) as f64 / (allocations - frees + 2) as f64;
                if likelihood >= LIKELY {
                    let (best, ranks) = found.entry(line).or_default();
                    *best = best.max(likelihood);
                    ranks.push(number);
                }
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
        found.into_iter().map(|(line, (_, ranks))| Verdict::alarm(ranks, vec![line.clone()])).collect()
    }
}
