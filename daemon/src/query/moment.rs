//! The moments of a device that a request can name.

/// A moment of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// When allocated bytes were highest.
    Peak,
    /// The end of the recording.
    End,
    /// The end of an epoch.
    EpochEnd(u32),
    /// A time, in nanoseconds since the Unix epoch.
    Time(u64),
    /// After this many events.
    Event(u64),
}
