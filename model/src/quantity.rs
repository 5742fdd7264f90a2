//! Quantities as people write them: `30d`, `90m`, `512MiB`, `1.5GiB`, `10 GB`.
//!
//! Numbers without a unit, signs, and values that overflow are rejected. The callers describe the correct form.

/// Why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is only a number.
    #[error("it has no unit")]
    NoUnit,
    /// It is not a number with one of the units, or it is too large.
    #[error("it is not a number with a unit")]
    Malformed,
}

/// Nanoseconds of `45s`, `90m`, `12h`, `30d`: a whole number and a unit in lower case (`M` does not mean months).
///
/// # Errors
/// Anything else.
pub fn duration_ns(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(QuantityError::Malformed),
    };
    let whole = number.parse::<u64>().ok();
    whole.and_then(|number| number.checked_mul(seconds * 1_000_000_000)).ok_or(QuantityError::Malformed)
}

/// Bytes of `512B`, `64MiB`, `1.5GiB`, `10GB`, with units in any case; rounded to whole bytes.
///
/// # Errors
/// Anything else.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text)?;
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(QuantityError::Malformed),
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit),
        Err(_) => {
            let bytes = number.parse::<f64>().ok().map(|number| (number * unit as f64).round());
            bytes.filter(|&bytes| bytes < u64::MAX as f64).map(|bytes| bytes as u64)
        }
    };
    bytes.ok_or(QuantityError::Malformed)
}

/// The digits, which may contain a decimal point, and the unit.
fn split(text: &str) -> Result<(&str, &str), QuantityError> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let number = number.trim_end();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(QuantityError::Malformed);
    }
    if unit.is_empty() { Err(QuantityError::NoUnit) } else { Ok((number, unit)) }
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
        assert_eq!(bytes("1.5gib"), Ok(3 << 29));
        assert_eq!(bytes("18446744073709551615B"), Ok(u64::MAX));
        assert_eq!(bytes("7B"), Ok(7));
        for wrong in ["", "-1s", "1.5h", "1.5.1B", ".B", "999999999999d", "99999999TiB", "s", "5 fortnights", "5M"] {
            assert_eq!(duration_ns(wrong), Err(QuantityError::Malformed), "{wrong}");
            assert_eq!(bytes(wrong), Err(QuantityError::Malformed), "{wrong}");
        }
        assert_eq!([duration_ns("12"), bytes("1.5")], [Err(QuantityError::NoUnit); 2]);
    }
}
