//! The messages of pprof's `profile.proto` (package `perftools.profiles`), with its field numbers.
//!
//! They are written by hand, because nine small messages are shorter than their generated form. Fields that memctl
//! never writes are left out. Every `i64` named as a text is an index into the table of strings.

use prost::Message;

/// A profile.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// What the values of a sample mean.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Programs; one is needed to say that names need no look-up.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Lines of code.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// Every text; the first is empty.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// The moment, ns since the Unix epoch.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// Remarks.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The value that is shown first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// The meaning of a value.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ValueType {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Its unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// Live memory of one stack with the same labels.
#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// Ids of locations, the innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// By sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Its labels.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label: a text, or a number with a unit.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Label {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Its text; 0 for a number.
    #[prost(int64, tag = "2")]
    pub str: i64,
    /// Its number.
    #[prost(int64, tag = "3")]
    pub num: i64,
    /// The unit of its number.
    #[prost(int64, tag = "4")]
    pub num_unit: i64,
}

/// A program.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Mapping {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Functions are known.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Files are known.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Lines are known.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
}

/// A line of code.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its program.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// One line.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A function and a line within it.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Line {
    /// The function's id.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// The line in its file; 0 if unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Function {
    /// From 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its name for the linker: the same.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Its file, as recorded.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
