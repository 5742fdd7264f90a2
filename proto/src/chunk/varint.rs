//! Little-endian base-128 integers, and a cursor over a column that never reads past its end.
//!
//! Guarantees: reading a malformed or truncated column returns an error, never a panic.
//! Refuses: a varint of more than 64 bits.

use super::{Fault, Part};

/// Appends a varint. Each byte has seven bits, least significant first. A set high bit means that more bytes follow.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Maps small magnitudes of either sign to small numbers: 0, -1, 1, -2 become 0, 1, 2, 3.
#[inline]
pub(super) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub(super) const fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Reads a column from its beginning.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    part: Part,
}

impl<'a> Cursor<'a> {
    /// A cursor at the beginning. `part` is the part that errors name.
    pub(super) const fn new(bytes: &'a [u8], part: Part) -> Self {
        Self { bytes, at: 0, part }
    }

    /// The next byte.
    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.bytes.get(self.at).ok_or(Fault::Truncated(self.part))?;
        self.at += 1;
        Ok(byte)
    }

    /// The next `n` bytes.
    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8], Fault> {
        let end = self.at.checked_add(n).ok_or(Fault::Truncated(self.part))?;
        let bytes = self.bytes.get(self.at..end).ok_or(Fault::Truncated(self.part))?;
        self.at = end;
        Ok(bytes)
    }

    /// The next varint.
    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        let first = self.byte()?;
        if first < 0x80 { Ok(u64::from(first)) } else { self.u64_rest(first) }
    }

    #[inline(never)]
    fn u64_rest(&mut self, first: u8) -> Result<u64, Fault> {
        let mut value = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return Err(Fault::Malformed(self.part));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Fault::Malformed(self.part))
    }

    /// The next varint, if it fits 32 bits.
    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        u32::try_from(self.u64()?).map_err(|_| Fault::Malformed(self.part))
    }

    /// Number of bytes read so far.
    pub(super) const fn read(&self) -> usize {
        self.at
    }

    /// Returns an error unless everything was read.
    pub(super) const fn finished(&self) -> Result<(), Fault> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(Fault::Malformed(self.part)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_survives() {
        let mut out = Vec::new();
        let values: Vec<u64> = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, u64::MAX >> bit]).collect();
        values.iter().for_each(|&value| put(&mut out, value));
        let mut cursor = Cursor::new(&out, Part::Header);
        for value in values {
            assert_eq!(cursor.u64().unwrap(), value);
        }
        cursor.finished().unwrap();
    }

    #[test]
    fn too_long_and_too_short_are_errors() {
        assert!(matches!(Cursor::new(&[0x80; 3], Part::Times).u64(), Err(Fault::Truncated(Part::Times))));
        assert!(matches!(Cursor::new(&[0xff; 10], Part::Times).u64(), Err(Fault::Malformed(Part::Times))));
        assert!(matches!(Cursor::new(&[0xff; 11], Part::Times).u64(), Err(Fault::Malformed(Part::Times))));
        assert!(matches!(
            Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0x7f], Part::Times).u32(),
            Err(Fault::Malformed(Part::Times))
        ));
    }

    #[test]
    fn zigzag_is_its_own_story() {
        for value in [0, -1, 1, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        assert_eq!(zigzag(-1), 1);
        assert_eq!(zigzag(1), 2);
    }
}
