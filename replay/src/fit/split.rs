//! What a sum asks for when several blocks of threads sum parts of each output, and how that follows the number that changed.
//!
//! PyTorch (`at::native::setReduceConfig` and `gpu_reduce_kernel`, aten/src/ATen/native/cuda/Reduce.cuh) sums down the rows of a
//! matrix with blocks of 32 by 16 threads, a thread for 1, 2 or 4 columns. From [`VALUES_MAX`] values a thread on it splits the rows
//! over `ctas` blocks: as many as fill the device, at least [`VALUES_MIN`] and at most [`VALUES_MAX`] values a thread. Their parts
//! lie in a buffer of 4 bytes x columns x columns of a block x `ctas`, asked for together with a row of semaphores, 4 bytes for each
//! block of columns, and both are given back before anything else is asked for. So such a buffer is nothing, then grows with the
//! rows, then stays the same, and then grows again.
//!
//! Guarantees: a law is told only where it gives the recorded bytes at both numbers. Refuses sums along the rows (their buffers
//! are small), elements of more than 4 bytes, and to know the device: of those in use the one that explains most buffers is taken.

use std::collections::{HashMap, HashSet};

use super::law::Law;
use super::script::{Act, Life, Script};

/// Values of a thread from which on a sum is split, and at most once it is.
const VALUES_MAX: f64 = 256.0;
/// Values of a thread at least, once it is.
const VALUES_MIN: f64 = 16.0;
/// Threads that lie side by side in a block, and all of a block's that take one column each.
const WIDTH: u64 = 32;
const THREADS: u64 = 512;
/// Bytes of what is summed up.
const ELEMENT_BYTES: u64 = 4;
/// Columns from which on a sum that is not split in a recording is looked for: of fewer the buffer is small.
const COLUMNS_MIN: u64 = 4096;
/// Bytes of what such a sum is of, at least.
const GROWN_MIN: u64 = 1 << 14;
/// Inputs of such a layer at least.
const INPUTS_MIN: u64 = 8;
/// Blocks of [`THREADS`] threads that devices run at a time: multiprocessors, times the threads of one, in the order in which they
/// are tried. H100 and H200; A100; B200; H100 PCIe; L40S; RTX 4090; RTX 5090; A40; A10; V100; T4.
const DEVICES: [u64; 11] =
    [132 * 4, 108 * 4, 148 * 4, 114 * 4, 142 * 3, 128 * 3, 170 * 3, 84 * 3, 72 * 3, 80 * 4, 40 * 2];

/// The buffer of a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Split {
    /// Its bytes for one block an output.
    unit: u64,
    /// Blocks an output that fill the device.
    most: u64,
    /// Values of a thread, for each one of the number.
    values: f64,
}

impl Split {
    /// The buffer of a sum of so many columns over so many rows, for each one of the number.
    fn of_columns(columns: u64, rows: f64, device: u64) -> Self {
        let vector = vector(columns);
        let width = WIDTH * vector;
        let grid = columns.div_ceil(width);
        let height = THREADS / width;
        Self {
            unit: ELEMENT_BYTES * columns * width,
            most: (device * vector).div_ceil(grid),
            values: rows / height as f64,
        }
    }

    /// The one that asks for these bytes, at two numbers, with so many blocks of columns; none at the smaller where it is not split.
    fn of_bytes(blocks: u64, small: (f64, u64), large: (f64, u64), device: u64) -> Option<Self> {
        [4, 2, 1].into_iter().find_map(|vector| {
            let width = WIDTH * vector;
            let most = (device * vector).div_ceil(blocks);
            let each = ELEMENT_BYTES * width;
            let columns = ((blocks - 1) * width + 1, blocks * width);
            let ctas = large.1.div_ceil(each * columns.1)..=(large.1 / (each * columns.0)).min(most.max(1 << 12));
            ctas.into_iter().find_map(|ctas| {
                let columns = large.1.checked_div(each * ctas)?;
                let unit = each * columns;
                let is_whole = unit * ctas == large.1 && small.1.is_multiple_of(unit);
                if !is_whole || self::vector(columns) != vector {
                    return None;
                }
                let before = small.1 / unit;
                let rates = [VALUES_MIN * before as f64 / small.0, VALUES_MAX * before as f64 / small.0];
                let rates = rates.into_iter().chain([VALUES_MIN * ctas as f64 / large.0]);
                let mut splits = rates.map(|values| Self { unit, most, values });
                splits.find(|split| split.bytes(small.0) == small.1 && split.bytes(large.0) == large.1)
            })
        })
    }

    /// Its bytes at a number; none while the sum is not split.
    pub(super) fn bytes(&self, number: f64) -> u64 {
        let values = (self.values * number).ceil();
        if values < VALUES_MAX {
            return 0;
        }
        let at_least = |values_each: f64| (values / values_each).ceil() as u64;
        let ctas = self.most.min(at_least(VALUES_MIN)).max(at_least(VALUES_MAX));
        if ctas > 1 { self.unit.saturating_mul(ctas) } else { 0 }
    }
}

/// Columns that a thread takes.
fn vector(columns: u64) -> u64 {
    match columns {
        _ if columns.is_multiple_of(4) => 4,
        _ if columns.is_multiple_of(2) => 2,
        _ => 1,
    }
}

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

/// The buffer of a sum in the larger recording.
struct Seen {
    request: usize,
    /// Blocks of columns.
    blocks: u64,
    bytes: u64,
    /// Its bytes in the smaller recording, where it is in both; none where the sum is not split there.
    before: u64,
    /// What lives meanwhile, in multiples of what the sum comes to: so many rows it may have.
    rows: Vec<(u64, u64)>,
}

impl Seen {
    fn split(&self, (few, many): (f64, f64), device: u64) -> Option<Split> {
        let is_it = |split: &Split| split.bytes(few) == self.before && split.bytes(many) == self.bytes;
        let of_rows = |&(columns, rows): &(u64, u64)| Split::of_columns(columns, rows as f64 / many, device);
        let from_bytes = || Split::of_bytes(self.blocks, (few, self.before), (many, self.bytes), device);
        self.rows.iter().map(of_rows).find(is_it).or_else(from_bytes)
    }

    fn split_alone(&self, number: f64, device: u64) -> Option<Split> {
        let of_rows = |&(columns, rows): &(u64, u64)| Split::of_columns(columns, rows as f64 / number, device);
        self.rows.iter().map(of_rows).find(|split| split.bytes(number) == self.bytes)
    }
}

/// Puts the laws of split sums in the place of what two numbers alone would tell. `partners` has the request of the smaller script
/// for each of the larger's, counted from what was not found. Gives the sums that come to be split at a number that neither
/// recording has: behind which request of the larger one.
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
    let (before, after) = (buffers(small), buffers(large));
    let (mut seen, whole) = sums(large, &after, laws);
    seen.retain_mut(|sum| match partner(sum.request) {
        Some(other) if before.get(&other) != Some(&sum.blocks) || small.bytes(other) == sum.bytes => false,
        Some(other) => {
            sum.before = small.bytes(other);
            true
        }
        None => true,
    });
    let explained = |device: u64| seen.iter().filter(|sum| sum.split((few, many), device).is_some()).count();
    // (Of equally good ones the first.)
    let device = DEVICES.into_iter().rev().max_by_key(|&device| explained(device)).unwrap_or(DEVICES[0]);
    for sum in &seen {
        if let Some(split) = sum.split((few, many), device) {
            laws[sum.request] = Law::Split(split);
        }
    }
    later(whole, many, device)
}

/// The same from one recording: where what lives shows which rows are summed.
pub(super) fn settle_alone(number: f64, script: &Script, laws: &mut [Law]) -> HashMap<usize, Split> {
    let (seen, whole) = sums(script, &buffers(script), laws);
    let explained = |device: u64| seen.iter().filter(|sum| sum.split_alone(number, device).is_some()).count();
    let device = DEVICES.into_iter().rev().max_by_key(|&device| explained(device)).unwrap_or(DEVICES[0]);
    for sum in &seen {
        if let Some(split) = sum.split_alone(number, device) {
            laws[sum.request] = Law::Split(split);
        }
    }
    later(whole, number, device)
}

/// Those of the sums that are not split at a number and will be.
fn later(whole: Vec<(usize, u64, u64)>, number: f64, device: u64) -> HashMap<usize, Split> {
    let split = |(request, columns, rows): (usize, u64, u64)| {
        (request, Split::of_columns(columns, rows as f64 / number, device))
    };
    whole.into_iter().map(split).filter(|(_, split)| split.bytes(number) == 0).collect()
}

/// The sums of the larger recording that are split, with what they may be of; and those that are not: the request for the gradient
/// of the bias of a layer with many columns, while the gradient of the layer's output lives, the newest of its multiples.
fn sums(script: &Script, buffers: &HashMap<usize, u64>, laws: &[Law]) -> (Vec<Seen>, Vec<(usize, u64, u64)>) {
    let lives = script.lives();
    let biases = biases(script, &lives);
    let (mut seen, mut whole) = (Vec::new(), Vec::new());
    // What lives and grows in proportion, the newest last.
    let mut grown: Vec<(u32, u64)> = Vec::new();
    for (request, life) in lives.iter().enumerate().skip(script.found) {
        let bytes = script.bytes(request);
        grown.retain(|&(ended, _)| ended > life.born);
        if let Some(&blocks) = buffers.get(&request) {
            let sum = request.checked_sub(1).map_or(0, |before| script.bytes(before)).max(1);
            let multiples = grown.iter().rev().filter(|(_, all)| all.is_multiple_of(sum));
            // (Elements of four bytes, or of two.)
            let of = |(_, all): &(u32, u64)| [4, 2].map(|element| (sum / element, all / sum));
            let rows = multiples.flat_map(of).collect();
            seen.push(Seen { request, blocks, bytes, before: 0, rows });
        } else if laws.get(request).is_some_and(Law::is_proportional) && bytes >= GROWN_MIN {
            grown.push((life.ended, bytes));
        } else if biases.contains(&bytes) && !buffers.contains_key(&(request + 1)) {
            let summed = grown.iter().rev().find(|(_, all)| all.is_multiple_of(bytes) && *all > bytes);
            whole.extend(summed.map(|(_, all)| (request, bytes / ELEMENT_BYTES, all / bytes)));
        }
    }
    (seen, whole)
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
    use crate::fit::{Fit, Scale};
    use crate::request::{Request, Requested};
    use crate::settings::{Conf, Version};

    const H100: u64 = DEVICES[0];

    /// Buffers that genuine torch 2.11.0 asked for on an H100's 132 multiprocessors, at batch 4, 8, 16, 32 and 64.
    #[test]
    fn buffers_are_those_of_genuine_torch() {
        let at = |split: Split| [4.0, 8.0, 16.0, 32.0, 64.0].map(|batch| split.bytes(batch));
        // A head of 12,000 words over 256 tokens a sample, one of 10,000 over 64, and a layer of 1,024 over 145.
        assert_eq!(
            at(Split::of_columns(12_000, 256.0, H100)),
            [98_304_000, 141_312_000, 141_312_000, 141_312_000, 141_312_000]
        );
        assert_eq!(at(Split::of_columns(10_000, 64.0, H100)), [0, 0, 81_920_000, 138_240_000, 138_240_000]);
        assert_eq!(at(Split::of_columns(1024, 145.0, H100))[..4], [0, 9_961_472, 19_398_656, 38_273_024]);
    }

    #[test]
    fn two_sizes_tell_the_rule() {
        let of = |blocks: u64, before: u64, bytes: u64| Split::of_bytes(blocks, (4.0, before), (8.0, bytes), H100);
        let head = of(94, 98_304_000, 141_312_000).expect("both are of one rule");
        assert_eq!(
            [4.0, 8.0, 64.0, 128.0].map(|number| head.bytes(number)),
            [
                98_304_000,
                141_312_000,
                141_312_000,
                // From there on each thread would have more than 256 values.
                196_608_000
            ]
        );
        assert_eq!(of(94, 98_304_000, 141_312_004), None);
        let grows = of(2, 1_179_648, 2_359_296).expect("it is in proportion so far");
        assert_eq!(grows.bytes(32.0), 9_437_184);
    }

    /// A layer of 10,000 columns at a batch: its weight, its bias, the gradient of its output, and of its bias.
    fn head(batch: u64) -> Script {
        let mut script = Script::new(&[]);
        let (weight, bias, rows) = (10_000 * 512 * 4, 10_000 * 4, 64 * batch);
        let buffer = Split::of_columns(10_000, 64.0, H100).bytes(batch as f64);
        let mut asked: Vec<(u32, u64)> = vec![(1, weight), (2, bias), (3, rows * 10_000 * 4), (4, bias)];
        if buffer > 0 {
            asked.extend([(5, buffer), (6, 79 * 4)]);
        }
        for (block, bytes) in asked {
            let requested = Requested { bytes, stream: 0, pool: PoolId::DEFAULT };
            script.push(&Request::Alloc { block, requested, hints: &[] }, u64::from(block)).expect("few");
        }
        let freed: &[u32] = if buffer > 0 { &[6, 5, 3] } else { &[3] };
        for &block in freed {
            script.push(&Request::FreeRequested { block }, 0).expect("few");
            script.push(&Request::FreeCompleted { block }, 0).expect("few");
        }
        script
    }

    #[test]
    fn a_sum_that_is_not_split_yet_is_foreseen() {
        let conf = || Conf::parse("", Version::of(2, 11)).expect("default settings").0;
        let truth = |batch: u64| head(batch).outcome(&conf(), Limit::None).counts.peak_reserved_bytes;
        let reserved = |fit: &Fit, batch: u64| fit.at(batch as f64, None).likely.counts.peak_reserved_bytes;
        let fit = Fit::new((4.0, head(4)), (8.0, head(8)), conf()).expect("of one training");
        for batch in [4, 8, 16, 32, 64] {
            assert_eq!(reserved(&fit, batch), truth(batch), "at {batch}");
        }
        let alone =
            Fit::alone((16.0, head(16)), |at| [Scale::Fixed, Scale::Proportional][usize::from(at == 2)], conf());
        assert_eq!(reserved(&alone.expect("it has a number"), 64), truth(64));
    }
}
