//! The call through which most of the growth comes.
//!
//! A leak that keeps a whole graph alive shows as many sites deep inside the model; what they share
//! is the function that keeps it. Judged by the stack that grew most at each site, so it is a hint, and it says its share.

use std::cmp::Reverse;
use std::collections::HashMap;

use memctl_model::HumanBytes;

use super::place;
use crate::answer::Frame;
use crate::answer::report::Growth;

/// Below this share of the growth a call explains too little to be named.
const SHARE_MIN: f64 = 0.75;

/// One sentence, when several sites grew and one call explains most of them.
#[must_use]
pub fn sentence(grown: &[&Growth]) -> Option<String> {
    if grown.len() < 2 {
        return None;
    }
    let rate = |site: &Growth| site.ranks.iter().map(|rank| rank.bytes_per_epoch).max().unwrap_or(0).max(0);
    let total = grown.iter().fold(0_i64, |sum, site| sum.saturating_add(rate(site)));
    // Rate, and the calls above it on the way from outside, of each call of the user's own code.
    let mut calls: HashMap<&Frame, (i64, usize)> = HashMap::new();
    for site in grown {
        let own: Vec<&Frame> = site.stack.iter().rev().filter(|frame| frame.is_user_code()).collect();
        for (depth, frame) in own.iter().enumerate() {
            if own[..depth].contains(frame) {
                // Recursion counts once.
                continue;
            }
            let call = calls.entry(frame).or_insert((0, depth));
            call.0 = call.0.saturating_add(rate(site));
            call.1 = call.1.min(depth);
        }
    }
    let enough = calls.into_iter().filter(|(_, (rate, _))| *rate as f64 >= SHARE_MIN * total as f64 && *rate > 0);
    let (frame, (rate, _)) = enough.max_by_key(|&(frame, (rate, depth))| (depth, rate, Reverse(&frame.function)))?;
    Some(format!("{} of {} an epoch come through {}", HumanBytes(rate), HumanBytes(total), place(frame)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::report::RankGrowth;

    fn growth(calls: &[&str], bytes_per_epoch: i64) -> Growth {
        let frame = |call: &&str| Frame { function: (*call).to_owned(), file: "/me/train.py".into(), line: Some(7) };
        let stack: Vec<Frame> = calls.iter().map(frame).collect();
        let rank = RankGrowth {
            rank: 0,
            process: "rank 0".to_owned(),
            device: 0,
            bytes_per_epoch,
            live_bytes: 0,
            live_blocks: 0,
            first_epoch: 0,
            series_bytes: Vec::new(),
        };
        Growth { site: stack.first().cloned(), stack, ranks: vec![rank] }
    }

    #[test]
    fn the_innermost_call_that_explains_most() {
        let sites = [
            growth(&["norm", "block", "validate", "main"], 20 << 20),
            growth(&["head", "validate", "main"], 16 << 20),
            growth(&["block", "block", "step", "main"], 4 << 20),
        ];
        let grown: Vec<&Growth> = sites.iter().collect();
        assert_eq!(sentence(&grown).unwrap(), "36.0 MiB of 40.0 MiB an epoch come through validate (train.py:7)");
        assert_eq!(sentence(&grown[..1]), None);
    }

    #[test]
    fn nothing_in_common_is_not_explained() {
        let sites = [growth(&["a"], 1 << 20), growth(&["b"], 1 << 20)];
        assert_eq!(sentence(&sites.iter().collect::<Vec<_>>()), None);
    }
}
