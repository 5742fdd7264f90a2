//! Parses quantities in settings (`30d`, `90m`, `512MiB`, `10GB`), with the text of their errors.

use memctl_model::quantity;

/// A text that is not a valid quantity.
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

/// The nanoseconds of a duration such as `45s`, `90m`, `12h` or `30d`.
///
/// # Errors
/// The text is not such a duration.
pub fn duration_ns(text: &str) -> Result<u64, QuantityError> {
    quantity::duration_ns(text).map_err(|_| QuantityError::new(text, "a duration such as 45s, 90m, 12h or 30d"))
}

/// The bytes of a size such as `512B`, `64MiB`, `10GB` or `1TiB`.
///
/// # Errors
/// The text is not such a size.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    quantity::bytes(text).map_err(|_| QuantityError::new(text, "a number of bytes such as 64MiB, 10GB or 1TiB"))
}
