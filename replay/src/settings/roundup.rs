//! `roundup_power2_divisions`: one number for all sizes, or a list by size.
//!
//! Guarantees: the result is PyTorch's table. The first entry also fills the smaller sizes, sizes between two entries
//! are not rounded, and `>` fills the sizes above the last entry. A value that PyTorch rejects gives an error.

use super::lexer::Words;
use super::parse::ConfError;

const KEY: &str = "roundup_power2_divisions";

/// Parses the value behind the key and its colon.
pub(super) fn read(words: &mut Words) -> Result<[u32; 16], ConfError> {
    if !words.accept("[") {
        let value = words.next().unwrap_or_default();
        let divisions = number(&value)?;
        if !divisions.is_power_of_two() {
            return Err(refused(&value, "must be a power of two"));
        }
        return Ok([divisions; 16]);
    }
    let mut table = [0; 16];
    let mut last = None;
    loop {
        let bound = words.next().unwrap_or_default();
        if !words.accept(":") {
            return Err(ConfError::Expected { expected: ":", after: bound });
        }
        let value = words.next().unwrap_or_default();
        let divisions = number(&value)?;
        if divisions != 0 && !divisions.is_power_of_two() {
            return Err(refused(&value, "must be 0 or a power of two"));
        }
        if bound == ">" {
            let from = last.map_or(0, |last: usize| last + 1);
            table[from..].fill(divisions);
            last = Some(table.len() - 1);
        } else {
            let mebibytes = number(&bound)?;
            if !mebibytes.is_power_of_two() {
                return Err(refused(&bound, "sizes are powers of two, in MiB"));
            }
            let index = (mebibytes.ilog2() as usize).min(table.len() - 1);
            if last.is_none() {
                table[..index].fill(divisions);
            }
            table[index] = divisions;
            last = Some(index);
        }
        if words.accept("]") {
            return Ok(table);
        }
        if !words.accept(",") {
            return Err(ConfError::Expected { expected: "]", after: value });
        }
    }
}

fn number(text: &str) -> Result<u32, ConfError> {
    text.parse().map_err(|_| refused(text, "must be a whole number"))
}

fn refused(value: &str, why: &'static str) -> ConfError {
    ConfError::Refused { key: KEY.to_owned(), value: value.to_owned(), why: why.to_owned() }
}
