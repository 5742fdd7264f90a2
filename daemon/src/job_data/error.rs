//! The reasons why a request fails, and the table that maps them to gRPC status codes.

use memctl_proto::WireError;
use memctl_proto::chunk::ChunkError;
use tonic::Status;

use crate::store::{Store, StoreError};

/// Limit of the bytes of a message.
const MESSAGE_MAX: usize = 2 << 10;

/// The reason why a request fails.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no such job.
    #[error("no job {name:?} here{}; `memctl jobs` lists the jobs", meant(.like))]
    NoJob {
        /// The requested job.
        name: String,
        /// Similar names.
        like: Vec<String>,
    },
    /// The run has no such attempt.
    #[error("job {job} has no attempt {attempt}; its last attempt is {last}, and without --attempt this one is used")]
    NoAttempt {
        /// The job.
        job: String,
        /// The requested attempt.
        attempt: u32,
        /// Its last attempt.
        last: u32,
    },
    /// Nothing is stored at all.
    #[error("no job is stored yet; `memctl import PATH --job NAME` imports one, `memctl demo` shows one")]
    Empty,
    /// The job has no such rank.
    #[error("job {job} has no rank {rank}; it has {known}")]
    NoRank {
        /// The job.
        job: String,
        /// The requested rank.
        rank: u32,
        /// The existing ranks.
        known: String,
    },
    /// The job has no such process.
    #[error("job {job} has no process {process:?}; it has {known}")]
    NoProcess {
        /// The job.
        job: String,
        /// The requested process.
        process: String,
        /// The existing processes.
        known: String,
    },
    /// No process of the selection uses such a device.
    #[error("job {job} uses no device {device} there; it uses {known}")]
    NoDevice {
        /// The job.
        job: String,
        /// The requested index.
        device: u32,
        /// The existing indexes.
        known: String,
    },
    /// The job has no such epoch.
    #[error("job {job} has no end of epoch {epoch}{known}")]
    NoEpoch {
        /// The job.
        job: String,
        /// The requested epoch.
        epoch: u32,
        /// The existing epochs.
        known: String,
    },
    /// The selection is empty.
    #[error("job {job} has no epoch end in that range; it has those of epochs {first} to {last}")]
    Nothing {
        /// The job.
        job: String,
        /// Its first epoch.
        first: u32,
        /// Its last epoch.
        last: u32,
    },
    /// Retention removed the data that the request needs.
    #[error("{what} is no longer stored: retention removed it; site tables and epoch ends are still there")]
    Expired {
        /// The data that was needed.
        what: String,
    },
    /// The job is being recorded, so it cannot be deleted.
    #[error("job {name} is being recorded; stop it first")]
    Recording {
        /// The job.
        name: String,
    },
    /// A running process cannot answer now.
    #[error("{0}")]
    NotNow(String),
    /// The daemon is busy with other requests.
    #[error("{0}")]
    Busy(String),
    /// The daemon's configuration forbids it.
    #[error("{0}")]
    Forbidden(String),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// Stored data cannot be decoded.
    #[error(
        "stored item {seq} of session {session} cannot be decoded ({reason}): `memctl check --deep` lists what is damaged, and a \
         backup or an export of the job has it again"
    )]
    Damaged {
        /// The session's key.
        session: i64,
        /// The item.
        seq: u64,
        /// The fault.
        reason: String,
    },
    /// The response would exceed its memory limit.
    #[error("{what} takes more than {bytes_max} bytes of memory; {remedy}")]
    TooLarge {
        /// The data that exceeds it.
        what: String,
        /// The limit.
        bytes_max: usize,
        /// The remedy.
        remedy: &'static str,
    },
    /// The daemon has a fault.
    #[error("internal error of the daemon: {0}")]
    Fault(String),
    /// An export that the daemon reads itself failed.
    #[error("{}", .0.message())]
    Export(Status),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn meant(like: &[String]) -> String {
    let quoted: Vec<String> = like.iter().map(|name| format!("{name:?}")).collect();
    if quoted.is_empty() { String::new() } else { format!(", did you mean {}?", quoted.join(" or ")) }
}

impl ReadError {
    pub(crate) fn damaged(session: i64, seq: u64, reason: impl ToString) -> Self {
        Self::Damaged { session, seq, reason: reason.to_string() }
    }

    pub(crate) fn wire(session: i64, seq: u64) -> impl Fn(WireError) -> Self {
        move |error| Self::damaged(session, seq, error)
    }

    /// The error of a chunk of events, which only decoding shows to be damaged.
    pub(crate) fn chunk(store: &dyn Store, session: i64, seq: u64) -> impl Fn(ChunkError) -> Self {
        move |error| {
            store.note_damaged(session, seq);
            Self::damaged(session, seq, error)
        }
    }

    /// The error of a decoder that does not start.
    pub(crate) fn decoder(error: ChunkError) -> Self {
        Self::Fault(error.to_string())
    }
}

impl From<ReadError> for Status {
    fn from(error: ReadError) -> Self {
        let mut message = error.to_string();
        // The message contains a name from the request, and gRPC sends messages in a header, whose size is limited.
        if message.len() > MESSAGE_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_MAX));
            message.push('…');
        }
        match error {
            ReadError::NoJob { .. } | ReadError::NoAttempt { .. } | ReadError::Empty => Self::not_found(message),
            ReadError::NoRank { .. }
            | ReadError::NoProcess { .. }
            | ReadError::NoDevice { .. }
            | ReadError::NoEpoch { .. }
            | ReadError::Nothing { .. } => Self::out_of_range(message),
            ReadError::Expired { .. } | ReadError::NotNow(_) => Self::failed_precondition(message),
            ReadError::Forbidden(_) => Self::permission_denied(message),
            ReadError::Recording { .. } => Self::aborted(message),
            ReadError::Invalid(_) => Self::invalid_argument(message),
            ReadError::Damaged { .. } => Self::data_loss(message),
            ReadError::TooLarge { .. } => Self::resource_exhausted(message),
            ReadError::Fault(_) => Self::internal(message),
            ReadError::Export(status) => status,
            ReadError::Store(error) if error.is_refusal() => Self::permission_denied(message),
            ReadError::Store(_) | ReadError::Busy(_) => Self::unavailable(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_does_not_make_a_message_that_no_client_takes() {
        let status = Status::from(ReadError::NoJob { name: "ä".repeat(100_000), like: Vec::new() });
        assert!(status.message().starts_with("no job") && status.message().len() < MESSAGE_MAX + 8);
    }
}
