//! Converts between the model and the wire format. Each noun has its own file.
//!
//! Encoding (`From`/`to_wire`) never fails. Decoding (`TryFrom`/`from_wire`) trusts nothing. Missing parts, unknown
//! numbers, columns of unequal length and everything over `memctl_model::limits` are a [`WireError`] that names the
//! field.

pub mod holders;
pub mod keyframe;
pub mod marks;
pub mod samples;
pub mod session;
pub mod site_tables;
pub mod stacks;
mod state;

pub use stacks::{StackDictionary, StackSender};

/// An invalid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A required part is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A value outside its range.
    #[error("{field} is {value}, which is not valid: {expected}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// Valid values.
        expected: &'static str,
    },
    /// Columns of one table differ in length.
    #[error("columns of {table} differ in length: {left} and {right}")]
    Uneven {
        /// The table.
        table: &'static str,
        /// Rows of the first column.
        left: usize,
        /// Rows of another.
        right: usize,
    },
    /// There are more entries than allowed.
    #[error("{what}: {count} is over the limit of {limit}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The count.
        count: u64,
        /// The maximum count.
        limit: u64,
    },
    /// Bytes that are not the expected message.
    #[error("{what} does not decode: {reason}")]
    Undecodable {
        /// The expected message.
        what: &'static str,
        /// The decoder's message.
        reason: String,
    },
    /// A dictionary entry out of sequence.
    #[error("{what} {found} does not follow {expected}")]
    OutOfOrder {
        /// The kind of entry.
        what: &'static str,
        /// The id found.
        found: u32,
        /// The id expected.
        expected: u32,
    },
}

impl WireError {
    pub(crate) fn invalid(field: &'static str, value: impl ToString, expected: &'static str) -> Self {
        Self::Invalid { field, value: value.to_string(), expected }
    }
}

/// Returns an error unless all columns of a table have `rows` rows.
pub(crate) fn even(table: &'static str, rows: usize, columns: &[usize]) -> Result<(), WireError> {
    match columns.iter().find(|&&column| column != rows) {
        Some(&right) => Err(WireError::Uneven { table, left: rows, right }),
        None => Ok(()),
    }
}

/// Returns an error when `count` is over `limit`.
pub(crate) fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), WireError> {
    if count > limit {
        return Err(WireError::TooMany { what, count: count as u64, limit: limit as u64 });
    }
    Ok(())
}

/// Leaves out a column of zeros, because most recordings have no phases.
fn leave_out_zeros(column: &mut Vec<u32>) {
    if column.iter().all(|&value| value == 0) {
        column.clear();
    }
}

/// Restores a column that was left out.
fn fill_zeros(column: &mut Vec<u32>, rows: usize) {
    if column.is_empty() {
        column.resize(rows, 0);
    }
}

/// The phase with this number; `None` for 0.
fn phase(field: &'static str, number: u32) -> Result<Option<memctl_model::Phase>, WireError> {
    match memctl_model::Phase::of_number(number) {
        None if number != 0 => Err(WireError::invalid(field, number, "0 to 5")),
        phase => Ok(phase),
    }
}
