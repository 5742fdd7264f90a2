//! The conditions of `memctl assert`: `stable`, `no-leak`, `no-oom`, `no-findings`, `peak<10GiB`,
//! `reserved/allocated<1.3`, `growth<1MiB/epoch`; and those about another job: `peak<=+2%`, `no-new-leak`.
//!
//! Guarantees: a typing error gives a sentence with an example. Refuses limits that cannot fail (a ratio above 1).

use std::fmt;
use std::str::FromStr;

use memctl_model::quantity::{self, QuantityError};

/// One condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// As it was typed.
    pub text: String,
    /// What it asks for.
    pub asks: Asks,
}

/// The requirement of a condition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asks {
    /// Nothing grows, and what is allocated at epoch ends stays.
    Stable,
    /// No leak was found.
    NoLeak,
    /// No request failed, whether the program went on or not.
    NoOom,
    /// Nothing was found of severity warning or above.
    NoFindings,
    /// No rank ever allocated more.
    Peak(Limit<u64>),
    /// No rank ever reserved more.
    PeakReserved(Limit<u64>),
    /// No rank reserved, at its peak, more than so many times what it allocated at its peak.
    ReservedToAllocated(Limit<f64>),
    /// No rank leaves a larger share of its reserved memory unused at epoch ends.
    Unused(Limit<f64>),
    /// No rank grows faster.
    Growth(Limit<u64>, Per),
    /// No rank allocated more than the other job's highest peak and this.
    PeakOver(Allowance),
    /// No rank reserved more than the other job's highest peak and this.
    PeakReservedOver(Allowance),
    /// No leak was found that the other job does not have.
    NoNewLeak,
}

impl Asks {
    /// Whether it compares with another job.
    #[must_use]
    pub const fn is_relative(&self) -> bool {
        matches!(self, Self::PeakOver(_) | Self::PeakReservedOver(_) | Self::NoNewLeak)
    }
}

/// How far a figure may exceed that of another job: `+2%`, `+512MiB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance(pub Tolerance);

impl Allowance {
    /// The highest value that is allowed.
    #[must_use]
    pub fn above(self, bytes: u64) -> u64 {
        match self.0 {
            Tolerance::Share(share) => bytes.saturating_add((bytes as f64 * share) as u64),
            Tolerance::Bytes(more) => bytes.saturating_add(more),
        }
    }
}

/// The unit of growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// An epoch.
    Epoch,
    /// A step.
    Step,
    /// A minute of wall-clock time.
    Minute,
}

impl Per {
    /// `epoch`, `step`, `minute`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Step => "step",
            Self::Minute => "minute",
        }
    }
}

/// An upper limit; `inclusive` allows the limit itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit<T> {
    /// The limit.
    pub most: T,
    /// Whether the limit itself is good enough (`<=`).
    pub inclusive: bool,
}

impl<T: PartialOrd> Limit<T> {
    /// Whether the value is within the limit.
    pub fn holds(&self, value: &T) -> bool {
        *value < self.most || (self.inclusive && *value == self.most)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text: String = text.split_whitespace().collect();
        let of_condition = |why: String| if why.contains(&text) { why } else { format!("condition `{text}`: {why}") };
        let asks = match text.as_str() {
            "stable" => Asks::Stable,
            "no-leak" => Asks::NoLeak,
            "no-oom" => Asks::NoOom,
            "no-findings" => Asks::NoFindings,
            "no-new-leak" => Asks::NoNewLeak,
            _ => compared(&text).map_err(of_condition)?,
        };
        Ok(Self { text, asks })
    }
}

/// The conditions, for a message.
pub const CONDITIONS: &str = "conditions are: stable, no-leak, no-oom, no-findings, 'peak<10GiB', 'peak_reserved<12GiB', \
     'reserved/allocated<1.3', 'growth<1MiB/epoch', 'unused<50%'; with --against also 'peak<=+2%', 'peak_reserved<=+2%' \
     and no-new-leak (in quotes, because of <)";

fn compared(text: &str) -> Result<Asks, String> {
    let unknown = || format!("unknown condition `{text}`; {CONDITIONS}");
    let (figure, limit) = text.split_once('<').ok_or_else(unknown)?;
    let inclusive = limit.starts_with('=');
    let limit = limit.strip_prefix('=').unwrap_or(limit);
    if let Some(more) = limit.strip_prefix('+') {
        let allowed = || more.parse().map(Allowance);
        return match figure {
            "peak" => Ok(Asks::PeakOver(allowed()?)),
            "peak_reserved" => Ok(Asks::PeakReservedOver(allowed()?)),
            _ => Err(unknown()),
        };
    }
    match figure {
        "peak" => Ok(Asks::Peak(Limit { most: bytes(limit)?, inclusive })),
        "peak_reserved" => Ok(Asks::PeakReserved(Limit { most: bytes(limit)?, inclusive })),
        "reserved/allocated" => Ok(Asks::ReservedToAllocated(Limit { most: factor(limit)?, inclusive })),
        "growth" => {
            let (most, per) = rate(limit)?;
            Ok(Asks::Growth(Limit { most, inclusive }, per))
        }
        // `fragmentation` is the former name. It was misleading, because most unused memory is cache, which serves
        // later requests.
        "unused" | "fragmentation" => Ok(Asks::Unused(Limit { most: ratio(limit)?, inclusive })),
        _ => Err(unknown()),
    }
}

/// `512MiB`, `1.5GiB`, `80GB`, `1048576B`: a number without a unit is an error, unless it is 0.
///
/// # Errors
/// Why the text is not a number of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    // A number above an exbibyte is a typing error.
    match quantity::bytes(text) {
        Ok(bytes) if bytes <= 1 << 60 => Ok(bytes),
        Err(QuantityError::NoUnit) => Err(format!("`{text}` has no unit; write {text}GiB, {text}MiB or {text}B")),
        Ok(_) | Err(QuantityError::Malformed) => {
            Err(format!("`{text}` is not a number of bytes; write it like 512MiB, 1.5GiB or 80GB"))
        }
    }
}

/// `1MiB/epoch`.
fn rate(text: &str) -> Result<(u64, Per), String> {
    let wrong = || format!("`{text}` is not a rate; write it like 1MiB/epoch, 512KiB/step or 10MiB/minute");
    let (amount, unit) = text.split_once('/').ok_or_else(wrong)?;
    let per = [Per::Epoch, Per::Step, Per::Minute].into_iter().find(|per| per.name() == unit).ok_or_else(wrong)?;
    Ok((bytes(amount)?, per))
}

/// `1.3`: at least 1, because reserved is never below allocated.
fn factor(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a factor of 1 or more; write it like 1.3");
    let value = text.parse::<f64>().map_err(|_| wrong())?;
    if value >= 1.0 && value.is_finite() { Ok(value) } else { Err(wrong()) }
}

/// `0.3` or `30%`.
fn ratio(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a share; write it like 0.3 or 30%");
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let value = number.parse::<f64>().map_err(|_| wrong())? / scale;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(wrong()) }
}

/// How far later epoch ends may exceed the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// A share of the first.
    Share(f64),
    /// So many bytes.
    Bytes(u64),
}

impl FromStr for Tolerance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.ends_with('%') {
            return ratio(text).map(Self::Share);
        }
        bytes(text).map(Self::Bytes).map_err(|why| format!("{why}; a share is written like 1%"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(text: &str) -> Result<Asks, String> {
        text.parse::<Condition>().map(|condition| condition.asks)
    }

    #[test]
    fn conditions() {
        assert_eq!(asks("stable"), Ok(Asks::Stable));
        assert_eq!(asks("no-leak"), Ok(Asks::NoLeak));
        assert_eq!(asks("peak<1.5GiB"), Ok(Asks::Peak(Limit { most: 3 << 29, inclusive: false })));
        assert_eq!(asks("peak <= 80GB"), Ok(Asks::Peak(Limit { most: 80_000_000_000, inclusive: true })));
        for name in ["unused<30%", "fragmentation<30%"] {
            assert_eq!(asks(name), Ok(Asks::Unused(Limit { most: 0.3, inclusive: false })));
        }
        assert_eq!(asks("peak_reserved<1GiB"), Ok(Asks::PeakReserved(Limit { most: 1 << 30, inclusive: false })));
        let ratio = Asks::ReservedToAllocated(Limit { most: 1.3, inclusive: true });
        assert_eq!(asks("reserved/allocated<=1.3"), Ok(ratio));
        assert_eq!(asks("growth<1MiB/epoch"), Ok(Asks::Growth(Limit { most: 1 << 20, inclusive: false }, Per::Epoch)));
        for wrong in ["growth<1MiB", "growth<1MiB/hour", "growth<x/step"] {
            assert!(asks(wrong).is_err(), "{wrong}");
        }
        for wrong in ["reserved/allocated<0.9", "reserved/allocated<NaN", "reserved/allocated<inf"] {
            assert!(asks(wrong).unwrap_err().contains("factor"), "{wrong}");
        }
        for wrong in ["", "leak", "peak", "peak>1GiB", "peaks<1GiB"] {
            assert!(asks(wrong).unwrap_err().contains("conditions are: stable"), "{wrong}");
        }
        for wrong in ["peak<", "peak<GiB", "peak<-1", "peak<1e9", "peak<1XB", "peak<9999999TiB", "peak<inf"] {
            assert!(asks(wrong).unwrap_err().contains("512MiB"), "{wrong}");
        }
        for forgotten in ["peak<20", "peak_reserved<=1.5", "growth<3/epoch"] {
            assert!(asks(forgotten).unwrap_err().contains("has no unit"), "{forgotten}");
        }
        assert!(asks("growth<0/epoch").is_ok());
        assert_eq!((asks("no-oom"), asks("no-findings")), (Ok(Asks::NoOom), Ok(Asks::NoFindings)));
        for wrong in ["fragmentation<2", "fragmentation<NaN", "fragmentation<-0.1", "fragmentation<"] {
            assert!(asks(wrong).unwrap_err().contains("0.3 or 30%"), "{wrong}");
        }
    }

    #[test]
    fn limits() {
        let below = Limit { most: 5_u64, inclusive: false };
        assert!(below.holds(&4) && !below.holds(&5));
        assert!(Limit { inclusive: true, ..below }.holds(&5));
        assert!(!Limit { most: 0.5, inclusive: true }.holds(&f64::NAN));
    }

    #[test]
    fn tolerances() {
        assert_eq!("2%".parse(), Ok(Tolerance::Share(0.02)));
        assert_eq!("16MiB".parse(), Ok(Tolerance::Bytes(16 << 20)));
        assert!("much".parse::<Tolerance>().unwrap_err().contains("a share is written like 1%"));
        assert!("5".parse::<Tolerance>().unwrap_err().contains("5MiB"), "a forgotten unit is no number of bytes");
    }
}
