//! Quantities in settings: `30d`, `90m`, `512MiB`, `10GB`, with the text of their errors.

use memctl_model::quantity;

/// A text that is not such a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct QuantityError {
    text: String,
    what: &'static str,
}

impl QuantityError {
    fn new(text: &str, what: &'static str) -> Self {
        Self { text: text.chars().take(40).collect(), what }
    }
}

/// Nanoseconds of `45s`, `90m`, `12h`, `30d`.
///
/// # Errors
/// Anything else.
pub fn duration_ns(text: &str) -> Result<u64, QuantityError> {
    quantity::duration_ns(text).map_err(|_| QuantityError::new(text, "a duration such as 45s, 90m, 12h or 30d"))
}

/// Bytes of `512B`, `64MiB`, `10GB`, `1TiB`.
///
/// # Errors
/// Anything else.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    quantity::bytes(text).map_err(|_| QuantityError::new(text, "a number of bytes such as 64MiB, 10GB or 1TiB"))
}
