//! A pickle value in 8 bytes, and the memo, which stores a value in 4 bytes.
//!
//! Containers are never held as trees. A value names an open container on the stack, or the result of a closed one: a
//! frame, a stack, or nothing of interest. An entry of the memo has only 4 bytes, because a snapshot has three entries
//! per event.

/// The kind of a value; it is in the low four bits of [`Value`] and of a memo entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// No value: the index of a memo entry that was never set.
    Unset = 0,
    None = 1,
    Bool = 2,
    /// A whole number of at most 60 bits.
    Int = 3,
    /// A float without the last four bits of its mantissa.
    Float = 4,
    /// An interned string.
    Str = 5,
    /// An open dict.
    Dict = 6,
    /// An open list.
    List = 7,
    /// An interned frame.
    Frame = 8,
    /// An interned stack.
    Stack = 9,
    /// An interned pair of numbers.
    Pair = 10,
    /// Any value whose content is not needed.
    Opaque = 11,
    /// Only in the memo: a value that does not fit into 28 bits and is stored in a separate list.
    Wide = 12,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Unset,
        Self::None,
        Self::Bool,
        Self::Int,
        Self::Float,
        Self::Str,
        Self::Dict,
        Self::List,
        Self::Frame,
        Self::Stack,
        Self::Pair,
        Self::Opaque,
        Self::Wide,
    ];

    #[inline]
    fn of(bits: u64) -> Self {
        Self::ALL.get((bits & 0xf) as usize).copied().unwrap_or(Self::Opaque)
    }
}

/// A value on the pickle's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value(u64);

impl Value {
    pub(crate) const UNSET: Self = Self(0);
    pub(crate) const NONE: Self = Self(Kind::None as u64);
    pub(crate) const OPAQUE: Self = Self(Kind::Opaque as u64);

    /// A value that refers to something by its number.
    #[inline]
    pub(crate) fn refer(kind: Kind, id: u32) -> Self {
        Self(u64::from(id) << 4 | kind as u64)
    }

    /// A whole number. Beyond 60 bits the number is not kept.
    #[inline]
    pub(crate) fn int(n: i64) -> Self {
        if n << 4 >> 4 == n { Self((n as u64) << 4 | Kind::Int as u64) } else { Self::OPAQUE }
    }

    pub(crate) fn bool(b: bool) -> Self {
        Self::refer(Kind::Bool, u32::from(b))
    }

    pub(crate) fn float(f: f64) -> Self {
        Self(f.to_bits() & !0xf | Kind::Float as u64)
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        Kind::of(self.0)
    }

    /// Whether it is an open dict or list.
    #[inline]
    pub(crate) fn is_open(self) -> bool {
        // Both kinds have adjacent numbers that differ only in the last bit.
        self.0 & 0xe == Kind::Dict as u64
    }

    /// The number by which it refers to something, if it has this kind.
    #[inline]
    pub(crate) fn id(self, kind: Kind) -> Option<u32> {
        // A reference was made from 32 bits, so nothing is lost.
        (self.0 & 0xf == kind as u64).then_some((self.0 >> 4) as u32)
    }

    #[inline]
    pub(crate) fn as_i64(self) -> Option<i64> {
        (self.0 & 0xf == Kind::Int as u64).then_some(self.0 as i64 >> 4)
    }

    #[inline]
    pub(crate) fn as_u64(self) -> Option<u64> {
        self.as_i64().and_then(|n| u64::try_from(n).ok())
    }

    pub(crate) fn as_bool(self) -> Option<bool> {
        self.id(Kind::Bool).map(|b| b != 0)
    }

    pub(crate) fn as_f64(self) -> Option<f64> {
        match self.kind() {
            Kind::Float => Some(f64::from_bits(self.0 & !0xf)),
            Kind::Int => self.as_i64().map(|n| n as f64),
            _ => None,
        }
    }
}

/// Entries of one piece of the memo: 256 KiB. With pieces, growing never copies.
const PIECE: usize = 1 << 16;

/// The memo: values by index.
#[derive(Default)]
pub(crate) struct Memo {
    pieces: Vec<Box<[u32]>>,
    wide: Vec<Value>,
    set: u64,
}

impl Memo {
    /// The index that MEMOIZE uses, which is the number of entries.
    #[inline]
    pub(crate) fn next_index(&self) -> u64 {
        self.set
    }

    /// Bytes held in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.pieces.len() * PIECE * 4 + self.wide.capacity() * 8) as u64
    }

    /// Sets an entry. The caller has checked that a valid file can reach `index`.
    #[inline]
    pub(crate) fn put(&mut self, index: u64, value: Value) {
        let (piece, at) = ((index / PIECE as u64) as usize, (index % PIECE as u64) as usize);
        while self.pieces.len() <= piece {
            self.pieces.push(vec![0; PIECE].into_boxed_slice());
        }
        let packed = self.pack(value);
        let entry = &mut self.pieces[piece][at];
        self.set += u64::from(*entry == 0);
        *entry = packed;
    }

    /// The value of an entry, if it was set.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<Value> {
        let piece = self.pieces.get(usize::try_from(index / PIECE as u64).ok()?)?;
        let packed = u64::from(piece[(index % PIECE as u64) as usize]);
        // The bits are compared directly because this runs fifteen times per event.
        match packed & 0xf {
            tag if tag == Kind::Unset as u64 => None,
            tag if tag == Kind::Wide as u64 => self.wide.get((packed >> 4) as usize).copied(),
            _ => Some(Value(packed)),
        }
    }

    #[inline]
    fn pack(&mut self, value: Value) -> u32 {
        match u32::try_from(value.0) {
            Ok(packed) => packed,
            // 2^28 such entries would need a file with gigabytes of memoized numbers, which no pickler writes.
            Err(_) if self.wide.len() >= 1 << 28 => Kind::Opaque as u32,
            Err(_) => {
                self.wide.push(value);
                ((self.wide.len() - 1) as u32) << 4 | Kind::Wide as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_stack_and_the_memo() {
        let mut memo = Memo::default();
        let numbers = [0, 1, -1, 255, 1 << 27, 1 << 28, -(1 << 40), (1 << 59) - 1, -(1 << 59)];
        for (index, n) in (0..).zip(numbers) {
            assert_eq!(Value::int(n).as_i64(), Some(n));
            memo.put(index, Value::int(n));
        }
        for (index, n) in (0..).zip(numbers) {
            assert_eq!(memo.get(index).and_then(Value::as_i64), Some(n));
        }
        assert_eq!(memo.next_index(), numbers.len() as u64);
        assert_eq!(Value::int(1 << 59), Value::OPAQUE);
        assert_eq!(Value::int(i64::MIN), Value::OPAQUE);
    }

    #[test]
    fn only_what_was_set_can_be_fetched() {
        let mut memo = Memo::default();
        assert_eq!(memo.get(0), None);
        memo.put(70_000, Value::bool(true));
        assert_eq!((memo.get(69_999), memo.get(u64::MAX)), (None, None));
        assert_eq!(memo.get(70_000).and_then(Value::as_bool), Some(true));
        memo.put(70_000, Value::NONE);
        assert_eq!(memo.next_index(), 1);
    }

    #[test]
    fn dicts_and_lists_are_what_is_open() {
        for kind in Kind::ALL {
            assert_eq!(Value::refer(kind, 7).is_open(), matches!(kind, Kind::Dict | Kind::List), "{kind:?}");
        }
    }

    #[test]
    fn a_float_keeps_its_value_but_for_the_last_bits() {
        let value = Value::float(0.8);
        assert!((value.as_f64().unwrap() - 0.8).abs() < 1e-12);
        assert_eq!(Value::int(3).as_f64(), Some(3.0));
    }
}
