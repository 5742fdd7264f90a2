//! Versions of torch, as far as their allocators differ.
//!
//! Guarantees: an unknown version counts as the newest known one.

/// A version of torch: 2.11 is `(2, 11)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The major number: 2 of 2.11.
    pub major: u32,
    /// The minor number: 11 of 2.11.
    pub minor: u32,
}

/// Which of equally large free blocks of a stream is taken (`BlockComparatorSize` and its successors in
/// CUDACachingAllocator.cpp).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ties {
    /// The block with the lowest address: until 2.11.
    #[default]
    LowestAddress,
    /// The block that was made first, by `cudaMalloc` or by splitting it off another: 2.12 (PR 178362).
    OlderBlock,
    /// The lowest block of the segment that was made first: from 2.13 on (PR 183591). A segment is made by
    /// `cudaMalloc`, an expandable one by the reservation of its addresses.
    OlderSegment,
}

impl Ties {
    /// Words for a sentence that begins with "of equally large blocks".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::LowestAddress => "the lowest is taken",
            Self::OlderBlock => "the one that was cut off first is taken",
            Self::OlderSegment => "that of the older segment is taken",
        }
    }
}

impl Version {
    const BY_BLOCK: Self = Self::of(2, 12);
    const BY_SEGMENT: Self = Self::of(2, 13);

    /// The newest version whose rules are known.
    pub const NEWEST: Self = Self::of(2, 15);

    /// The oldest version whose rules are known.
    pub const OLDEST: Self = Self::of(2, 4);

    /// A version by its numbers.
    #[must_use]
    pub const fn of(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The version that a session names, such as `torch 2.11.0+cu130`. A session may name only the oldest version that
    /// it can be, such as `torch >= 2.10`. If this is older than 2.12, the result is 2.11, because snapshots from 2.12
    /// on are recognisable: their events have pools. Otherwise the result is the newest version, although it may be
    /// 2.12 ([`Self::by_another_rule`]). It is also the newest if the session names none.
    #[must_use]
    pub fn of_framework(framework: Option<&str>) -> Self {
        match framework.and_then(Self::read) {
            Some(version) if Self::is_named(framework) => version,
            Some(oldest) if oldest < Self::BY_BLOCK => Self::of(2, 11),
            _ => Self::NEWEST,
        }
    }

    /// Which of equally large blocks this version takes.
    #[must_use]
    pub fn ties(self) -> Ties {
        match self {
            _ if self >= Self::BY_SEGMENT => Ties::OlderSegment,
            _ if self >= Self::BY_BLOCK => Ties::OlderBlock,
            _ => Ties::LowestAddress,
        }
    }

    /// The likeliest version that takes another of equally large blocks. It is tried if this version's rule does not
    /// reproduce a recording.
    #[must_use]
    pub fn by_another_rule(self) -> Self {
        if self.ties() == Ties::OlderSegment { Self::BY_BLOCK } else { Self::NEWEST }
    }

    /// Whether a session names its version. It may name only the oldest version that it can be, or none.
    #[must_use]
    pub fn is_named(framework: Option<&str>) -> bool {
        framework.is_some_and(|text| !text.contains(">=") && Self::read(text).is_some())
    }

    /// The oldest version that a session can have had. A setting that this version rejects may have been rejected.
    #[must_use]
    pub fn oldest_of_framework(framework: Option<&str>) -> Self {
        framework.and_then(Self::read).unwrap_or(Self::OLDEST)
    }

    fn read(text: &str) -> Option<Self> {
        let numbers = &text[text.find(|c: char| c.is_ascii_digit())?..];
        let mut parts = numbers.split(|c: char| !c.is_ascii_digit());
        Some(Self::of(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_names_its_version_or_a_bound() {
        assert_eq!(Version::of_framework(Some("torch 2.8.0+cu128")), Version::of(2, 8));
        assert_eq!(Version::of_framework(Some("torch >= 2.10")), Version::of(2, 11));
        assert_eq!(Version::of_framework(Some("torch >= 2.12")), Version::NEWEST);
        assert_eq!(Version::of_framework(Some("torch >= 2.12")).by_another_rule(), Version::of(2, 12));
        for version in [Version::of(2, 8), Version::of(2, 12), Version::NEWEST] {
            assert_ne!(version.ties(), version.by_another_rule().ties());
        }
        assert_eq!(Version::of_framework(Some("torch")), Version::NEWEST);
        assert_eq!(Version::of_framework(None), Version::NEWEST);
        assert_eq!(Version::oldest_of_framework(Some("torch >= 2.10")), Version::of(2, 10));
        assert_eq!(Version::oldest_of_framework(None), Version::OLDEST);
        assert!(Version::of(2, 8) < Version::of(2, 10));
    }
}
