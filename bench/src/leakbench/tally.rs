//! Shares with their confidence intervals, medians, and the tables that show them.
//!
//! Guarantees: every share comes with its Wilson interval of 95 %. If there are no runs, the table shows this, and not
//! a share of 0.

use std::fmt::{self, Display};

use memctl_analysis::statistics::{self, wilson_interval};
use serde_json::{Value, json};

/// A share of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The number of runs with the property.
    pub hits: u64,
    /// The number of all runs.
    pub all: u64,
}

impl Share {
    /// The share of values that are true.
    pub fn count(what: impl IntoIterator<Item = bool>) -> Self {
        what.into_iter()
            .fold(Self::default(), |share, it| Self { hits: share.hits + u64::from(it), all: share.all + 1 })
    }

    /// The share itself; `None` if there are no runs.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        (self.all > 0).then(|| self.hits as f64 / self.all as f64)
    }

    /// The Wilson interval of 95 %.
    #[must_use]
    pub fn interval(self) -> (f64, f64) {
        wilson_interval(self.hits, self.all)
    }

    /// The share for the file of results.
    #[must_use]
    pub fn json(self) -> Value {
        let (low, high) = self.interval();
        json!({ "of": self.hits, "all": self.all, "share": self.value(), "low": low, "high": high })
    }

    /// The share and its interval in thousandths, for small shares.
    #[must_use]
    pub fn per_thousand(self) -> String {
        let (low, high) = self.interval();
        match self.value() {
            None => "–".to_owned(),
            Some(share) => format!("{:.1} ({:.1}–{:.1})", share * 1e3, low * 1e3, high * 1e3),
        }
    }
}

impl Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.interval();
        match self.value() {
            None => f.write_str("–"),
            Some(share) => write!(f, "{share:.3} ({low:.3}–{high:.3})"),
        }
    }
}

/// The value below which this share (0 to 1) of the values lies. The values may be in any order.
#[must_use]
pub fn quantile(values: &[u64], share: f64) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    statistics::quantile(&sorted, share)
}

/// The median and the value below which 95 % lie; `–` if there are no values.
#[must_use]
pub fn median_and_p95(values: &[u64], show: fn(u64) -> String) -> String {
    match (quantile(values, 0.5), quantile(values, 0.95)) {
        (Some(median), Some(most)) => format!("{} / {}", show(median), show(most)),
        _ => "–".to_owned(),
    }
}

/// Bytes for a table.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        _ if bytes < 1024.0 => format!("{bytes} B"),
        _ if bytes < 1048576.0 => format!("{:.1} KiB", bytes / 1024.0),
        _ if bytes < 1073741824.0 => format!("{:.1} MiB", bytes / 1048576.0),
        _ => format!("{:.1} GiB", bytes / 1073741824.0),
    }
}

/// A table in Markdown.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let mut text = line(&head) + &format!("|{}\n", "---|".repeat(head.len()));
    rows.iter().for_each(|row| text += &line(row));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_quantiles_have_their_known_values() {
        assert_eq!(Share { hits: 8, all: 10 }.to_string(), "0.800 (0.490–0.943)");
        assert_eq!(Share::default().to_string(), "–");
        assert_eq!(Share::count([true, false, true]), Share { hits: 2, all: 3 });
        assert_eq!(quantile(&[5, 1, 3], 0.5), Some(3));
        assert_eq!(quantile(&[5, 1, 3], 0.95), Some(5));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(bytes(1536), "1.5 KiB");
    }
}
