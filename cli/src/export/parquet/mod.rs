//! A job as a folder of Parquet files: sites, epochs, findings, counters, and on request events.
//!
//! Guarantees: memory is bounded, whatever the number of events. Columns have the names and units of the JSON answers
//! (docs/formats.md). Only the feature `parquet` has this format, because its crate would lengthen every build.

pub mod answers;
pub mod stream;
pub mod table;
