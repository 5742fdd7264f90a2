//! Finds requests that are buffers of split sums (reductions whose rows several blocks of threads share, see `split`),
//! and sums that become split at another number (the size that changes, such as the batch).
//!
//! A buffer is recognised by its context: its semaphores follow at once, and both are freed before the next request.
//! The sum's result is the request before it, and the sum's input is live meanwhile.
//!
//! Guarantees: the result does not depend on how often a sum recurs. For each request at most [`SIZES_MAX`] sizes are
//! examined and [`MULTIPLES_MAX`] of them are kept, and at most [`SUMS_MAX`] different sums. The device is not known: the
//! common device that explains most buffers is assumed.
//!
//! (Over 400 lines: the buffers and the sums of one recording explain each other.)

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use super::law::Law;
use super::script::{Act, Life, Script};
use super::split::{DEVICES, ELEMENT_BYTES, Split};

/// Minimum columns of an unsplit sum that is examined. With fewer columns its buffer is small.
const COLUMNS_MIN: u64 = 4096;
/// Minimum bytes of the input of such a sum.
const GROWN_MIN: u64 = 1 << 14;
/// Minimum inputs of a layer whose bias may have such a sum as its gradient.
const INPUTS_MIN: u64 = 8;
/// Maximum number of sizes of live blocks examined as a sum's input, newest first. Real trainings have about ten.
const SIZES_MAX: usize = 256;
/// Maximum sizes that are kept for a sum. In real trainings the first or the second is the right one.
const MULTIPLES_MAX: usize = 8;
/// Maximum number of different sums examined in a recording. The buffers of later ones keep the
/// laws that they have without this module.
const SUMS_MAX: usize = 4096;
/// Bytes per column of a sum's result: 4, or 2 in half precision. Truth values (1) have other partial sums.
const RESULT_BYTES: [u64; 2] = [4, 2];

/// For each request that is the buffer of a split sum: the number of its blocks of columns.
fn buffers(script: &Script) -> HashMap<usize, u64> {
    let mut buffers = HashMap::new();
    let mut request = 0;
    for (at, act) in script.acts.iter().enumerate() {
        let Act::Alloc { block: buffer, .. } = *act else { continue };
        request += 1;
        let Some(&Act::Alloc { block: semaphores, .. }) = script.acts.get(at + 1) else { continue };
        let behind = script.acts[at + 2..].iter().take_while(|act| !matches!(act, Act::Alloc { .. }));
        let gone = behind.filter(|act| matches!(**act, Act::FreeRequested(it) if it == buffer || it == semaphores));
        let (bytes, semaphores) = (script.bytes(request - 1), script.bytes(request));
        if gone.count() == 2 && semaphores >= 4 && semaphores.is_multiple_of(4) && bytes > semaphores {
            buffers.insert(request - 1, semaphores / 4);
        }
    }
    buffers
}

/// A split sum of the larger recording.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SplitSum {
    /// Blocks of columns.
    blocks: u64,
    /// Bytes of the buffer.
    bytes: u64,
    /// Bytes of the buffer in the smaller recording, if it is in both; 0 if the sum is not split there.
    before: u64,
    /// Bytes of the sum's result.
    sum: u64,
    /// Bytes of live blocks that may be the input; their ratios to the result are the possible numbers of rows.
    multiples: Vec<u64>,
}

impl SplitSum {
    /// The possible rules of the sum at a number on a device, one for each multiple and each possible
    /// size of an element.
    fn by_rows(&self, number: f64, device: u64) -> impl Iterator<Item = Split> {
        let sizes = RESULT_BYTES.into_iter().filter(|&size| self.sum.is_multiple_of(size));
        let rows = self.multiples.iter().filter_map(|all| all.checked_div(self.sum));
        let of = rows.flat_map(move |rows| sizes.clone().map(move |size| (self.sum / size, rows)));
        of.filter_map(move |(columns, rows)| Split::of_columns(columns, rows as f64 / number, device))
    }

    fn split(&self, (few, many): (f64, f64), device: u64) -> Option<Split> {
        let is_it = |split: &Split| split.bytes(few) == self.before && split.bytes(many) == self.bytes;
        let from_bytes = || Split::of_bytes(self.blocks, (few, self.before), (many, self.bytes), device);
        self.by_rows(many, device).find(is_it).or_else(from_bytes)
    }

    fn split_alone(&self, number: f64, device: u64) -> Option<Split> {
        self.by_rows(number, device).find(|split| split.bytes(number) == self.bytes)
    }
}

/// The sums of a recording.
#[derive(Default)]
struct Sums {
    /// Split sums, with the requests for their buffers.
    seen: HashMap<SplitSum, Vec<usize>>,
    /// Sums that are not split: the request, its columns and its rows.
    whole: Vec<(usize, u64, u64)>,
}

impl Sums {
    /// Replaces laws by those of split sums, and returns the sums that become split at another number. `split` returns
    /// the rule of a sum on a device.
    fn settle<F>(self, number: f64, split: F, laws: &mut [Law]) -> HashMap<usize, Split>
    where
        F: Fn(&SplitSum, u64) -> Option<Split>,
    {
        let explained = |device: u64| -> usize {
            let sums = self.seen.iter().filter(|(sum, _)| split(sum, device).is_some());
            sums.map(|(_, requests)| requests.len()).sum()
        };
        // If several devices explain equally many buffers, the first is taken.
        let device = DEVICES.into_iter().rev().max_by_key(|&device| explained(device)).unwrap_or(DEVICES[0]);
        for (sum, requests) in &self.seen {
            let Some(split) = split(sum, device) else { continue };
            requests.iter().for_each(|&request| laws[request] = Law::Split(split));
        }
        let later = |(request, columns, rows): (usize, u64, u64)| {
            Some((request, Split::of_columns(columns, rows as f64 / number, device)?))
        };
        self.whole.into_iter().filter_map(later).filter(|(_, split)| split.bytes(number) == 0).collect()
    }
}

/// Replaces the laws derived from two numbers by those of split sums. `partners` are the smaller script's requests for
/// each of the larger's, both without the initial blocks. Returns the sums that become split at a number that neither
/// recording has. The keys are the requests of the larger script for the results of these sums.
pub(super) fn settle(
    (few, small): (f64, &Script),
    (many, large): (f64, &Script),
    partners: &[Option<u32>],
    laws: &mut [Law],
) -> HashMap<usize, Split> {
    let partner = |request: usize| {
        let at = *partners.get(request.checked_sub(large.initial_count)?)?;
        Some(small.initial_count + at? as usize)
    };
    let smaller = buffers(small);
    let before = |request: usize, blocks: u64| match partner(request) {
        Some(other) if smaller.get(&other) != Some(&blocks) || small.bytes(other) == large.bytes(request) => None,
        Some(other) => Some(small.bytes(other)),
        None => Some(0),
    };
    sums(large, before, laws).settle(many, |sum, device| sum.split((few, many), device), laws)
}

/// The same from one recording: live blocks show the rows that are summed.
pub(super) fn settle_alone(number: f64, script: &Script, laws: &mut [Law]) -> HashMap<usize, Split> {
    sums(script, |_, _| Some(0), laws).settle(number, |sum, device| sum.split_alone(number, device), laws)
}

/// The sums of the larger recording. A split sum has its possible inputs. An unsplit sum is the gradient of the bias
/// of a layer with many columns; its input is its newest live multiple, the gradient of the layer's output. `before`
/// returns a buffer's bytes in the smaller recording; `None` if the buffer follows another law.
fn sums(script: &Script, before: impl Fn(usize, u64) -> Option<u64>, laws: &[Law]) -> Sums {
    let (lives, buffers) = (script.lives(), buffers(script));
    let biases = biases(script, &lives);
    let (mut sums, mut grown) = (Sums::default(), Grown::default());
    for (request, life) in lives.iter().enumerate().skip(script.initial_count) {
        let bytes = script.bytes(request);
        grown.pass(life.born);
        if let Some(&blocks) = buffers.get(&request) {
            let Some(before) = before(request, blocks) else { continue };
            let sum = request.checked_sub(1).map_or(0, |before| script.bytes(before));
            let multiples = grown.multiples(sum).take(MULTIPLES_MAX).collect();
            let seen = SplitSum { blocks, bytes, before, sum, multiples };
            if sums.seen.len() < SUMS_MAX || sums.seen.contains_key(&seen) {
                sums.seen.entry(seen).or_default().push(request);
            }
        } else if laws.get(request).is_some_and(Law::is_proportional) && bytes >= GROWN_MIN {
            grown.born(request, bytes, life.ended);
        } else if biases.contains(&bytes) && !buffers.contains_key(&(request + 1)) {
            let summed = grown.multiples(bytes).find(|all| *all > bytes);
            sums.whole.extend(summed.map(|all| (request, bytes / ELEMENT_BYTES, all / bytes)));
        }
    }
    sums
}

/// The live blocks that grow in proportion to the number; for each size only the newest matters.
#[derive(Default)]
struct Grown {
    /// For each size: the newest live request, with its bytes.
    newest: BTreeMap<usize, u64>,
    /// For each size in bytes: the newest request last, and before it those that become the newest after the newer
    /// ones are freed. Each has the step that frees it.
    same: HashMap<u64, Vec<(usize, u32)>>,
    /// The steps that free live blocks, with the blocks' sizes; the earliest is on top.
    ends: BinaryHeap<Reverse<(u32, u64)>>,
}

impl Grown {
    /// Adds a request, its bytes and the step that frees it.
    fn born(&mut self, request: usize, bytes: u64, ended: u32) {
        let same = self.same.entry(bytes).or_default();
        if let Some((older, _)) = same.last() {
            self.newest.remove(older);
        }
        // An older request that is freed before this one never becomes the newest again.
        while same.pop_if(|(_, goes)| *goes <= ended).is_some() {}
        same.push((request, ended));
        self.newest.insert(request, bytes);
        if ended != u32::MAX {
            self.ends.push(Reverse((ended, bytes)));
        }
    }

    /// Removes requests that are freed up to a step.
    fn pass(&mut self, step: u32) {
        while let Some(&Reverse((ended, bytes))) = self.ends.peek()
            && ended <= step
        {
            self.ends.pop();
            let Some(same) = self.same.get_mut(&bytes) else { continue };
            while let Some((gone, _)) = same.pop_if(|(_, goes)| *goes <= step) {
                self.newest.remove(&gone);
            }
            match same.last() {
                Some(&(older, _)) => _ = self.newest.insert(older, bytes),
                None => _ = self.same.remove(&bytes),
            }
        }
    }

    /// The multiples of a number of bytes among the newest sizes, newest first. There are none for 0.
    fn multiples(&self, of: u64) -> impl Iterator<Item = u64> {
        self.newest.values().rev().take(SIZES_MAX).copied().filter(move |all| of > 0 && all.is_multiple_of(of))
    }
}

/// Bytes of possible biases of layers with many columns. A bias is never freed. Neither is the layer's weight, which
/// is requested directly before it and has many rows for each column.
fn biases(script: &Script, lives: &[Life]) -> HashSet<u64> {
    let forever = lives.iter().enumerate().filter(|(_, life)| life.ended == u32::MAX);
    let bytes: Vec<u64> = forever.map(|(request, _)| script.bytes(request)).collect();
    let is_bias = |weight: u64, bias: u64| {
        bias >= ELEMENT_BYTES * COLUMNS_MIN && weight.is_multiple_of(bias) && weight / bias >= INPUTS_MIN
    };
    bytes.windows(2).filter(|pair| is_bias(pair[0], pair[1])).map(|pair| pair[1]).collect()
}

#[cfg(test)]
mod tests {
    use memctl_model::PoolId;

    use super::*;
    use crate::allocator::Limit;
    use crate::fit::{Aligned, Bound, Fit, Scale};
    use crate::request::{Request, Requested};
    use crate::settings::{Conf, Version};

    fn conf() -> Conf {
        Conf::parse("", Version::of(2, 11)).expect("default settings").0
    }

    fn third_grows(request: usize) -> Scale {
        if request == 2 { Scale::Proportional } else { Scale::Fixed }
    }

    fn ask(script: &mut Script, block: u32, bytes: u64) {
        let requested = Requested { bytes, stream: 0, pool: PoolId::DEFAULT };
        script.push(&Request::Alloc { block, requested, hints: &[] }, u64::from(block)).expect("few");
    }

    /// Requests these bytes as blocks 1 to 4.
    fn asking(bytes: [u64; 4]) -> Script {
        let mut script = Script::new(&[]);
        (1..).zip(bytes).for_each(|(block, bytes)| ask(&mut script, block, bytes));
        script
    }

    fn give_back(script: &mut Script, blocks: &[u32]) {
        for &block in blocks {
            script.push(&Request::FreeRequested { block }, 0).expect("few");
            script.push(&Request::FreeCompleted { block }, 0).expect("few");
        }
    }

    /// A layer of 10,000 columns at a batch: its weight, its bias, and the gradients of its output and of its bias.
    fn head(batch: u64) -> Script {
        let (weight, bias, rows) = (10_000 * 512 * 4, 10_000 * 4, 64 * batch);
        let buffer = Split::of_columns(10_000, 64.0, DEVICES[0]).expect("it has columns").bytes(batch as f64);
        let mut script = asking([weight, bias, rows * 10_000 * 4, bias]);
        if buffer > 0 {
            ask(&mut script, 5, buffer);
            ask(&mut script, 6, 79 * 4);
            give_back(&mut script, &[6, 5]);
        }
        give_back(&mut script, &[3]);
        script
    }

    #[test]
    fn a_sum_that_is_not_split_yet_is_foreseen() {
        let truth = |batch: u64| head(batch).outcome(&conf(), Limit::None).counts.peak_reserved_bytes;
        let reserved = |fit: &Fit, batch: u64| fit.at(batch as f64, None).likely.counts.peak_reserved_bytes;
        let fit = Fit::new((4.0, head(4)), (8.0, head(8)), conf()).expect("of one training");
        for batch in [4, 8, 16, 32, 64] {
            assert_eq!(reserved(&fit, batch), truth(batch), "at {batch}");
        }
        let alone = Fit::alone((16.0, head(16)), third_grows, conf()).expect("it has a number");
        assert_eq!(reserved(&alone, 64), truth(64));
    }

    #[test]
    fn a_buffer_that_only_the_larger_recording_has_is_counted_as_such() {
        let fit = Fit::new((4.0, head(4)), (16.0, head(16)), conf()).expect("of one training");
        assert_eq!(fit.laws.iter().filter(|law| matches!(law, Law::Split(_))).count(), 1, "{:?}", fit.laws);
        let Aligned { constant, linear, other, unmatched, unmatched_bytes, .. } = *fit.aligned();
        assert_eq!((constant, linear, other, unmatched, unmatched_bytes), (3, 1, 0, 2, 81_920_000 + 79 * 4));
    }

    /// A sum: its input, its result, its buffer and its semaphores.
    fn summed(all: u64, result: u64, buffer: u64, semaphores: u64) -> Script {
        let mut script = asking([all, result, buffer, semaphores]);
        give_back(&mut script, &[4, 3, 1]);
        script
    }

    /// `torch.isnan(x).any()` has a result of one byte, a sum of bfloat16 values one of two; hostile recordings any.
    #[test]
    fn results_of_few_bytes_and_of_impossibly_many_are_no_columns() {
        let huge = 1 << 50;
        let whole = u64::MAX - u64::MAX % huge;
        let few = (0..8).map(|result| (result, 840 << 10, 4));
        let many = [(huge, huge << 10, 4), (huge, whole, 1 << 60), (whole, whole, u64::MAX - 3), (1, whole, 1 << 40)];
        for (result, all, semaphores) in few.chain(many) {
            for buffer in [1 << 13, huge, u64::MAX] {
                let of = |part: u64| summed(all / part, result, buffer / part, semaphores);
                let fit = Fit::new((4.0, of(2)), (8.0, of(1)), conf()).expect("of one training");
                let alone = Fit::alone((8.0, of(1)), |_| Scale::Proportional, conf()).expect("it has a number");
                for fit in [fit, alone] {
                    assert_eq!(fit.laws[2].bytes(8.0, Bound::Likely), buffer.min(1 << 62), "{result}");
                    let _ = fit.at(16.0, None);
                }
            }
        }
        // A bias of this many bytes is not summed.
        let mut script = asking([huge << 3, huge, huge << 4, huge]);
        give_back(&mut script, &[3]);
        let _ = Fit::alone((8.0, script), third_grows, conf()).expect("it has a number").at(1e30, None);
    }

    /// A training that never frees its sums' inputs (of `sizes` alternating sizes) and results; each has a buffer.
    fn leaks(sums: u32, sizes: u64, buffer: impl Fn(u64) -> u64) -> Script {
        let mut script = Script::new(&[]);
        for at in 0..sums {
            let block = at * 4 + 1;
            ask(&mut script, block, 4096 * 1160 * (1 + u64::from(at) % sizes));
            ask(&mut script, block + 1, 4096);
            ask(&mut script, block + 2, buffer(u64::from(at)));
            ask(&mut script, block + 3, 32);
            give_back(&mut script, &[block + 3, block + 2]);
        }
        script
    }

    #[test]
    fn leaked_blocks_are_not_scanned_for_each_buffer() {
        let scale = |at: usize| [Scale::Proportional, Scale::Fixed, Scale::Fixed, Scale::Fixed][at % 4];
        let sums_of = |script: &Script| {
            let laws = (0..script.requests()).map(|at| Law::scaled(scale(at), 8.0, script.bytes(at)));
            sums(script, |_, _| Some(0), &laws.collect::<Vec<_>>())
        };
        let many = 20_000;
        // The same sums recur: each is listed once, with all its requests.
        let few = sums_of(&leaks(many, 12, |at| (at % 3 + 1) << 20));
        assert_eq!(few.seen.values().map(Vec::len).sum::<usize>(), many as usize);
        assert!(few.seen.len() < 36, "{}", few.seen.len());
        let distinct = |sum: &SplitSum| sum.multiples.iter().collect::<HashSet<_>>().len();
        assert!(few.seen.keys().all(|sum| distinct(sum) == sum.multiples.len() && distinct(sum) <= MULTIPLES_MAX));
        // All sums are different, and each has an input of its own size.
        let different = sums_of(&leaks(many, u64::MAX, |at| (at + 1) << 20));
        assert_eq!(different.seen.len(), SUMS_MAX);
        assert_eq!(different.seen.keys().map(|sum| sum.multiples.len()).max(), Some(MULTIPLES_MAX));
        // The rule that explains the buffers is still found.
        let script = leaks(many, 1, |_| 9_961_472);
        let fit = Fit::alone((8.0, script), scale, conf()).expect("it has a number");
        let split = fit.laws.iter().filter(|law| matches!(law, Law::Split(split) if split.bytes(16.0) == 19_398_656));
        assert_eq!(split.count(), many as usize);
    }

    #[test]
    fn of_each_size_the_newest_that_lives_is_known() {
        let mut grown = Grown::default();
        // 512 bytes: one block stays, two are freed at steps 30 and 20. 1024 bytes: one is freed at step 25.
        for (request, bytes, ended) in [(0, 512, u32::MAX), (1, 1024, 25), (2, 512, 30), (3, 512, 20)] {
            grown.born(request, bytes, ended);
        }
        let mut at = |step: u32| {
            grown.pass(step);
            (grown.multiples(512).collect::<Vec<_>>(), grown.newest.keys().copied().collect::<Vec<_>>())
        };
        assert_eq!(at(19), (vec![512, 1024], vec![1, 3]));
        assert_eq!(at(20), (vec![512, 1024], vec![1, 2]));
        assert_eq!(at(26), (vec![512], vec![2]));
        assert_eq!(at(31), (vec![512], vec![0]));
        assert_eq!(grown.multiples(0).count(), 0);
        // Even if many blocks are never freed, only one of each size is kept.
        for request in 4..10_000 {
            grown.born(request, 512 << (request % 2), u32::MAX);
        }
        assert_eq!((grown.newest.len(), grown.same.values().map(Vec::len).sum::<usize>()), (2, 2));
        assert!(grown.ends.is_empty());
    }
}
