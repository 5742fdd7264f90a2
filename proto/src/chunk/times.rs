//! The times of a chunk: two differences for each operation, coded in classes that depend on what was allocated.
//!
//! Guarantees: every sequence of 64-bit ticks is decoded exactly. Refuses: more than [`CLASSES_MAX`] classes.
//!
//! The reason for classes: the time before an allocation depends on the operator that makes it, and the key (site and
//! size) identifies that operator. Keys with similar means share a code, because the lengths of one code cost about 20
//! bytes.
//! (Over 400 lines: writer, choice of classes and reader are three sides of one definition.)

use super::bits::{BitWriter, PADDING, window};
use super::codes::{Code, lengths};
use super::columns::{Column, Raw};
use super::keys::Key;
use super::planes::{CLASSES_MAX, KEYED_PLANES, PLANE_OTHER, PLANES, STEPS};
use super::ticks::{DIFFERENCE_MAX, FIRST_ESCAPE, FIRST_SYMBOLS, SECOND_ESCAPE, SYMBOLS, difference, symbol};
use super::varint::{Cursor, put, unzigzag, zigzag};
use super::{Fault, Part};

/// The context that a time's distribution depends on.
#[derive(Clone, Copy)]
pub(super) struct Context(u32);

impl Context {
    /// The context of an operation that no key predicts.
    pub(super) const OTHER: Self = Self(0);

    /// The context of an allocation with a key, or of the free of such an allocation.
    #[inline]
    pub(super) const fn keyed(key: u32, is_free: bool, after_alloc: bool) -> Self {
        Self(1 + (key << 2 | (is_free as u32) << 1 | !after_alloc as u32))
    }
}

/// Both differences of an operation, as they will be coded.
#[derive(Clone, Copy)]
struct Time {
    context: u32,
    symbol: u8,
    /// Number of extra bits.
    count: u8,
    extra: u16,
}

/// Collects the times of a chunk.
#[derive(Default)]
pub(super) struct TimeWriter {
    times: Vec<Time>,
    bits: BitWriter,
    /// By class and symbol: the code in the high bits, its length in the low eight bits.
    codes: Vec<u32>,
}

impl TimeWriter {
    pub(super) fn clear(&mut self) {
        self.times.clear();
        self.bits.clear();
    }

    /// Adds an operation: the difference before it, and the difference between its two events.
    #[inline]
    pub(super) fn push(&mut self, context: Context, first: u64, second: u64, wide: &mut Vec<u8>) {
        let (mut first_symbol, mut count) = (FIRST_ESCAPE, 0);
        if first < DIFFERENCE_MAX {
            (first_symbol, count) = symbol(first);
        } else {
            put(wide, zigzag(first as i64));
        }
        let mut second_symbol = SECOND_ESCAPE;
        if second < u64::from(SECOND_ESCAPE) {
            second_symbol = second as u8;
        } else {
            put(wide, zigzag(second as i64));
        }
        self.times.push(Time {
            context: context.0,
            symbol: second_symbol * FIRST_SYMBOLS + first_symbol,
            count: count as u8,
            extra: first as u16 & ((1 << count) - 1),
        });
    }

    /// Chooses classes and encodes the times. Fills the columns of classes and lengths. [`Self::bits`] has the rest.
    pub(super) fn finish(&mut self, keys: usize, columns: &mut Raw) -> Result<(), Fault> {
        let mut classes = Classes::choose(&self.times, keys);
        classes.refine(&self.times, keys);
        let mut counts = vec![0u32; classes.total * SYMBOLS];
        for time in &mut self.times {
            // The context becomes the index of class and symbol; the context itself is not needed after this.
            time.context =
                u32::from(classes.of_context[time.context as usize]) * SYMBOLS as u32 + u32::from(time.symbol);
            counts[time.context as usize] += 1;
        }
        self.codes.clear();
        for counts in counts.chunks_mut(SYMBOLS) {
            let mut stored = [0; SYMBOLS];
            // A class that lost all its contexts still needs a code.
            counts[0] += u32::from(counts.iter().all(|&count| count == 0));
            lengths(counts, &mut stored);
            write_lengths(&stored, &mut columns[Column::Lengths as usize]);
            self.add_codes(&stored)?;
        }
        columns[Column::Classes as usize] = classes.column;
        for time in &self.times {
            let code = self.codes[time.context as usize];
            let count = u32::from(time.count);
            self.bits.put(code >> 8 << count | u32::from(time.extra), (code & 0xff) + count);
        }
        self.bits.finish();
        Ok(())
    }

    fn add_codes(&mut self, stored: &[u8; SYMBOLS]) -> Result<(), Fault> {
        let mut code = Code::new(stored)?;
        self.codes.extend(stored.iter().map(|&stored| {
            if stored == 0 {
                return 0;
            }
            let (slot, shift) = code.hand_out(stored);
            ((slot >> shift) as u32) << 8 | u32::from(stored - 1)
        }));
        Ok(())
    }

    pub(super) fn bits(&self) -> &[u8] {
        &self.bits.bytes
    }
}

/// Writes a class: its highest symbol, then the stored lengths up to that symbol.
fn write_lengths(stored: &[u8], out: &mut Vec<u8>) {
    let highest = stored.iter().rposition(|&length| length > 0).unwrap_or(0);
    out.push(highest as u8);
    out.extend_from_slice(&stored[..=highest]);
}

/// The encoder's choice of classes.
struct Classes {
    /// Class of each context.
    of_context: Vec<u8>,
    /// Number of classes of all planes.
    total: usize,
    /// The column as stored: the number of classes of each plane, then for each plane the class of each key within the
    /// plane.
    column: Vec<u8>,
}

/// Contexts with fewer times than this share one class, because their means are unreliable.
const RARE_TIMES: u32 = 8;
/// A class with fewer times than this is merged with its neighbour, because its code would cost more than it saves.
const CLASS_TIMES_MIN: u32 = 160;
/// Cost in bits of a symbol in a class that never had it. Its code will be long, and it makes other codes longer.
const MISSING_BITS: u32 = 12;
/// Cost in bits of writing that a key's class differs from the previous key's.
const CHANGE_BITS: u32 = 10;

impl Classes {
    fn choose(times: &[Time], keys: usize) -> Self {
        let mut sums = vec![(0u32, 0u32); 1 + keys * KEYED_PLANES];
        for time in times {
            let (count, sum) = &mut sums[time.context as usize];
            *count += 1;
            *sum += u32::from(time.symbol % FIRST_SYMBOLS);
        }
        let mut chosen =
            Self { of_context: vec![0; sums.len()], total: 0, column: vec![0; PLANES + keys * KEYED_PLANES] };
        for plane in 0..KEYED_PLANES {
            chosen.choose_plane(plane, keys, &sums);
        }
        let other = Context::OTHER.0 as usize;
        if sums[other].0 > 0 {
            chosen.of_context[other] = chosen.total as u8;
            chosen.column[PLANE_OTHER] = 1;
            chosen.total += 1;
        }
        chosen
    }

    /// Chooses the classes of one keyed plane by the step of the mean. Rare contexts share one class, and thin classes
    /// are merged.
    fn choose_plane(&mut self, plane: usize, keys: usize, sums: &[(u32, u32)]) {
        let context = |key: usize| 1 + key * KEYED_PLANES + plane;
        let step = |(count, sum): (u32, u32)| {
            let mean = f64::from(sum) / f64::from(count.max(1));
            if count < RARE_TIMES { STEPS } else { ((mean.sqrt() * 2.0) as usize).min(STEPS - 1) }
        };
        let mut times = [0u32; STEPS + 1];
        (0..keys).for_each(|key| times[step(sums[context(key)])] += sums[context(key)].0);
        // From the lowest step up, a class is closed as soon as it has enough times.
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
            // A key without such times gets the class of the previous key, which compresses best.
            if sums[context(key)].0 > 0 {
                before = class_of_step[step(sums[context(key)])];
            }
            self.of_context[context(key)] = base + before;
            self.column[PLANES + plane * keys + key] = before;
        }
        self.column[plane] = class + 1;
        self.total += usize::from(class) + 1;
    }

    /// Moves each key to the class that codes its own times best, by the code lengths of the first choice.
    fn refine(&mut self, times: &[Time], keys: usize) {
        let mut counts = vec![0u32; self.total * SYMBOLS];
        for time in times {
            counts[usize::from(self.of_context[time.context as usize]) * SYMBOLS + usize::from(time.symbol)] += 1;
        }
        // Bits by plane, symbol and class within the plane. The classes are adjacent, so their sums are vectorised.
        let mut bits = vec![[[MISSING_BITS; STEPS + 1]; SYMBOLS]; KEYED_PLANES];
        let mut counts = counts.chunks(SYMBOLS);
        for (bits, &classes) in bits.iter_mut().zip(&self.column) {
            for (class, counts) in counts.by_ref().take(usize::from(classes)).enumerate() {
                let mut stored = [0; SYMBOLS];
                lengths(counts, &mut stored);
                for (bits, &stored) in bits.iter_mut().zip(&stored).filter(|&(_, &stored)| stored > 0) {
                    bits[class] = u32::from(stored - 1);
                }
            }
        }
        let mut sums = vec![[0u32; STEPS + 1]; self.of_context.len()];
        for time in times.iter().filter(|time| time.context != Context::OTHER.0) {
            let bits = &bits[(time.context - 1) as usize % KEYED_PLANES][usize::from(time.symbol)];
            sums[time.context as usize].iter_mut().zip(bits).for_each(|(sum, bits)| *sum += bits);
        }
        let mut base = 0;
        for plane in 0..KEYED_PLANES {
            let classes = usize::from(self.column[plane]);
            let mut before = 0;
            for key in 0..keys {
                let context = 1 + key * KEYED_PLANES + plane;
                let sums = &sums[context][..classes];
                // Repeating the previous key's class is cheapest to write.
                let best =
                    (0..classes).min_by_key(|&class| sums[class] + if class == before { 0 } else { CHANGE_BITS });
                before = best.unwrap_or(0);
                self.of_context[context] = (base + before) as u8;
                self.column[PLANES + plane * keys + key] = before as u8;
            }
            base += classes;
        }
    }
}

/// A slot of a decoding table. Bits 0 to 15: the lowest first difference. Bits 16 to 19: the number of extra bits. Bits
/// 20 to 24: the number of bits of code and extra bits together. Bits 25 and 26: the second difference. Higher bits:
/// the following flags.
#[derive(Clone, Copy)]
struct Slot(u32);

impl Slot {
    /// One or both differences are in the column of wide values.
    const ESCAPE: u32 = 1 << 27;
    /// The first difference is in the column of wide values.
    const FIRST_ESCAPE: u32 = 1 << 28;
    /// There is no such code.
    const INVALID: Self = Self(1 << 29 | Self::ESCAPE);

    const fn new(symbol: u8) -> Self {
        let (first, second) = (symbol % FIRST_SYMBOLS, symbol / FIRST_SYMBOLS);
        let escape = if second == SECOND_ESCAPE { Self::ESCAPE } else { 0 };
        if first == FIRST_ESCAPE {
            return Self((second as u32) << 25 | Self::ESCAPE | Self::FIRST_ESCAPE);
        }
        let (low, bits) = difference(first);
        Self(low | bits << 16 | bits << 20 | (second as u32) << 25 | escape)
    }

    /// The slots of all symbols, without the bits of their codes.
    const ALL: [Self; SYMBOLS] = {
        let mut all = [Self(0); SYMBOLS];
        let mut symbol = 0;
        while symbol < SYMBOLS {
            all[symbol] = Self::new(symbol as u8);
            symbol += 1;
        }
        all
    };
}

/// The decoder's side of classes and lengths, reusable.
#[derive(Default)]
pub(super) struct TimeTables {
    /// The tables of all classes, after the two slots of [`NO_TABLE`].
    slots: Vec<Slot>,
    /// By class: the first slot in the high bits, and in the low six bits 64 minus the binary logarithm of the number
    /// of slots.
    classes: Vec<u32>,
    other: u32,
    bits: Vec<u8>,
}

/// The table of contexts without a class. It has two slots.
const NO_TABLE: u32 = 63;

impl TimeTables {
    /// Reads both columns and stores the tables of the keys.
    pub(super) fn read(&mut self, classes: &[u8], lengths: &[u8], keys: &mut [Key]) -> Result<(), Fault> {
        let malformed = Fault::Malformed(Part::Column(Column::Classes));
        let (counts, of_keys) =
            classes.split_first_chunk::<PLANES>().ok_or(Fault::Truncated(Part::Column(Column::Classes)))?;
        let total: usize = counts.iter().map(|&count| usize::from(count)).sum();
        if total > CLASSES_MAX || counts[PLANE_OTHER] > 1 || of_keys.len() != keys.len() * KEYED_PLANES {
            return Err(malformed);
        }
        self.read_lengths(lengths, total)?;
        let mut rest = self.classes.as_slice();
        let mut of_keys = of_keys.iter();
        for (plane, &count) in counts[..KEYED_PLANES].iter().enumerate() {
            // `rest` is long enough: it has the tables of all planes.
            let (own, after) = rest.split_at(usize::from(count));
            for (key, &class) in keys.iter_mut().zip(&mut of_keys) {
                key.tables[plane] = match own.get(usize::from(class)) {
                    Some(&table) => table,
                    None if class == 0 => NO_TABLE,
                    None => return Err(malformed),
                };
            }
            rest = after;
        }
        self.other = rest.first().copied().unwrap_or(NO_TABLE);
        Ok(())
    }

    fn read_lengths(&mut self, column: &[u8], total: usize) -> Result<(), Fault> {
        self.slots.clear();
        self.slots.extend([Slot::INVALID; 2]);
        self.classes.clear();
        let mut cursor = Cursor::new(column, Part::Column(Column::Lengths));
        for _ in 0..total {
            let highest = usize::from(cursor.byte()?);
            if highest >= SYMBOLS {
                return Err(Fault::Malformed(Part::Column(Column::Lengths)));
            }
            self.add_table(cursor.bytes(highest + 1)?)?;
        }
        cursor.finished()
    }

    fn add_table(&mut self, stored: &[u8]) -> Result<(), Fault> {
        let mut code = Code::new(stored)?;
        let first = self.slots.len();
        self.classes.push((first << 6 | (64 - code.bits)) as u32);
        self.slots.resize(first + (1 << code.bits), Slot::INVALID);
        for (slot, &stored) in Slot::ALL.iter().zip(stored).filter(|&(_, &stored)| stored > 0) {
            let (at, shift) = code.hand_out(stored);
            // A code has at most 10 bits and 15 extra bits, so the sum fits into five bits.
            self.slots[first + at..][..1 << shift].fill(Slot(slot.0 + (u32::from(stored - 1) << 20)));
        }
        Ok(())
    }

    /// The table of operations that no key predicts.
    pub(super) const fn other(&self) -> u32 {
        self.other
    }

    /// Begins to read times.
    pub(super) fn reader<'a>(&'a mut self, bits: &[u8], wide: &'a [u8]) -> TimeReader<'a> {
        self.bits.clear();
        self.bits.extend_from_slice(bits);
        self.bits.extend_from_slice(&PADDING);
        TimeReader { slots: &self.slots, bits: &self.bits, at: 0, wide, wide_at: 0 }
    }
}

/// Reads times in the order of the operations. `Copy`, so that an inner loop can keep it in registers.
#[derive(Clone, Copy)]
pub(super) struct TimeReader<'a> {
    slots: &'a [Slot],
    bits: &'a [u8],
    at: usize,
    wide: &'a [u8],
    wide_at: usize,
}

impl TimeReader<'_> {
    /// Returns both differences of the next operation. `table` is one of [`Key::tables`] or [`TimeTables::other`].
    #[inline(always)]
    pub(super) fn next(&mut self, table: u32) -> Result<(u64, u64), Fault> {
        let window = window(self.bits, self.at)?;
        let index = (table >> 6) as usize + (window >> (table & 63)) as usize;
        let Some(&Slot(slot)) = self.slots.get(index) else { return Err(Fault::Malformed(Part::Times)) };
        let used = slot >> 20 & 0x1f;
        self.at += used as usize;
        // The extra bits are the last ones of the bits that are used.
        let extra = window.rotate_left(used) as u32 & ((1 << (slot >> 16 & 0xf)) - 1);
        let (mut first, mut second) = (u64::from((slot & 0xffff) + extra), u64::from(slot >> 25 & 3));
        if slot & Slot::ESCAPE != 0 {
            (first, second, self.wide_at) = escaped(slot, first, second, self.wide, self.wide_at)?;
        }
        Ok((first, second))
    }

    /// Returns an error unless everything was read.
    pub(super) fn finished(&self) -> Result<(), Fault> {
        if self.at.div_ceil(8) + PADDING.len() != self.bits.len() {
            return Err(Fault::Malformed(Part::Times));
        }
        if self.wide_at == self.wide.len() { Ok(()) } else { Err(Fault::Malformed(Part::Column(Column::Wide))) }
    }
}

/// Reads the differences that are in the column of wide values. Returns both differences and the new position. They are
/// passed by value, so that the caller's variables stay in registers.
#[cold]
#[inline(never)]
fn escaped(slot: u32, mut first: u64, mut second: u64, wide: &[u8], at: usize) -> Result<(u64, u64, usize), Fault> {
    if slot == Slot::INVALID.0 {
        return Err(Fault::Malformed(Part::Times));
    }
    let mut cursor = Cursor::new(wide.get(at..).unwrap_or_default(), Part::Column(Column::Wide));
    if slot & Slot::FIRST_ESCAPE != 0 {
        first = unzigzag(cursor.u64()?) as u64;
    }
    if second == u64::from(SECOND_ESCAPE) {
        second = unzigzag(cursor.u64()?) as u64;
    }
    Ok((first, second, at + cursor.read()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::keys::Tuple;
    use memctl_model::Event;

    /// The key, whether it is a free, and whether it follows an allocation; `None` where no key predicts.
    type KeyFacts = Option<(u32, bool, bool)>;

    fn keys(count: usize) -> Vec<Key> {
        vec![Key::new(Tuple::of(&Event::default())); count]
    }

    /// Writes differences in given contexts and reads them again. Returns the number of bytes of the bits.
    fn round_trip(given: &[(KeyFacts, u64, u64)], count: usize) -> usize {
        let mut writer = TimeWriter::default();
        let (mut columns, mut wide) = (Raw::default(), Vec::new());
        for &(context, first, second) in given {
            let context = context.map_or(Context::OTHER, |(key, is_free, after)| Context::keyed(key, is_free, after));
            writer.push(context, first, second, &mut wide);
        }
        writer.finish(count, &mut columns).unwrap();
        let (mut tables, mut keys) = (TimeTables::default(), keys(count));
        let [.., classes, lengths] = &columns;
        tables.read(classes, lengths, &mut keys).unwrap();
        let other = tables.other();
        let mut read = |bits: &[u8]| {
            let mut reader = tables.reader(bits, &wide);
            for &(context, first, second) in given {
                let table = context.map_or(other, |(key, is_free, after)| {
                    keys[key as usize].tables[usize::from(is_free) << 1 | usize::from(!after)]
                });
                let expected = (first, second);
                assert!(reader.next(table)? == expected || bits.len() < writer.bits().len());
            }
            reader.finished()
        };
        read(writer.bits()).unwrap();
        if let [cut @ .., _] = writer.bits() {
            assert!(read(cut).is_err());
        }
        writer.bits().len()
    }

    #[test]
    fn times_survive_forward_and_backward() {
        let contexts =
            |n: u64| (!n.is_multiple_of(5)).then_some(((n % 40) as u32, n.is_multiple_of(3), n.is_multiple_of(2)));
        let mut given: Vec<_> = (0..6000u64).map(|n| (contexts(n), n * n / 7 % 70_000, n % 5)).collect();
        round_trip(&given, 40);
        given[5000].1 = 3u64.wrapping_sub(1 << 40);
        given[5001].1 = u64::MAX;
        given[5001].2 = 1 << 63;
        round_trip(&given, 40);
        round_trip(&[(None, u64::MAX, 0)], 0);
    }

    #[test]
    fn a_geometric_distribution_takes_two_bits() {
        let given: Vec<_> = (0..50_000u32)
            .map(|n| (Some((0, false, true)), u64::from(n.wrapping_mul(2_654_435_761).leading_zeros()), 0))
            .collect();
        let bytes = round_trip(&given, 1);
        assert!((12_400..13_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn as_many_classes_as_can_be_chosen_are_read() {
        // The means cover the whole range, in all four planes.
        let given: Vec<_> = (0..200_000u64)
            .map(|n| {
                let key = (n % 64) as u32;
                (Some((key, (n / 64).is_multiple_of(2), (n / 128).is_multiple_of(2))), 1 << (key / 4), 0)
            })
            .collect();
        round_trip(&given, 64);
    }

    #[test]
    fn classes_that_contradict_themselves_are_refused() {
        let mut tables = TimeTables::default();
        let code = [0, 1];
        let mut read = |classes: &[u8], lengths: &[u8]| tables.read(classes, lengths, &mut keys(1));
        assert!(read(&[1, 0, 0, 0, 0, 0, 0, 0, 0], &code).is_ok());
        assert!(read(&[1, 0, 0, 0, 0, 0, 1, 0, 0], &code).is_err());
        assert!(read(&[0, 0, 0, 0, 0, 0, 0, 0], &[]).is_err());
        assert!(read(&[200, 0, 0, 0, 0, 0, 0, 0, 0], &code).is_err());
        assert!(read(&[2, 0, 0, 0, 0, 0, 0, 0, 0], &code).is_err());
        assert!(read(&[0, 0, 0, 0, 2, 0, 0, 0, 0], &[code, code].concat()).is_err());
        assert!(read(&[1, 0, 0, 0, 0, 0, 0, 0, 0], &[139, 1]).is_err());
        assert!(read(&[1, 0, 0, 0, 0, 0, 0, 0, 0], &[[140].as_slice(), &[0; 140], &[1]].concat()).is_err());
        // No time can be read in a context without a class.
        let mut keys = keys(1);
        tables.read(&[0; 9], &[], &mut keys).unwrap();
        let other = tables.other();
        let mut reader = tables.reader(&[0; 16], &[]);
        assert!(reader.next(keys[0].tables[0]).is_err());
        assert!(reader.next(other).is_err());
    }
}
