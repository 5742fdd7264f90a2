//! Which requests of a recording are buffers of split sums (`split`), and which sums become split at another number.
//!
//! A buffer is recognised by how it is requested: its semaphores follow at once, and both are freed before the next
//! request. The sum's result is the request before it; the sum's input lives meanwhile.
//!
//! Guarantees: the same however often a sum recurs; for each request of a recording at most [`SIZES_MAX`] sizes are
//! examined, of which [`MULTIPLES_MAX`] are kept, and at most [`SUMS_MAX`] different sums, even if blocks are never
//! freed. Does not know the device: of those in use it takes the one that explains most buffers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use super::law::Law;
use super::script::{Act, Life, Script};
use super::split::{DEVICES, ELEMENT_BYTES, Split};

/// Columns from which on a sum that is not split in a recording is looked for: of fewer the buffer is small.
const COLUMNS_MIN: u64 = 4096;
/// Bytes of what such a sum is of, at least.
const GROWN_MIN: u64 = 1 << 14;
/// Inputs of such a layer at least.
const INPUTS_MIN: u64 = 8;
/// Sizes of what lives that are looked at for what a sum is of, the newest first. (Real trainings have some ten at a time.)
const SIZES_MAX: usize = 256;
/// Those of them that are kept for a sum. (In real trainings the first or the second is it.)
const MULTIPLES_MAX: usize = 8;
/// Maximum number of different sums examined in a recording. Later ones keep the law that two numbers give.
const SUMS_MAX: usize = 4096;
/// Bytes of a column that a sum comes to: 4, or 2 of half precision. (Truth values have 1; their parts are of another size.)
const RESULT_BYTES: [u64; 2] = [4, 2];

/// Of each request that is the buffer of a split sum: over how many blocks of columns.
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

/// A sum with its buffer in the larger recording.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seen {
    /// Blocks of columns.
    blocks: u64,
    /// Bytes of the buffer.
    bytes: u64,
    /// Its bytes in the smaller recording, where it is in both; none where the sum is not split there.
    before: u64,
    /// Bytes of what the sum comes to.
    sum: u64,
    /// Bytes of what lives meanwhile and is a multiple of it: so many rows it may have.
    multiples: Vec<u64>,
}

impl Seen {
    /// What it may be at a number on a device, by each of the multiples.
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
    /// Those that are split, with the requests for their buffers.
    seen: HashMap<Seen, Vec<usize>>,
    /// Those that are not: the request, its columns and its rows.
    whole: Vec<(usize, u64, u64)>,
}

impl Sums {
    /// Replaces laws by those of split sums, and returns the sums that become split at another number. `split` returns
    /// what a sum is on a device.
    fn settle<F>(self, number: f64, split: F, laws: &mut [Law]) -> HashMap<usize, Split>
    where
        F: Fn(&Seen, u64) -> Option<Split>,
    {
        let explained = |device: u64| -> usize {
            let sums = self.seen.iter().filter(|(sum, _)| split(sum, device).is_some());
            sums.map(|(_, requests)| requests.len()).sum()
        };
        // (Of equally good ones the first.)
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

/// Replaces the laws that two numbers alone would give by those of split sums. `partners` has the request of the
/// smaller script for each of the larger's, counted from what was not found. Returns the sums that become split at a
/// number that neither recording has: after which request of the larger one.
pub(super) fn settle(
    (few, small): (f64, &Script),
    (many, large): (f64, &Script),
    partners: &[Option<u32>],
    laws: &mut [Law],
) -> HashMap<usize, Split> {
    let partner = |request: usize| {
        let at = *partners.get(request.checked_sub(large.found)?)?;
        Some(small.found + at? as usize)
    };
    let smaller = buffers(small);
    let before = |request: usize, blocks: u64| match partner(request) {
        Some(other) if smaller.get(&other) != Some(&blocks) || small.bytes(other) == large.bytes(request) => None,
        Some(other) => Some(small.bytes(other)),
        None => Some(0),
    };
    sums(large, before, laws).settle(many, |sum, device| sum.split((few, many), device), laws)
}

/// The same from one recording: where what lives shows which rows are summed.
pub(super) fn settle_alone(number: f64, script: &Script, laws: &mut [Law]) -> HashMap<usize, Split> {
    sums(script, |_, _| Some(0), laws).settle(number, |sum, device| sum.split_alone(number, device), laws)
}

/// The sums of the larger recording that are split, with their possible inputs; and those that are not: the request for
/// the gradient of the bias of a layer with many columns, while the gradient of the layer's output lives, the newest of
/// its multiples. `before` returns the bytes of a buffer in the smaller one; `None` if it follows another law.
fn sums(script: &Script, before: impl Fn(usize, u64) -> Option<u64>, laws: &[Law]) -> Sums {
    let (lives, buffers) = (script.lives(), buffers(script));
    let biases = biases(script, &lives);
    let (mut sums, mut grown) = (Sums::default(), Grown::default());
    for (request, life) in lives.iter().enumerate().skip(script.found) {
        let bytes = script.bytes(request);
        grown.pass(life.born);
        if let Some(&blocks) = buffers.get(&request) {
            let Some(before) = before(request, blocks) else { continue };
            let sum = request.checked_sub(1).map_or(0, |before| script.bytes(before));
            let multiples = grown.multiples(sum).take(MULTIPLES_MAX).collect();
            let seen = Seen { blocks, bytes, before, sum, multiples };
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

/// What lives and grows in proportion to the number: of each size the newest.
#[derive(Default)]
struct Grown {
    /// The newest that lives of each size, by its request: its bytes.
    newest: BTreeMap<usize, u64>,
    /// Of each size by its bytes: the newest last, and before it those that will be once the newer ones have gone. With each the step
    /// that gives it back.
    same: HashMap<u64, Vec<(usize, u32)>>,
    /// The steps that give back what lives, and of which size that is: the first on top.
    ends: BinaryHeap<Reverse<(u32, u64)>>,
}

impl Grown {
    /// Takes what a request asked for, and the step that gives it back.
    fn born(&mut self, request: usize, bytes: u64, ended: u32) {
        let same = self.same.entry(bytes).or_default();
        if let Some((older, _)) = same.last() {
            self.newest.remove(older);
        }
        // (What goes before this one is never the newest again.)
        while same.pop_if(|(_, goes)| *goes <= ended).is_some() {}
        same.push((request, ended));
        self.newest.insert(request, bytes);
        if ended != u32::MAX {
            self.ends.push(Reverse((ended, bytes)));
        }
    }

    /// Drops what is given back up to a step.
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

    /// The multiples of so many bytes among the newest sizes, the newest first; none of 0.
    fn multiples(&self, of: u64) -> impl Iterator<Item = u64> {
        self.newest.values().rev().take(SIZES_MAX).copied().filter(move |all| of > 0 && all.is_multiple_of(of))
    }
}

/// Bytes of what may be the bias of a layer with many columns: it lives for good, and so does what was asked for before it, the
/// layer's weight, a row of many for each of its columns.
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

    /// Asks for so many bytes each, as blocks 1 and on.
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

    /// A layer of 10,000 columns at a batch: its weight, its bias, the gradient of its output, and of its bias.
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

    /// A sum: what it is of, its result, its buffer and its semaphores.
    fn summed(all: u64, result: u64, buffer: u64, semaphores: u64) -> Script {
        let mut script = asking([all, result, buffer, semaphores]);
        give_back(&mut script, &[4, 3, 1]);
        script
    }

    /// `torch.isnan(x).any()` has a result of one byte, the sum of bfloat16 values one of two; a hostile recording has any.
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
        // A bias of so many bytes is none that is summed.
        let mut script = asking([huge << 3, huge, huge << 4, huge]);
        give_back(&mut script, &[3]);
        let _ = Fit::alone((8.0, script), third_grows, conf()).expect("it has a number").at(1e30, None);
    }

    /// A training that never gives back what it sums, in turn of so many sizes: of each sum the result and the buffer.
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
    fn what_is_never_given_back_is_not_looked_at_for_each_buffer() {
        let scale = |at: usize| [Scale::Proportional, Scale::Fixed, Scale::Fixed, Scale::Fixed][at % 4];
        let sums_of = |script: &Script| {
            let laws = (0..script.requests()).map(|at| Law::scaled(scale(at), 8.0, script.bytes(at)));
            sums(script, |_, _| Some(0), &laws.collect::<Vec<_>>())
        };
        let many = 20_000;
        // The same sums over and over: each once, with all their requests.
        let few = sums_of(&leaks(many, 12, |at| (at % 3 + 1) << 20));
        assert_eq!(few.seen.values().map(Vec::len).sum::<usize>(), many as usize);
        assert!(few.seen.len() < 36, "{}", few.seen.len());
        let distinct = |sum: &Seen| sum.multiples.iter().collect::<HashSet<_>>().len();
        assert!(few.seen.keys().all(|sum| distinct(sum) == sum.multiples.len() && distinct(sum) <= MULTIPLES_MAX));
        // All different, and over as many sizes.
        let different = sums_of(&leaks(many, u64::MAX, |at| (at + 1) << 20));
        assert_eq!(different.seen.len(), SUMS_MAX);
        assert_eq!(different.seen.keys().map(|sum| sum.multiples.len()).max(), Some(MULTIPLES_MAX));
        // What explains the buffers is still found.
        let script = leaks(many, 1, |_| 9_961_472);
        let fit = Fit::alone((8.0, script), scale, conf()).expect("it has a number");
        let split = fit.laws.iter().filter(|law| matches!(law, Law::Split(split) if split.bytes(16.0) == 19_398_656));
        assert_eq!(split.count(), many as usize);
    }

    #[test]
    fn of_each_size_the_newest_that_lives_is_known() {
        let mut grown = Grown::default();
        // Of 512 bytes one that stays, one that goes at step 30, and one at step 20; of 1024 one that goes at step 25.
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
        // However many are never given back: one of each size is kept.
        for request in 4..10_000 {
            grown.born(request, 512 << (request % 2), u32::MAX);
        }
        assert_eq!((grown.newest.len(), grown.same.values().map(Vec::len).sum::<usize>()), (2, 2));
        assert!(grown.ends.is_empty());
    }
}
