//! Times of a chunk: differences between operations, in classes by what was allocated.
//!
//! Guarantees: any sequence of 64-bit ticks survives; differences are signed only where some time
//! goes back. Refuses: more than [`CLASSES_MAX`] classes.
//!
//! Why classes: the time before an allocation depends on the operator that makes it, which the key (site
//! and size) stands for. Keys with similar means share a table, because a table costs about 20 bytes.

use super::columns::{Column, Raw};
use super::rans::{DecodeTables, EncodeTables, SYMBOLS, SymbolReader, level};
use super::ticks::{BitReader, BitWriter, difference, symbol};
use super::varint::{unzigzag, zigzag};
use super::{Fault, Part};

/// Kinds of time that never share a class. The first four depend on the key: two bits, "is a free" and
/// "comes after something that is no allocation".
pub(super) const PLANES: usize = 6;
const KEYED_PLANES: usize = 4;
const PLANE_OTHER: usize = 4;
const PLANE_PAIR: usize = 5;
/// Tables of one chunk: what the encoder can choose, [`STEPS`] and one more for each keyed plane.
pub(super) const CLASSES_MAX: usize = KEYED_PLANES * (STEPS + 1) + 2;

/// What a time's distribution depends on.
#[derive(Clone, Copy)]
pub(super) struct Context(u32);

impl Context {
    /// Before an operation that no key predicts.
    pub(super) const OTHER: Self = Self(0);
    /// Between the two events of a folded free.
    pub(super) const PAIR: Self = Self(1);

    /// Before an allocation with a key, or before the free of one.
    #[inline]
    pub(super) const fn keyed(key: u32, is_free: bool, after_alloc: bool) -> Self {
        Self(2 + (key << 2 | (is_free as u32) << 1 | !after_alloc as u32))
    }
}

/// Collects the times of a chunk.
#[derive(Default)]
pub(super) struct TimeWriter {
    contexts: Vec<u32>,
    symbols: Vec<u8>,
    bits: BitWriter,
    signed: bool,
    tables: EncodeTables,
    classed: Vec<u16>,
    words: Vec<u32>,
}

impl TimeWriter {
    pub(super) fn clear(&mut self) {
        self.contexts.clear();
        self.symbols.clear();
        self.bits.clear();
        self.signed = false;
    }

    /// Adds the difference between two ticks.
    #[inline]
    pub(super) fn push(&mut self, context: Context, from: u64, to: u64) {
        if to < from && !self.signed {
            self.become_signed();
        }
        let difference = to.wrapping_sub(from);
        let (symbol, bits) = symbol(if self.signed { zigzag(difference as i64) } else { difference });
        if bits > 0 {
            self.bits.put(if self.signed { zigzag(difference as i64) } else { difference }, bits);
        }
        self.contexts.push(context.0);
        self.symbols.push(symbol);
    }

    /// Rewrites what was collected: once per chunk at most.
    #[cold]
    fn become_signed(&mut self) {
        self.signed = true;
        self.bits.finish();
        let bytes = std::mem::take(&mut self.bits.bytes);
        let mut reader = BitReader::new(&bytes);
        for old in &mut self.symbols {
            let (low, bits) = difference(*old);
            // These bits were just written, so they are there.
            let value = zigzag((low | reader.get(bits).unwrap_or(0)) as i64);
            let (new, bits) = symbol(value);
            self.bits.put(value, bits);
            *old = new;
        }
    }

    /// Chooses classes and encodes. Fills the columns of classes and tables; [`Self::words`] and [`Self::bits`] have the rest.
    pub(super) fn finish(&mut self, keys: usize, columns: &mut Raw) -> Result<(), Fault> {
        let classes = Classes::choose(&self.contexts, &self.symbols, keys);
        self.classed.clear();
        let mut counts = vec![0u32; classes.total * SYMBOLS];
        for (&context, &symbol) in self.contexts.iter().zip(&self.symbols) {
            let classed = u16::from(classes.of_context[context as usize]) << 8 | u16::from(symbol);
            counts[usize::from(classed)] += 1;
            self.classed.push(classed);
        }
        let mut levels = vec![0u8; counts.len()];
        for (levels, counts) in levels.chunks_mut(SYMBOLS).zip(counts.chunks(SYMBOLS)) {
            let total = counts.iter().sum();
            levels.iter_mut().zip(counts).for_each(|(to, &count)| *to = level(count, total));
        }
        write_tables(&levels, &mut columns[Column::Tables as usize]);
        columns[Column::Classes as usize] = classes.column;
        self.tables.build(&levels)?;
        self.tables.encode(&self.classed, &mut self.words);
        self.bits.finish();
        Ok(())
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    pub(super) fn bits(&self) -> &[u8] {
        &self.bits.bytes
    }

    pub(super) const fn is_signed(&self) -> bool {
        self.signed
    }
}

/// Each table: its highest symbol, then the levels up to there.
fn write_tables(levels: &[u8], out: &mut Vec<u8>) {
    for levels in levels.chunks(SYMBOLS) {
        let highest = levels.iter().rposition(|&level| level > 0).unwrap_or(0);
        out.push(highest as u8);
        out.extend_from_slice(&levels[..=highest]);
    }
}

fn read_tables(column: &[u8], total: usize, levels: &mut Vec<u8>) -> Result<(), Fault> {
    levels.clear();
    levels.resize(total * SYMBOLS, 0);
    let mut rest = column;
    for levels in levels.chunks_mut(SYMBOLS) {
        let (&highest, after) = rest.split_first().ok_or(Fault::Truncated(Part::Column(Column::Tables)))?;
        let (given, after) =
            after.split_at_checked(usize::from(highest) + 1).ok_or(Fault::Truncated(Part::Column(Column::Tables)))?;
        levels[..given.len()].copy_from_slice(given);
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(Fault::Malformed(Part::Column(Column::Tables))) }
}

/// The encoder's choice of classes.
struct Classes {
    /// Class of each context.
    of_context: Vec<u8>,
    /// Classes of all planes.
    total: usize,
    /// As it is stored: classes of each plane, then plane by plane the class of each key within it.
    column: Vec<u8>,
}

/// Contexts with fewer times than this share one class: their means say little.
const RARE_TIMES: u32 = 8;
/// A class with fewer times than this joins its neighbour: its table would cost more than it saves.
const CLASS_TIMES_MIN: u32 = 160;
/// Steps of the mean symbol that are told apart; steps are finer where means are small.
const STEPS: usize = 15;

impl Classes {
    fn choose(contexts: &[u32], symbols: &[u8], keys: usize) -> Self {
        let mut sums = vec![(0u32, 0u32); 2 + keys * KEYED_PLANES];
        for (&context, &symbol) in contexts.iter().zip(symbols) {
            let (count, sum) = &mut sums[context as usize];
            *count += 1;
            *sum += u32::from(symbol);
        }
        let mut chosen =
            Self { of_context: vec![0; sums.len()], total: 0, column: vec![0; PLANES + keys * KEYED_PLANES] };
        for plane in 0..KEYED_PLANES {
            chosen.choose_plane(plane, keys, &sums);
        }
        for (plane, context) in [(PLANE_OTHER, Context::OTHER), (PLANE_PAIR, Context::PAIR)] {
            if sums[context.0 as usize].0 > 0 {
                chosen.of_context[context.0 as usize] = chosen.total as u8;
                chosen.column[plane] = 1;
                chosen.total += 1;
            }
        }
        chosen
    }

    /// Classes of one keyed plane: by the step of the mean, rare contexts in a class of their own, thin classes joined.
    fn choose_plane(&mut self, plane: usize, keys: usize, sums: &[(u32, u32)]) {
        let context = |key: usize| 2 + key * KEYED_PLANES + plane;
        let step = |(count, sum): (u32, u32)| {
            let mean = f64::from(sum) / f64::from(count.max(1));
            if count < RARE_TIMES { STEPS } else { ((mean.sqrt() * 2.0) as usize).min(STEPS - 1) }
        };
        let mut times = [0u32; STEPS + 1];
        (0..keys).for_each(|key| times[step(sums[context(key)])] += sums[context(key)].0);
        // From the lowest step up, close a class as soon as it has enough.
        let (mut class_of_step, mut class, mut in_class) = ([0u8; STEPS + 1], 0u8, 0);
        for step in 0..=STEPS {
            let rest: u32 = times[step..].iter().sum();
            if in_class >= CLASS_TIMES_MIN && rest >= CLASS_TIMES_MIN {
                (class, in_class) = (class + 1, 0);
            }
            class_of_step[step] = class;
            in_class += times[step];
        }
        if times.iter().all(|&times| times == 0) {
            return;
        }
        let (mut before, base) = (0, self.total as u8);
        for key in 0..keys {
            // A key without such times repeats the one before, which compresses best.
            if sums[context(key)].0 > 0 {
                before = class_of_step[step(sums[context(key)])];
            }
            self.of_context[context(key)] = base + before;
            self.column[PLANES + plane * keys + key] = before;
        }
        self.column[plane] = class + 1;
        self.total += usize::from(class) + 1;
    }
}

/// The decoder's side of classes and tables, reusable.
#[derive(Default)]
pub(super) struct TimeTables {
    /// Class by key and plane.
    keyed: Vec<[u8; KEYED_PLANES]>,
    other: u8,
    pair: u8,
    levels: Vec<u8>,
    tables: DecodeTables,
    words: Vec<u32>,
}

impl TimeTables {
    /// Reads both columns.
    pub(super) fn read(&mut self, classes: &[u8], tables: &[u8], keys: usize) -> Result<(), Fault> {
        let (counts, of_keys) =
            classes.split_at_checked(PLANES).ok_or(Fault::Truncated(Part::Column(Column::Classes)))?;
        let total: usize = counts.iter().map(|&count| usize::from(count)).sum();
        if total > CLASSES_MAX || of_keys.len() != keys * KEYED_PLANES {
            return Err(Fault::Malformed(Part::Column(Column::Classes)));
        }
        self.keyed.clear();
        self.keyed.resize(keys, [0; KEYED_PLANES]);
        let mut base = 0;
        for (plane, &count) in counts[..KEYED_PLANES].iter().enumerate() {
            for (key, &class) in of_keys[plane * keys..(plane + 1) * keys].iter().enumerate() {
                if class > 0 && class >= count {
                    return Err(Fault::Malformed(Part::Column(Column::Classes)));
                }
                // `total` is at most 66, so this does not overflow. Without classes the number is one too high and reading a time fails.
                self.keyed[key][plane] = base + class;
            }
            base += count;
        }
        (self.other, self.pair) = (base, base + counts[PLANE_OTHER]);
        read_tables(tables, total, &mut self.levels)?;
        self.tables.build(&self.levels)
    }

    /// Begins to read times.
    pub(super) fn reader<'a>(
        &'a mut self,
        words: &'a [u8],
        bits: &'a [u8],
        signed: bool,
    ) -> Result<TimeReader<'a>, Fault> {
        let (words, rest) = words.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Fault::Malformed(Part::Times));
        }
        self.words.clear();
        self.words.extend(words.iter().map(|&word| u32::from_le_bytes(word)));
        Ok(TimeReader {
            tables: self,
            symbols: SymbolReader::new(&self.tables, &self.words)?,
            bits: BitReader::new(bits),
            signed,
        })
    }
}

/// Reads times in the order of the operations.
pub(super) struct TimeReader<'a> {
    tables: &'a TimeTables,
    symbols: SymbolReader<'a>,
    bits: BitReader<'a>,
    signed: bool,
}

impl TimeReader<'_> {
    /// The tick after `from`, before an operation on `key`, which is below the number of keys.
    #[inline(always)]
    pub(super) fn keyed(&mut self, key: u32, is_free: bool, after_alloc: bool, from: u64) -> Result<u64, Fault> {
        let class = self.tables.keyed[key as usize][usize::from(is_free) << 1 | usize::from(!after_alloc)];
        self.next(class, from)
    }

    /// The tick after `from`, before any other operation.
    #[inline(always)]
    pub(super) fn other(&mut self, from: u64) -> Result<u64, Fault> {
        self.next(self.tables.other, from)
    }

    /// The tick after `from` within a folded free.
    #[inline(always)]
    pub(super) fn pair(&mut self, from: u64) -> Result<u64, Fault> {
        self.next(self.tables.pair, from)
    }

    #[inline(always)]
    fn next(&mut self, class: u8, from: u64) -> Result<u64, Fault> {
        let symbol = self.symbols.symbol(class)?;
        let (low, bits) = difference(symbol);
        // Most differences are below 16.
        let value = if bits == 0 { low } else { low | self.bits.get(bits)? };
        Ok(from.wrapping_add(if self.signed { unzigzag(value) as u64 } else { value }))
    }

    /// An error unless everything was read.
    pub(super) fn finished(&self) -> Result<(), Fault> {
        self.symbols.finished()?;
        self.bits.finished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key, is a free, comes after an allocation; `None` where no key predicts.
    type Given = Option<(u32, bool, bool)>;

    /// Writes ticks in given contexts, reads them again; returns whether they were signed.
    fn round_trip(ticks: &[(Given, u64)], keys: usize) -> bool {
        let mut writer = TimeWriter::default();
        let mut columns = Raw::default();
        let mut before = 0;
        for &(context, tick) in ticks {
            let context = context.map_or(Context::OTHER, |(key, is_free, after)| Context::keyed(key, is_free, after));
            writer.push(context, before, tick);
            writer.push(Context::PAIR, tick, tick);
            before = tick;
        }
        writer.finish(keys, &mut columns).unwrap();
        let words: Vec<u8> = writer.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut tables = TimeTables::default();
        let [.., classes, levels] = &columns;
        tables.read(classes, levels, keys).unwrap();
        let mut reader = tables.reader(&words, writer.bits(), writer.is_signed()).unwrap();
        let mut at = 0;
        for &(context, tick) in ticks {
            at = match context {
                Some((key, is_free, after)) => reader.keyed(key, is_free, after, at),
                None => reader.other(at),
            }
            .unwrap();
            assert_eq!(at, tick);
            assert_eq!(reader.pair(at).unwrap(), tick);
        }
        reader.finished().unwrap();
        writer.is_signed()
    }

    #[test]
    fn times_survive_forward_and_backward() {
        let contexts =
            |n: u64| (!n.is_multiple_of(5)).then_some(((n % 40) as u32, n.is_multiple_of(3), n.is_multiple_of(2)));
        let forward: Vec<_> = (0..6000u64).map(|n| (contexts(n), n * n / 7)).collect();
        assert!(!round_trip(&forward, 40));
        // The sign is discovered late: what was written before is rewritten.
        let mut back = forward.clone();
        back[5000].1 = 3;
        back[5001].1 = u64::MAX;
        assert!(round_trip(&back, 40));
        assert!(!round_trip(&[(None, u64::MAX)], 0));
    }

    #[test]
    fn as_many_classes_as_can_be_chosen_are_read() {
        // Means over the whole range, in all four planes.
        let ticks = (0..200_000u64).scan(0u64, |tick, n| {
            let key = (n % 64) as u32;
            *tick += 1 << (key / 2);
            Some((Some((key, (n / 64).is_multiple_of(2), (n / 128).is_multiple_of(2))), *tick))
        });
        round_trip(&ticks.collect::<Vec<_>>(), 64);
    }

    #[test]
    fn classes_that_contradict_themselves_are_refused() {
        let mut tables = TimeTables::default();
        let table = [0, 1];
        assert!(tables.read(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0], &table, 1).is_ok());
        assert!(tables.read(&[1, 0, 0, 0, 0, 0, 1, 0, 0, 0], &table, 1).is_err());
        assert!(tables.read(&[0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 1).is_err());
        assert!(tables.read(&[200, 0, 0, 0, 0, 0, 0, 0, 0, 0], &table, 1).is_err());
        assert!(tables.read(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0], &table, 1).is_err());
        // Without a class no time can be read.
        tables.read(&[0; 10], &[], 1).unwrap();
        let mut reader = tables.reader(&[0; 16], &[], false).unwrap();
        assert!(reader.keyed(0, false, false, 0).is_err());
        assert!(reader.other(0).is_err());
    }
}
