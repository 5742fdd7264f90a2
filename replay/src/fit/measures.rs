//! Holders that must be removed to get below a number of bytes, and the size of optimizer state in other forms.
//!
//! Guarantees: every figure is the result of a replay. Optimizer state is computed from the recorded bytes. The list
//! of removed holders is not necessarily the shortest: the largest holder at the peak is removed first, until it is
//! enough.

use std::collections::{HashMap, HashSet};

use super::script::Script;
use crate::allocator::Limit;
use crate::settings::Conf;
use crate::trial::Outcome;

/// One holder whose memory is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Going {
    /// The holder.
    pub holder: u32,
    /// Number of its blocks at the peak of the remaining memory.
    pub blocks: u64,
    /// Their bytes, as large as the blocks are without a change. A replay without other holders splits memory
    /// elsewhere.
    pub bytes: u64,
    /// The peak of reserved bytes without this holder and those before it.
    pub peak_reserved_bytes: u64,
}

/// Maximum number of holders that are removed: a longer list is not helpful.
const GOING_MAX: usize = 12;

/// The holders that must be removed so that the peak of reserved bytes is at most `limit`: the largest holder at the
/// peak, then the largest at the peak of the rest, and so on. `holder` returns a request's holder; requests without
/// one stay. `goes_on` is called before each replay and may end the search. Otherwise the last entry shows whether it
/// is enough.
#[must_use]
pub fn must_go(
    script: &Script,
    conf: &Conf,
    limit: u64,
    holder: impl Fn(usize) -> Option<u32>,
    goes_on: impl Fn() -> bool,
) -> Vec<Going> {
    let (mut gone, mut going) = (HashSet::new(), Vec::new());
    let mut rest = script.clone();
    let mut peak = rest.peak(conf);
    let sizes = script.sizes(conf);
    let unchanged: HashMap<usize, u64> =
        sizes.iter().enumerate().map(|(request, &bytes)| (script.origin(request), bytes)).collect();
    while peak.outcome.counts.peak_reserved_bytes > limit && going.len() < GOING_MAX && goes_on() {
        let mut held: HashMap<u32, (u64, u64)> = HashMap::new();
        for &(request, bytes) in &peak.live {
            if let Some(holder) = holder(rest.origin(request)) {
                let (blocks, sum) = held.entry(holder).or_default();
                let bytes = unchanged.get(&rest.origin(request)).copied().unwrap_or(bytes);
                (*blocks, *sum) = (*blocks + 1, sum.saturating_add(bytes));
            }
        }
        // If several are equally large, the first is taken, so that the same recording always gives the same list.
        let largest = held.into_iter().max_by_key(|&(holder, (_, bytes))| (bytes, std::cmp::Reverse(holder)));
        let Some((largest, (blocks, bytes))) = largest else { break };
        gone.insert(largest);
        rest = script.without(|request| holder(request).is_some_and(|holder| gone.contains(&holder)));
        peak = rest.peak(conf);
        let peak_reserved_bytes = peak.outcome.counts.peak_reserved_bytes;
        going.push(Going { holder: largest, blocks, bytes, peak_reserved_bytes });
    }
    going
}

/// Another form of optimizer state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One byte per element, with a scale of four bytes per [`QUANTIZED`] elements, as in bitsandbytes.
    EightBit,
    /// Split evenly between this many ranks, as in ZeRO's first stage.
    Sharded(u32),
}

/// The number of ranks to shard over in advice for a job of one rank.
pub const RANKS_ASSUMED: u32 = 2;
/// Number of elements that share a scale.
pub const QUANTIZED: u64 = 256;
/// Tensors with fewer elements are not quantized.
pub const QUANTIZED_MIN: u64 = 4096;
/// Bytes of an element in the recording.
const ELEMENT_BYTES: u64 = 4;

impl Form {
    /// The bytes of a tensor of optimizer state in this form.
    #[must_use]
    pub fn bytes(self, recorded: u64) -> u64 {
        let elements = recorded / ELEMENT_BYTES;
        match self {
            Self::EightBit if elements < QUANTIZED_MIN => recorded,
            Self::EightBit => elements + elements.div_ceil(QUANTIZED) * ELEMENT_BYTES,
            Self::Sharded(ranks) => recorded.div_ceil(u64::from(ranks.max(1))),
        }
    }
}

/// The replay with optimizer state in another form. `is_state` returns whether a request is for optimizer state.
#[must_use]
pub fn with_state(script: &Script, conf: &Conf, form: Form, is_state: impl Fn(usize) -> bool) -> Outcome {
    let bytes = |request: usize| match is_state(script.origin(request)) {
        true => form.bytes(script.bytes(request)),
        false => script.bytes(request),
    };
    script.outcome_with(conf, Limit::None, bytes, |_| None)
}

#[cfg(test)]
mod tests {
    use memctl_model::PoolId;

    use super::*;
    use crate::request::{Request, Requested};
    use crate::settings::Version;

    const MIB: u64 = 1 << 20;

    fn script(mib: &[u64]) -> (Script, Conf) {
        let mut script = Script::new(&[]);
        for (block, &mib) in (1..).zip(mib) {
            let requested = Requested { bytes: mib * MIB, stream: 0, pool: PoolId::DEFAULT };
            script.push(&Request::Alloc { block, requested, hints: &[] }, u64::from(block)).expect("few");
        }
        (script, Conf::parse("", Version::of(2, 11)).expect("default settings").0)
    }

    #[test]
    fn the_largest_go_until_it_is_enough() {
        let (script, conf) = script(&[100, 20, 300, 40]);
        let going = |limit: u64, stays: usize| {
            let holder = |request: usize| (request != stays).then_some(request as u32);
            must_go(&script, &conf, limit * MIB, holder, || true)
                .iter()
                .map(|it| (it.holder, it.bytes / MIB))
                .collect::<Vec<_>>()
        };
        assert_eq!(going(460, 9), []);
        assert_eq!(going(459, 9), [(2, 300)]);
        assert_eq!(going(100, 9), [(2, 300), (0, 100)]);
        assert_eq!(going(100, 2), [(0, 100), (3, 40), (1, 20)], "requests without a holder stay, and it is not enough");
    }

    #[test]
    fn optimizer_state_is_counted_from_its_recorded_bytes() {
        assert_eq!(Form::EightBit.bytes(4 * 4095), 4 * 4095, "small tensors stay");
        assert_eq!(Form::EightBit.bytes(4 << 20), (1 << 20) + (4 << 12));
        assert_eq!((Form::Sharded(4).bytes(1001), Form::Sharded(0).bytes(10)), (251, 10));
        let (script, conf) = script(&[64, 64]);
        let outcome = with_state(&script, &conf, Form::Sharded(2), |request| request == 1);
        assert_eq!(outcome.counts.peak_requested_bytes, 96 * MIB);
    }
}
