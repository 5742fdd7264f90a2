//! A script without some of its requests: the peak if certain blocks did not exist.
//!
//! Guarantees: the remaining requests keep their order, bytes and lifetimes. Removing requests that do not exist
//! changes nothing. It is not known what a program would do instead: memory that is moved to the host may be needed on
//! the device for a moment.

use std::collections::HashSet;
use std::sync::Arc;

use super::script::{Act, Script};

impl Script {
    /// The same script without the requests for which `gone` is true, and without their frees.
    #[must_use]
    pub fn without(&self, gone: impl Fn(usize) -> bool) -> Self {
        let mut kept = Self { hints: Arc::clone(&self.hints), ..Self::default() };
        let (mut missing, mut next) = (HashSet::new(), 0);
        for act in &self.acts {
            match *act {
                Act::Alloc { block, .. } => {
                    let (request, wanted) = (next, self.wanted[next]);
                    next += 1;
                    if gone(request) {
                        missing.insert(block);
                        continue;
                    }
                    // A block name is used again after its block was freed.
                    missing.remove(&block);
                    if request < self.initial_count {
                        kept.initial_count += 1;
                        kept.began_with_bytes = kept.began_with_bytes.saturating_add(wanted.bytes);
                    }
                    kept.wanted.push(wanted);
                }
                Act::FreeRequested(block) | Act::FreeCompleted(block) if missing.contains(&block) => continue,
                Act::FreeRequested(_) | Act::FreeCompleted(_) | Act::EmptyCache | Act::PoolReleased(_) => {}
            }
            kept.acts.push(*act);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::PoolId;
    use proptest::prelude::*;

    use crate::allocator::Limit;
    use crate::fit::Script;
    use crate::request::{Request, Requested};
    use crate::settings::{Conf, Version};

    fn conf() -> Conf {
        Conf::parse("", Version::of(2, 11)).expect("default settings").0
    }

    /// Requests by their bytes and by the number of requests after which they are freed; 0 means never.
    pub(crate) fn script(requests: &[(u64, usize)]) -> Script {
        let mut script = Script::new(&[]);
        for (at, &(bytes, _)) in requests.iter().enumerate() {
            let requested = Requested { bytes, stream: 0, pool: PoolId::DEFAULT };
            let alloc = Request::Alloc { block: at as u32 + 1, requested, hints: &[] };
            script.push(&alloc, at as u64).expect("few");
            for (before, &(_, after)) in requests[..=at].iter().enumerate() {
                if after > 0 && before + after == at {
                    let block = before as u32 + 1;
                    script.push(&Request::FreeRequested { block }, 0).expect("few");
                    script.push(&Request::FreeCompleted { block }, 0).expect("few");
                }
            }
        }
        script
    }

    proptest! {
        #[test]
        fn without_nothing_nothing_changes(requests in prop::collection::vec((0..40_000_000_u64, 0..9_usize), 0..60)) {
            let script = script(&requests);
            let same = script.without(|_| false);
            prop_assert_eq!(&same.acts, &script.acts);
            prop_assert_eq!(same.outcome(&conf(), Limit::None), script.outcome(&conf(), Limit::None));
        }

        #[test]
        fn what_is_gone_is_not_allocated(
            requests in prop::collection::vec((1..40_000_000_u64, 0..9_usize), 1..60), gone in any::<prop::sample::Index>()
        ) {
            let script = script(&requests);
            let gone = gone.index(requests.len());
            let rest = script.without(|request| request == gone);
            prop_assert_eq!(rest.requests(), requests.len() - 1);
            let peak = |script: &Script| script.outcome(&conf(), Limit::None).counts.peak_requested_bytes;
            let (before, after) = (peak(&script), peak(&rest));
            prop_assert!(after <= before && before <= after + requests[gone].0);
            prop_assert_eq!(script.without(|_| true).outcome(&conf(), Limit::None).counts.peak_reserved_bytes, 0);
        }

        #[test]
        fn the_peak_is_what_lives_then(requests in prop::collection::vec((1..40_000_000_u64, 0..9_usize), 1..60)) {
            let script = script(&requests);
            let peak = script.peak(&conf());
            let live: u64 = peak.live.iter().map(|&(_, bytes)| bytes).sum();
            prop_assert_eq!(live, peak.outcome.counts.peak_allocated_bytes);
        }
    }
}
