//! The messages of Perfetto's `Trace` that memctl writes, with its field numbers.
//!
//! They are written by hand, because the published file has thousands of messages. Each field has presence (`optional`),
//! as in Perfetto's proto2: a counter of 0 bytes is written.

use prost::{Enumeration, Message};

/// The clock of a trace's timestamps.
pub const CLOCK_BOOTTIME: u32 = 6;
/// The wall clock.
pub const CLOCK_REALTIME: u32 = 1;
/// Of a sequence's first packet: nothing earlier is referred to.
pub const INCREMENTAL_STATE_CLEARED: u32 = 1;

/// A packet of a trace.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// ns.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// Clocks that are compared.
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    /// The writer.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// An event.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// See [`INCREMENTAL_STATE_CLEARED`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// A track.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// The values of clocks at one moment.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    /// Each clock.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

/// A clock's value.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Clock {
    /// Which clock.
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// ns.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// A track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// Its name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// It is a process's.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// The track that it belongs to.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// It is a counter's.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// Its id.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Its name.
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
}

/// A counter.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct CounterDescriptor {
    /// What it counts.
    #[prost(enumeration = "Unit", optional, tag = "3")]
    pub unit: Option<i32>,
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// Unknown.
    Unspecified = 0,
    /// Bytes.
    SizeBytes = 3,
}

/// The begin or end of a slice, an instant, or the value of a counter.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// Details.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// Which of them.
    #[prost(enumeration = "Type", optional, tag = "9")]
    pub r#type: Option<i32>,
    /// Its track.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// Categories.
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    /// Its name.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// The value of a counter.
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
}

/// The kinds of track events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Type {
    /// Unknown.
    Unspecified = 0,
    /// A slice begins.
    SliceBegin = 1,
    /// The innermost open slice of the track ends.
    SliceEnd = 2,
    /// A moment.
    Instant = 3,
    /// A counter's value.
    Counter = 4,
}

/// A detail of an event.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// A number.
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    /// A text.
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    /// Its name.
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
}
