//! The buffer of a sum for which several blocks of threads sum parts of each output, and its dependency on the number
//! that changed.
//!
//! PyTorch (`at::native::setReduceConfig` and `gpu_reduce_kernel`, aten/src/ATen/native/cuda/Reduce.cuh) sums down the
//! rows of a matrix with blocks of 32 by 16 threads; a thread sums 1, 2 or 4 columns. From [`VALUES_MAX`] values per
//! thread on, it splits the rows over `ctas` blocks. It uses as many blocks as fill the device, with at least
//! [`VALUES_MIN`] and at most [`VALUES_MAX`] values per thread. Their partial sums are in a buffer of 4 bytes x
//! columns x columns of a block x `ctas`. The buffer is allocated together with a row of semaphores, 4 bytes for each
//! block of columns. Both are freed before the next allocation. So such a buffer is absent, then grows with the rows,
//! then stays the same, and then grows again.
//!
//! Guarantees: for two numbers a rule is reported only if it gives the bytes at both. The result never exceeds the
//! largest request, and no bytes cause an overflow. Sums along the rows are not modelled (their buffers are small).
//! Neither are partial sums of any other size than 4 bytes: numbers of 8 bytes, and the `any` or `all` of many values
//! (1 byte). [`super::sums`] finds the requests that are such buffers.

use memctl_model::allocator::REQUEST_BYTES_MAX;

/// Values per thread from which on a sum is split, and their maximum in a split sum.
const VALUES_MAX: f64 = 256.0;
/// Minimum values per thread in a split sum.
const VALUES_MIN: f64 = 16.0;
/// Numbers of blocks per output are searched at least up to this.
const CTAS_MAX: u64 = 1 << 12;
/// Threads of a block that are side by side; `THREADS` are all threads of a block if each has one column.
const WIDTH: u64 = 32;
const THREADS: u64 = 512;
/// Bytes of a partial sum.
pub(super) const ELEMENT_BYTES: u64 = 4;
/// Blocks of [`THREADS`] threads that devices run at a time: multiprocessors times the blocks of each. They are tried
/// in this order: H100 and H200; A100; B200; H100 PCIe; L40S; RTX 4090; RTX 5090; A40; A10; V100; T4.
pub(super) const DEVICES: [u64; 11] =
    [132 * 4, 108 * 4, 148 * 4, 114 * 4, 142 * 3, 128 * 3, 170 * 3, 84 * 3, 72 * 3, 80 * 4, 40 * 2];

/// The buffer of a split sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Split {
    /// Its bytes with one block per output.
    unit: u64,
    /// Blocks per output that fill the device.
    most: u64,
    /// Values per thread without splitting, per one of the number.
    values: f64,
}

impl Split {
    /// The buffer of a sum over columns of a matrix; `rows` are the rows per one of the number. `None` if there are no
    /// columns or no rows, or if the bytes overflow.
    pub(super) fn of_columns(columns: u64, rows: f64, device: u64) -> Option<Self> {
        if columns == 0 || rows <= 0.0 {
            return None;
        }
        let vector = vector(columns);
        let width = WIDTH * vector;
        let height = THREADS / width;
        Some(Self {
            unit: (ELEMENT_BYTES * width).checked_mul(columns)?,
            most: (device * vector).div_ceil(columns.div_ceil(width)),
            values: rows / height as f64,
        })
    }

    /// The rule for a buffer whose bytes are known at two numbers, with this many blocks of columns. The bytes at the
    /// smaller number are 0 if the sum is not split there.
    pub(super) fn of_bytes(blocks: u64, small: (f64, u64), large: (f64, u64), device: u64) -> Option<Self> {
        [4, 2, 1].into_iter().find_map(|vector| {
            let width = WIDTH * vector;
            let most = (device * vector).div_ceil(blocks.max(1));
            let each = ELEMENT_BYTES * width;
            let columns = (blocks.checked_sub(1)?.checked_mul(width)?.checked_add(1)?, blocks.checked_mul(width)?);
            let (least_each, most_each) = (each.checked_mul(columns.0)?, each.checked_mul(columns.1)?);
            let ctas = large.1.div_ceil(most_each)..=(large.1 / least_each).min(most.max(CTAS_MAX));
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

    /// Its bytes at a number; 0 if the sum is not split.
    pub(super) fn bytes(&self, number: f64) -> u64 {
        let values = (self.values * number).ceil();
        if values < VALUES_MAX {
            return 0;
        }
        let at_least = |values_each: f64| (values / values_each).ceil() as u64;
        let ctas = self.most.min(at_least(VALUES_MIN)).max(at_least(VALUES_MAX));
        if ctas > 1 { self.unit.saturating_mul(ctas).min(REQUEST_BYTES_MAX) } else { 0 }
    }
}

/// Number of columns per thread.
fn vector(columns: u64) -> u64 {
    match columns {
        _ if columns.is_multiple_of(4) => 4,
        _ if columns.is_multiple_of(2) => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: u64 = DEVICES[0];

    /// Buffers that genuine torch 2.11.0 requested on an H100 with 132 multiprocessors, at batches 4, 8, 16, 32 and
    /// 64.
    #[test]
    fn buffers_are_those_of_genuine_torch() {
        let at = |split: Option<Split>| {
            [4.0, 8.0, 16.0, 32.0, 64.0].map(|batch| split.expect("it has columns").bytes(batch))
        };
        // A head of 12,000 words over 256 tokens per sample, one of 10,000 over 64, and a layer of 1,024 over 145.
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
                // With fewer blocks, each thread would have more than 256 values.
                196_608_000
            ]
        );
        assert_eq!(of(94, 98_304_000, 141_312_004), None);
        let grows = of(2, 1_179_648, 2_359_296).expect("it is in proportion so far");
        assert_eq!(grows.bytes(32.0), 9_437_184);
    }
}
