//! Finds the source line of an instruction from a code object's raw table (`co_linetable`), without Python.
//!
//! CPython 3.10 has the table of PEP 626. 3.11 to 3.15 have the location table of PEP 657. Other versions give `None`.
//! Guarantees: one pass, no allocation, and `None` for a table that is truncated, overflows or has a line below 0.
//! Formats: CPython's `Objects/lnotab_notes.txt` (3.10), `Objects/locations.md` (3.11), `InternalDocs/code_objects.md` (3.14 and later).

/// Bytes of one code unit (`_Py_CODEUNIT`). PEP 657 counts instructions and their caches in code units.
const CODE_UNIT_BYTES: u64 = 2;

/// The line of the instruction at `lasti_bytes` (as Python's `f_lasti`). `None` if the table has no line for it, ends
/// before it, or is not valid for this Python version.
///
/// `version` is `(major, minor)`; `first_line` is `co_firstlineno`.
#[must_use]
pub fn line(version: (u8, u8), first_line: u32, table: &[u8], lasti_bytes: u32) -> Option<u32> {
    match version {
        (3, 10) => line_626(first_line, table, lasti_bytes),
        (3, 11..=15) => line_657(first_line, table, lasti_bytes),
        _ => None,
    }
}

/// Reads the table of PEP 626. It has pairs of bytes: the number of bytes of code of a range, and the signed difference
/// of its line from the previous one.
fn line_626(first_line: u32, table: &[u8], lasti_bytes: u32) -> Option<u32> {
    /// The difference that means "these instructions have no line". The next difference is relative to the line before
    /// them.
    const NO_LINE: i8 = -128;
    let (mut line, mut end) = (i64::from(first_line), 0u64);
    for pair in table.chunks_exact(2) {
        let (bytes, difference) = (pair[0], pair[1] as i8);
        end += u64::from(bytes);
        if difference != NO_LINE {
            line += i64::from(difference);
        }
        if u64::from(lasti_bytes) < end {
            return if difference == NO_LINE { None } else { u32::try_from(line).ok() };
        }
    }
    None
}

/// Reads the table of PEP 657. Its entries have variable length. The first byte has its highest bit set, a code, and
/// the number of code units that the entry covers. No other byte has that bit. The columns are not needed, so the
/// search for the next such byte skips them.
fn line_657(first_line: u32, table: &[u8], lasti_bytes: u32) -> Option<u32> {
    let (mut line, mut end) = (i64::from(first_line), 0u64);
    let mut rest = table;
    while let [first, tail @ ..] = rest {
        if first & 0x80 == 0 {
            return None;
        }
        let columns = tail.iter().position(|byte| byte & 0x80 != 0).unwrap_or(tail.len());
        let (body, next) = tail.split_at(columns);
        let difference = match first >> 3 & 15 {
            15 => None,
            // Entries with full columns, and entries without columns.
            14 | 13 => Some(signed(body)?),
            // The same line, the next line, or the line after that.
            code @ 10..=12 => Some(i64::from(code - 10)),
            // The same line, in the short form.
            _ => Some(0),
        };
        line = line.checked_add(difference.unwrap_or(0))?;
        end += u64::from((first & 7) + 1) * CODE_UNIT_BYTES;
        if u64::from(lasti_bytes) < end {
            return difference.and_then(|_| u32::try_from(line).ok());
        }
        rest = next;
    }
    None
}

/// A signed number at the beginning of `bytes`. Each byte has six bits, lowest first, and bit 6 means that more bytes
/// follow. The lowest bit of the number is the sign.
fn signed(bytes: &[u8]) -> Option<i64> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate() {
        // A difference of lines fits into 32 bits and a sign. CPython's tables have no larger one.
        if at == 6 {
            return None;
        }
        value |= u64::from(byte & 63) << (6 * at);
        if byte & 64 == 0 {
            let size = (value >> 1) as i64;
            return Some(if value & 1 == 1 { -size } else { size });
        }
    }
    None
}
