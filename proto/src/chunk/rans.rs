//! The entropy coder of event times: range asymmetric numeral systems (rANS) with static tables, one for each class.
//!
//! Guarantees: integers only, so that every machine builds the same tables; decoding truncated or
//! damaged words gives an error. Refuses: a table without any symbol that is then used.
//!
//! Two 63-bit states take turns, symbol by symbol, so that their multiplications overlap. The format is
//! described in FORMAT.md, section "Times".

use super::columns::Column;
use super::{Fault, Part};

/// Symbols of a table, see [`super::ticks`].
pub(super) const SYMBOLS: usize = 256;
/// Frequencies of a table sum to 2^10: finer ones gain nothing at 40,000 symbols, and a table of 4 KiB stays in the first-level cache.
const PRECISION_BITS: u32 = 10;
const PRECISION: u32 = 1 << PRECISION_BITS;
/// States lie in [2^31, 2^63); 32 bits move at a time.
const STATE_MIN: u64 = 1 << 31;
/// Weights are sent as half-octaves 1..=21, 0 = absent: ±19 % of a frequency costs 0.007 bit a symbol, exact ones cost more to send.
pub(super) const LEVEL_MAX: u8 = 21;
/// round(64 · 2^(i/2)) for level i + 1.
const WEIGHTS: [u32; LEVEL_MAX as usize] = [
    64, 91, 128, 181, 256, 362, 512, 724, 1024, 1448, 2048, 2896, 4096, 5793, 8192, 11585, 16384, 23170, 32768, 46341,
    65536,
];

/// The level that stands for `count` of `total`.
pub(super) fn level(count: u32, total: u32) -> u8 {
    if count == 0 {
        return 0;
    }
    // A frequency of 1 in 1024 is the least that can be coded.
    let scaled = (u64::from(count) * 65_536 / u64::from(total.max(1))).max(64) as u32;
    let above = WEIGHTS.partition_point(|&weight| weight < scaled);
    // The nearer one by ratio: compare with the geometric mean of the two.
    let nearer_below =
        above > 0 && u64::from(scaled).pow(2) < u64::from(WEIGHTS[above]) * u64::from(WEIGHTS[above - 1]);
    above as u8 + 1 - u8::from(nearer_below)
}

/// Frequencies, summing to 1024, from levels. An error if no symbol or an unknown level is there.
fn frequencies(levels: &[u8]) -> Result<[u32; SYMBOLS], Fault> {
    let mut weights = [0u32; SYMBOLS];
    for (weight, &level) in weights.iter_mut().zip(levels) {
        if level > 0 {
            *weight = *WEIGHTS.get(usize::from(level) - 1).ok_or(Fault::Malformed(Part::Column(Column::Tables)))?;
        }
    }
    let total: u32 = weights.iter().sum();
    if total == 0 {
        return Err(Fault::Malformed(Part::Column(Column::Tables)));
    }
    let mut sum = 0;
    for weight in &mut weights {
        if *weight > 0 {
            *weight = (*weight * PRECISION / total).max(1);
            sum += *weight;
        }
    }
    // What is missing goes to the most frequent symbol, the first of several. What is too much comes from the most
    // frequent as well, down to 1, then from the next.
    while sum != PRECISION {
        let mut top = 0;
        for symbol in 1..SYMBOLS {
            if weights[symbol] > weights[top] {
                top = symbol;
            }
        }
        let missing = PRECISION.saturating_sub(sum);
        let excess = sum.saturating_sub(PRECISION).min(weights[top] - 1);
        weights[top] = weights[top] + missing - excess;
        sum = sum + missing - excess;
    }
    Ok(weights)
}

/// What the encoder needs of one symbol: division by its frequency as a multiplication (exact for states below 2^63).
#[derive(Clone, Copy, Default)]
struct Step {
    /// A state at or above this gives up 32 bits first.
    limit: u64,
    reciprocal: u64,
    bias: u32,
    complement: u32,
    shift: u32,
}

/// Tables to encode with.
#[derive(Default)]
pub(super) struct EncodeTables {
    steps: Vec<Step>,
}

impl EncodeTables {
    /// One table for each run of [`SYMBOLS`] levels.
    pub(super) fn build(&mut self, levels: &[u8]) -> Result<(), Fault> {
        self.steps.clear();
        for levels in levels.chunks(SYMBOLS) {
            let mut start = 0;
            for frequency in frequencies(levels)? {
                self.steps.push(step(start, frequency));
                start += frequency;
            }
        }
        Ok(())
    }

    /// Encodes symbols given as `class * 256 + symbol`. The words are to be read from first to last.
    pub(super) fn encode(&self, symbols: &[u16], words: &mut Vec<u32>) {
        words.clear();
        let mut states = [STATE_MIN; 2];
        // rANS is a stack: encode from the last to the first.
        for (index, &symbol) in symbols.iter().enumerate().rev() {
            let step = &self.steps[usize::from(symbol)];
            let state = &mut states[index & 1];
            if *state >= step.limit {
                words.push(*state as u32);
                *state >>= 32;
            }
            let quotient = ((u128::from(*state) * u128::from(step.reciprocal)) >> 64) as u64 >> step.shift;
            *state += u64::from(step.bias) + quotient * u64::from(step.complement);
        }
        for state in states.into_iter().rev() {
            words.push(state as u32);
            words.push((state >> 32) as u32);
        }
        words.reverse();
    }
}

/// `state / frequency * 1024 + start + state % frequency`, prepared.
fn step(start: u32, frequency: u32) -> Step {
    if frequency == 0 {
        return Step::default();
    }
    let limit = (STATE_MIN >> PRECISION_BITS << 32) * u64::from(frequency);
    if frequency == 1 {
        // quotient = state - 1 with this reciprocal, hence the larger bias.
        return Step { limit, reciprocal: u64::MAX, bias: start + PRECISION - 1, complement: PRECISION - 1, shift: 0 };
    }
    let shift = 32 - (frequency - 1).leading_zeros();
    let reciprocal = ((1u128 << (shift + 63)).div_ceil(u128::from(frequency))) as u64;
    Step { limit, reciprocal, bias: start, complement: PRECISION - frequency, shift: shift - 1 }
}

/// Tables to decode with, by class and the low bits of the state: symbol in bits 0..8, frequency in bits 8..19, offset within the symbol in bits 19..30.
#[derive(Default)]
pub(super) struct DecodeTables {
    slots: Vec<[u32; PRECISION as usize]>,
}

impl DecodeTables {
    /// One table for each run of [`SYMBOLS`] levels.
    pub(super) fn build(&mut self, levels: &[u8]) -> Result<(), Fault> {
        self.slots.clear();
        for levels in levels.chunks(SYMBOLS) {
            let mut slots = [0; PRECISION as usize];
            let mut rest = slots.as_mut_slice();
            for (symbol, frequency) in frequencies(levels)?.into_iter().enumerate().filter(|&(_, f)| f > 0) {
                // Frequencies sum to the number of slots.
                let (own, after) = rest.split_at_mut(frequency as usize);
                let entry = symbol as u32 | frequency << 8;
                own.iter_mut().zip(0..).for_each(|(slot, offset)| *slot = entry | offset << 19);
                rest = after;
            }
            self.slots.push(slots);
        }
        Ok(())
    }
}

/// Decodes symbols one after another.
pub(super) struct SymbolReader<'a> {
    tables: &'a [[u32; PRECISION as usize]],
    words: &'a [u32],
    at: usize,
    now: u64,
    next: u64,
}

impl<'a> SymbolReader<'a> {
    /// Reads both states.
    pub(super) fn new(tables: &'a DecodeTables, words: &'a [u32]) -> Result<Self, Fault> {
        let (states, words) = words.split_first_chunk::<4>().ok_or(Fault::Truncated(Part::Times))?;
        let state = |at: usize| u64::from(states[at]) << 32 | u64::from(states[at + 1]);
        Ok(Self { tables: &tables.slots, words, at: 0, now: state(0), next: state(2) })
    }

    /// The next symbol, by the table of a class.
    #[inline(always)]
    pub(super) fn symbol(&mut self, class: u8) -> Result<u8, Fault> {
        let Some(table) = self.tables.get(usize::from(class)) else { return Err(Fault::Malformed(Part::Times)) };
        let entry = table[self.now as usize % PRECISION as usize];
        // A damaged state can be anything: wrap, the check at the end finds it.
        let state =
            u64::from(entry >> 8 & 0x7ff).wrapping_mul(self.now >> PRECISION_BITS).wrapping_add(u64::from(entry >> 19));
        // Without a branch, because it could not be predicted. Words behind the end read as 0; `finished` finds that too.
        let word = self.words.get(self.at).copied().unwrap_or(0);
        let refilled = state << 32 | u64::from(word);
        let is_low = state < STATE_MIN;
        self.at += usize::from(is_low);
        self.now = std::mem::replace(&mut self.next, if is_low { refilled } else { state });
        Ok(entry as u8)
    }

    /// An error unless everything was read and both states are where the encoder began.
    pub(super) fn finished(&self) -> Result<(), Fault> {
        if self.at == self.words.len() && self.now == STATE_MIN && self.next == STATE_MIN {
            Ok(())
        } else {
            Err(Fault::Malformed(Part::Times))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(symbols: &[u16], classes: usize) -> usize {
        let mut counts = vec![0u32; classes * SYMBOLS];
        symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
        let mut levels = vec![0; classes * SYMBOLS];
        for class in 0..classes {
            let range = class * SYMBOLS..(class + 1) * SYMBOLS;
            let total = counts[range.clone()].iter().sum();
            range.for_each(|index| levels[index] = level(counts[index], total));
        }
        let (mut encode, mut decode, mut words) = (EncodeTables::default(), DecodeTables::default(), Vec::new());
        encode.build(&levels).unwrap();
        decode.build(&levels).unwrap();
        assert_eq!(decode.slots.len(), classes);
        encode.encode(symbols, &mut words);
        let mut reader = SymbolReader::new(&decode, &words).unwrap();
        for &symbol in symbols {
            assert_eq!(u16::from(reader.symbol((symbol >> 8) as u8).unwrap()), symbol & 0xff);
        }
        reader.finished().unwrap();
        words.len() * 4
    }

    #[test]
    fn symbols_survive_at_every_skew() {
        round_trip(&[7], 1);
        round_trip(&[3; 10_000], 1);
        let all: Vec<u16> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 22) as u16 % 1024).collect();
        round_trip(&all, 4);
        let skewed: Vec<u16> = (0..50_000u32).map(|n| (n.wrapping_mul(2_654_435_761)).leading_zeros() as u16).collect();
        let bytes = round_trip(&skewed, 1);
        // Entropy of a geometric distribution of one half is 2 bits.
        assert!((12_500..12_900).contains(&bytes), "{bytes}");
    }

    #[test]
    fn frequencies_always_sum_to_the_precision() {
        for levels in [vec![1; 256], vec![21; 256], vec![21, 1], vec![1], [vec![21], vec![1; 255]].concat()] {
            let frequencies = frequencies(&levels).unwrap();
            assert_eq!(frequencies.iter().sum::<u32>(), PRECISION);
            assert!(levels.iter().zip(frequencies).all(|(&level, frequency)| (level > 0) == (frequency > 0)));
        }
        assert!(frequencies(&[0; 256]).is_err());
        assert!(frequencies(&[22]).is_err());
    }

    #[test]
    fn levels_are_the_nearest() {
        assert_eq!(level(0, 10), 0);
        assert_eq!(level(1, 1 << 20), 1);
        assert_eq!(level(10, 10), LEVEL_MAX);
        assert_eq!(level(5, 10), LEVEL_MAX - 2);
        assert_eq!(level(7, 10), LEVEL_MAX - 1);
    }
}
