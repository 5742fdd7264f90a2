//! Quantities as people write them: `30d`, `90m`, `512MiB`, `10GB`.
//!
//! Refuses: numbers without a unit where it is ambiguous, and values that overflow.

/// A text that is not such a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct QuantityError {
    text: String,
    what: &'static str,
}

/// Nanoseconds of `45s`, `90m`, `12h`, `30d`.
///
/// # Errors
/// Anything else.
pub fn duration_ns(text: &str) -> Result<u64, QuantityError> {
    const WHAT: &str = "a duration such as 45s, 90m, 12h or 30d";
    const SECOND: u64 = 1_000_000_000;
    parse(text, WHAT, &[("s", SECOND), ("m", 60 * SECOND), ("h", 3_600 * SECOND), ("d", 86_400 * SECOND)])
}

/// Bytes of `512B`, `64MiB`, `10GB`, `1TiB`.
///
/// # Errors
/// Anything else.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    const WHAT: &str = "a number of bytes such as 64MiB, 10GB or 1TiB";
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1_u64 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    parse(text, WHAT, &units)
}

fn parse(text: &str, what: &'static str, units: &[(&str, u64)]) -> Result<u64, QuantityError> {
    let error = || QuantityError { text: text.chars().take(40).collect(), what };
    let trimmed = text.trim();
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| trimmed.strip_suffix(name).map(|number| (number, *unit)))
        .ok_or_else(error)?;
    number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_understood_and_required() {
        assert_eq!(duration_ns("90m"), Ok(5_400_000_000_000));
        assert_eq!(duration_ns("30d"), Ok(2_592_000_000_000_000));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("10 GB"), Ok(10_000_000_000));
        assert_eq!(bytes("7B"), Ok(7));
        for wrong in ["", "12", "-1s", "1.5h", "999999999999d", "s", "5 fortnights"] {
            assert!(duration_ns(wrong).is_err(), "{wrong}");
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
