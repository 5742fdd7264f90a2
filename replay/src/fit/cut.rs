//! Calls whose backward pass a failed request cut short. The frees that would show what they keep are missing.
//!
//! Such a call is followed by a failed request before its backward pass has ended. The blocks that it made and still
//! holds at that request are those that it keeps for the backward pass. With checkpointing, they would have been
//! freed. A second forward comes before the failed request only if the backward pass has reached the call.
//!
//! Guarantees: calls with a complete backward pass are unchanged. Requests that the training would have made after the
//! failed request are not invented.

use std::ops::Range;

use super::checkpoint::Pass;
use super::script::{Act, Life, NOT_SERVED, Script};

/// Maximum size of a loss. Programs hold the loss until the backward pass is over.
const LOSS_BYTES: u64 = 512;

/// A request that failed when it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The request.
    pub request: usize,
    /// Its bytes.
    pub bytes: u64,
    /// The step that requests it.
    pub(super) born: u32,
}

impl Script {
    /// The requests that failed in the recording, in order. A replay treats them as if they had been served and freed
    /// at once.
    #[must_use]
    pub fn failed(&self) -> Vec<Failed> {
        let asks = (0..).zip(&self.acts).filter(|(_, act)| matches!(act, Act::Alloc { .. })).enumerate();
        let failed = asks.filter(|(_, (_, act))| matches!(act, Act::Alloc { block: NOT_SERVED, .. }));
        failed.map(|(request, (born, _))| Failed { request, bytes: self.bytes(request), born }).collect()
    }
}

/// The place where a call's backward pass was cut short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// The step of the failed request.
    pub(super) at: u32,
    /// Whether the backward pass had reached the call by then.
    pub(super) is_reached: bool,
}

impl Cut {
    /// The place where the backward pass of a call was cut short. `backward` are the recorded steps of that pass.
    pub(super) fn of(
        call: &Range<usize>,
        backward: &Range<u32>,
        (script, failed): (&Script, &[Failed]),
        lives: &[Life],
        passes: &[Pass],
    ) -> Option<Self> {
        let next = failed.partition_point(|failed| failed.request < call.start);
        let failed = failed.get(next).filter(|failed| failed.born < backward.end)?;
        // The backward pass frees the blocks of later calls before it reaches this call.
        let mut behind = call.end..failed.request;
        let waits = |request: usize| {
            passes[request] == Pass::Forward
                && lives[request].outlasts(failed.born)
                && script.bytes(request) > LOSS_BYTES
        };
        let is_backward = passes[failed.request] == Pass::Backward;
        Some(Self { at: failed.born, is_reached: is_backward && !behind.any(waits) })
    }

    /// Whether a block is live when the request fails.
    pub(super) fn holds(self, life: Life) -> bool {
        life.outlasts(self.at)
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::PoolId;

    use super::*;
    use crate::allocator::Limit;
    use crate::fit::CheckpointFacts;
    use crate::fit::made::{MIB, alloc, free};
    use crate::request::{Request, Requested};
    use crate::settings::{Conf, Version};

    fn fails(script: &mut Script, mib: u64) {
        let requested = Requested { bytes: mib * MIB, stream: 0, pool: PoolId::DEFAULT };
        script.push(&Request::Failed { requested }, 0).expect("few");
    }

    /// Three modules that keep 64 MiB each, in two blocks, and return 8 MiB. The requests of each module are a call.
    fn forward() -> (Script, Vec<Range<usize>>) {
        let mut script = Script::new(&[]);
        for call in 0..3 {
            alloc(&mut script, 10 * call + 1, 32);
            alloc(&mut script, 10 * call + 2, 32);
            alloc(&mut script, 10 * call + 3, 8);
        }
        (script, (0..3).map(|call| 3 * call..3 * call + 3).collect())
    }

    /// Number of calls, the peak in MiB and the repeated MiB with checkpointing.
    fn checkpointed(script: &Script, calls: &[Range<usize>], forward: usize) -> (usize, u64, u64) {
        let pass = |request: usize| if request < forward { Pass::Forward } else { Pass::Backward };
        let lines = |_| &[] as &[u64];
        let once = |request: usize| script.bytes(request) == 16 * MIB;
        let known = CheckpointFacts { pass, lingers: |_| false, saves_itself: |_| false, once, lines };
        let edited = script.checkpointed(calls, known);
        let conf = Conf::parse("", Version::of(2, 11)).expect("default settings").0;
        let peak = edited.script.outcome(&conf, Limit::None).counts.peak_requested_bytes / MIB;
        (edited.calls, peak, edited.repeated_bytes / MIB)
    }

    #[test]
    fn a_forward_pass_that_fails_gives_back_what_its_calls_keep() {
        let (mut script, calls) = forward();
        fails(&mut script, 100);
        assert_eq!(script.failed().iter().map(|it| (it.request, it.bytes / MIB)).collect::<Vec<_>>(), [(9, 100)]);
        // The peak consists of three results and the failed request. It is the same whether unwinding frees the rest
        // or nothing does.
        assert_eq!(checkpointed(&script, &calls, 10), (3, 3 * 8 + 100, 3 * 64));
        for block in [1, 2, 3, 11, 12, 13, 21, 22, 23] {
            free(&mut script, block);
        }
        assert_eq!(checkpointed(&script, &calls, 10), (3, 3 * 8 + 100, 3 * 64));
    }

    #[test]
    fn a_call_that_fails_itself_holds_what_its_last_request_was_made_of() {
        let (mut script, mut calls) = forward();
        alloc(&mut script, 31, 40);
        alloc(&mut script, 32, 4);
        fails(&mut script, 100);
        calls.push(9..12);
        let (_, peak, _) = checkpointed(&script, &calls, 12);
        assert_eq!(peak, 3 * 8 + 4 + 100, "the first block was handed on to the second");
    }

    #[test]
    fn a_backward_pass_that_fails_comes_as_far_as_it_came() {
        // It fails before it has reached any call, so no call is repeated.
        let (mut script, calls) = forward();
        alloc(&mut script, 40, 50);
        alloc(&mut script, 41, 50);
        fails(&mut script, 100);
        assert_eq!(checkpointed(&script, &calls, 10), (3, 3 * 8 + 200, 3 * 64));
        // It fails after all of the third call, which was repeated; then the second call is repeated.
        let (mut script, calls) = forward();
        alloc(&mut script, 41, 8);
        [21, 22, 23].iter().for_each(|&block| free(&mut script, block));
        fails(&mut script, 100);
        assert_eq!(checkpointed(&script, &calls, 9), (3, 2 * 8 + 8 + 64 + 100, 3 * 64));
        // It fails within the second call.
        let (mut script, calls) = forward();
        alloc(&mut script, 41, 8);
        [21, 22, 23, 12].iter().for_each(|&block| free(&mut script, block));
        fails(&mut script, 100);
        free(&mut script, 11);
        let (calls, peak, _) = checkpointed(&script, &calls, 9);
        assert!(calls == 3 && peak >= 2 * 8 + 8 + 32 + 100, "{calls} {peak}");
    }

    #[test]
    fn what_is_made_once_stays_and_whole_steps_are_as_before() {
        let (mut script, _) = forward();
        alloc(&mut script, 31, 16);
        alloc(&mut script, 32, 64);
        alloc(&mut script, 33, 8);
        fails(&mut script, 100);
        let calls = std::iter::once(9..12).collect::<Vec<_>>();
        assert_eq!(checkpointed(&script, &calls, 13).1, 3 * 72 + 16 + 8 + 100);
        // The step is complete, and a request in the optimizer after it fails: nothing is cut short.
        let (mut script, calls) = forward();
        alloc(&mut script, 41, 8);
        (0..3).rev().for_each(|call| (1..4).for_each(|block| free(&mut script, 10 * call + block)));
        let whole = checkpointed(&script, &calls, 9);
        alloc(&mut script, 51, 4);
        fails(&mut script, 1);
        let pass = |request: usize| match request {
            0..9 => Pass::Forward,
            9 => Pass::Backward,
            _ => Pass::Other,
        };
        let lines = |_| &[] as &[u64];
        let known = CheckpointFacts { pass, lingers: |_| false, saves_itself: |_| false, once: |_| false, lines };
        let edited = script.checkpointed(&calls, known);
        assert_eq!((edited.calls, edited.repeated_bytes / MIB), (whole.0, whole.2));
    }
}
