//! Bytes for people: binary units, three significant digits, no scientific notation.

use std::fmt;

/// Shows a number of bytes: `512 B`, `49.1 MiB`, `3.22 GiB`; negative ones with a minus sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanBytes(pub i64);

impl HumanBytes {
    /// From an unsigned number of bytes; it saturates beyond 8 EiB.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        Self(i64::try_from(bytes).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let magnitude = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        if magnitude < 1024 {
            return f.pad(&format!("{sign}{magnitude} B"));
        }
        let mut value = magnitude as f64 / 1024.0;
        let mut unit = 0;
        // 999.5 would be printed as 1000; the next unit is more readable.
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = if value >= 99.95 {
            0
        } else if value >= 9.995 {
            1
        } else {
            2
        };
        f.pad(&format!("{sign}{value:.decimals$} {}", UNITS[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::HumanBytes;

    #[test]
    fn three_digits_and_a_unit() {
        let shown = |n: i64| HumanBytes(n).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1024), "1.00 KiB");
        assert_eq!(shown(3 << 20), "3.00 MiB");
        assert_eq!(shown(-(49 << 20) - 104_858), "-49.1 MiB");
        assert_eq!(shown(1023 << 20), "1.00 GiB");
        assert_eq!(shown(i64::MAX), "8.00 EiB");
    }
}
