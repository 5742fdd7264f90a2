//! Versions of torch, as far as allocators differ.
//!
//! Guarantees: an unknown version is the newest that is known. Refuses nothing.

/// A version of torch: 2.11 is `(2, 11)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2 of 2.11.
    pub major: u32,
    /// 11 of 2.11.
    pub minor: u32,
}

impl Version {
    /// The newest whose rules are known.
    pub const NEWEST: Self = Self::of(2, 15);

    /// The oldest whose rules are known.
    pub const OLDEST: Self = Self::of(2, 4);

    /// The first that takes a block of the older segment where several are equally large; those before take the lowest address.
    /// (`BlockComparatorSizeCounterAddress` in CUDACachingAllocator.cpp, PR 183591: a segment has its number from `cudaMalloc`, an
    /// expandable one from the reservation of its addresses.)
    pub const OLDER_SEGMENTS_FIRST: Self = Self::of(2, 13);

    /// The last before that.
    const NEWEST_BY_ADDRESS: Self = Self::of(2, 12);

    /// A version by its numbers.
    #[must_use]
    pub const fn of(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The version that a session names, `torch 2.11.0+cu130`. Where it names only the oldest that it can be, `torch >= 2.10`, the
    /// newest before the next that a snapshot shows: from 2.13 on they have pinned memory in them (`host_segments`). The newest
    /// where it names none.
    #[must_use]
    pub fn of_framework(framework: Option<&str>) -> Self {
        match framework.and_then(Self::read) {
            Some(version) if Self::is_named(framework) => version,
            Some(oldest) if oldest < Self::OLDER_SEGMENTS_FIRST => Self::NEWEST_BY_ADDRESS,
            _ => Self::NEWEST,
        }
    }

    /// The version whose rule for equally large blocks is the other one.
    #[must_use]
    pub fn by_the_other_rule(self) -> Self {
        if self < Self::OLDER_SEGMENTS_FIRST { Self::NEWEST } else { Self::NEWEST_BY_ADDRESS }
    }

    /// Whether a session names its version, and not only the oldest that it can be.
    #[must_use]
    pub fn is_named(framework: Option<&str>) -> bool {
        framework.is_some_and(|text| !text.contains(">=") && Self::read(text).is_some())
    }

    /// The oldest version that a session can have had: what this one refuses may have been refused.
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
        assert_eq!(Version::of_framework(Some("torch >= 2.10")), Version::of(2, 12));
        assert_eq!(Version::of_framework(Some("torch >= 2.13")), Version::NEWEST);
        assert_eq!(Version::of(2, 8).by_the_other_rule(), Version::NEWEST);
        assert_eq!(Version::NEWEST.by_the_other_rule(), Version::of(2, 12));
        assert_eq!(Version::of_framework(Some("torch")), Version::NEWEST);
        assert_eq!(Version::of_framework(None), Version::NEWEST);
        assert_eq!(Version::oldest_of_framework(Some("torch >= 2.10")), Version::of(2, 10));
        assert_eq!(Version::oldest_of_framework(None), Version::OLDEST);
        assert!(Version::of(2, 8) < Version::of(2, 10));
    }
}
