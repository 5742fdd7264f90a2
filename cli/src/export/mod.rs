//! Writers of other tools' formats, fed part by part while the export streams in.
//!
//! Guarantees: memory is bounded by the live state and the dictionary of stacks, not by the number of events;
//! contradictory parts end the export with an error.

pub mod events_csv;
pub mod levels;
pub mod memory_viz;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
pub mod pprof;
pub mod window;

use memctl_proto::v1;
use memctl_snapshot::WriteError;

/// Why an export could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] std::io::Error),
    /// A part is invalid.
    #[error(transparent)]
    Wire(#[from] memctl_proto::WireError),
    /// A chunk does not decode.
    #[error(transparent)]
    Chunk(#[from] memctl_proto::chunk::ChunkError),
    /// Nothing stored is in the slice.
    #[error("no event lies in this part of the job")]
    Nothing,
    /// Parts arrived in an impossible order.
    #[error("the export came out of order: {0}")]
    Order(&'static str),
}

impl From<WriteError> for ExportError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Output(error) => Self::Output(error),
            WriteError::Order(words) => Self::Order(words),
        }
    }
}

/// Takes an export's parts in their order.
pub trait Sink {
    /// Whether it needs the measurements from outside the allocator.
    fn wants_samples(&self) -> bool {
        false
    }

    /// Takes the next part.
    ///
    /// # Errors
    /// See [`ExportError`].
    fn part(&mut self, part: v1::export_part::Body) -> Result<(), ExportError>;

    /// Writes the end of the file.
    ///
    /// # Errors
    /// See [`ExportError`].
    fn finish(&mut self) -> Result<(), ExportError>;
}
