//! Chromium's ranking: at each dump the sites are ranked by how many blocks they gained; those before the first drop by
//! half are suspected, and four suspicions in a row are a report (components/metrics/leak_detector/leak_analyzer.cc).
//!
//! A dump is an epoch's end here, or one of twenty sample points if epochs are not marked. The ranking's size (16) and
//! the threshold (4) are Chromium's.

use std::collections::{BTreeMap, BTreeSet};

use memctl_model::{Frame, SiteTable};

use super::{Detector, Looks, RunFacts, Verdict, line};

const RANKED_MAX: usize = 16;
const SUSPICIONS: u32 = 4;

#[derive(Default)]
struct Rank {
    looks: Looks,
    stacks: Vec<Option<Frame>>,
    before: BTreeMap<u32, u64>,
    scores: BTreeMap<u32, u32>,
}

impl Rank {
    fn dump(&mut self, table: &SiteTable) {
        let mut now: BTreeMap<u32, u64> = BTreeMap::new();
        table.rows.iter().for_each(|row| *now.entry(row.stack.0).or_default() += row.blocks);
        let gain = |(&stack, &blocks): (&u32, &u64)| {
            let before = self.before.get(&stack).copied().unwrap_or(0);
            (stack, i64::try_from(blocks).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX))
        };
        let mut gains: Vec<(u32, i64)> = now.iter().map(gain).collect();
        gains.sort_by_key(|&(stack, gain)| (-gain, stack));
        gains.truncate(RANKED_MAX);
        let suspects = suspects(&gains);
        self.scores.retain(|stack, _| suspects.contains(stack));
        for stack in suspects {
            *self.scores.entry(stack).or_default() += 1;
        }
        self.before = now;
    }
}

/// The sites before the first drop by half; empty if no site gained blocks or no drop exists.
fn suspects(gains: &[(u32, i64)]) -> BTreeSet<u32> {
    if gains.first().is_none_or(|&(_, gain)| gain <= 0) {
        return BTreeSet::new();
    }
    let drop = gains.windows(2).position(|pair| pair[0].1 > pair[1].1 * 2);
    drop.map_or_else(BTreeSet::new, |drop| gains[..=drop].iter().map(|&(stack, _)| stack).collect())
}

/// See the module.
#[derive(Default)]
pub struct Chromium(Vec<Rank>);

impl Detector for Chromium {
    fn name(&self) -> &'static str {
        "Chromium's ranking"
    }

    fn names_sites(&self) -> bool {
        true
    }

    fn begin(&mut self, given: &RunFacts<'_>) {
        let lines = |stacks: &Vec<&[Frame]>| stacks.iter().map(|stack| line(stack).cloned()).collect();
        let looks = Looks::new(given);
        let rank = |stacks| Rank { looks, stacks: lines(stacks), ..Rank::default() };
        self.0 = given.stacks.iter().map(rank).collect();
    }

    fn table(&mut self, rank: usize, table: &SiteTable) {
        if self.0[rank].looks.at(table) {
            self.0[rank].dump(table);
        }
    }

    fn verdicts(&mut self) -> Vec<Verdict> {
        let mut found: BTreeMap<&Frame, (u32, Vec<u32>)> = BTreeMap::new();
        for (number, rank) in (0..).zip(&self.0) {
            for (&stack, &score) in rank.scores.iter().filter(|&(_, &score)| score >= SUSPICIONS) {
                let line = (stack as usize).checked_sub(1).and_then(|place| rank.stacks.get(place)?.as_ref());
                if let Some(line) = line {
                    let (best, ranks) = found.entry(line).or_default();
                    *best = score.max(*best);
                    ranks.push(number);
                }
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by_key(|(_, (score, _))| std::cmp::Reverse(*score));
        found.into_iter().map(|(line, (_, ranks))| Verdict::alarm(ranks, vec![line.clone()])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_out_is_suspected() {
        assert_eq!(suspects(&[(1, 10), (2, 9), (3, 2)]), BTreeSet::from([1, 2]));
        assert!(suspects(&[(1, 4), (2, 3), (3, 2)]).is_empty());
        assert!(suspects(&[(1, 0), (2, -5)]).is_empty());
        assert_eq!(suspects(&[(1, 1), (2, 0)]), BTreeSet::from([1]));
    }
}
