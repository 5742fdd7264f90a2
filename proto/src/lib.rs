//! Encodes the nouns of `memctl-model` as bytes: protobuf for the wire, and memctl's own format for events.
//!
//! - [`v1`]: code generated from `proto/memctl/v1/*.proto` (committed; a test regenerates and compares).
//! - [`otlp`]: the messages of OpenTelemetry that the daemon sends, generated likewise.
//! - [`convert`]: conversions between model and wire. Encoding never fails. Decoding checks everything that a sender
//!   may have forged.
//! - [`item`]: the content of an item, packed and unpacked within limits.
//! - [`chunk`]: the chunk codec.
//! - [`codec`]: the codec of calls, which checks a hello's size in memory before decoding.
//!
//! Refuses: any I/O and any runtime.

#![forbid(unsafe_code)]

pub mod chunk;
pub mod codec;
pub mod convert;
pub mod goaway;
pub mod item;
mod weight;

pub use convert::{StackDictionary, StackSender, WireError};

/// The protocol's version, sent in `Hello`.
pub const PROTOCOL_VERSION: u32 = 1;

/// Generated from `proto/memctl/v1/*.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod v1 {
    include!("generated/memctl.v1.rs");
}

/// The messages of OTLP that metrics need, generated from OpenTelemetry's protos.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod otlp {
    include!("generated/opentelemetry.rs");
}

/// The protos as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptor.bin");
