//! PyTorch's CUDA caching allocator as a state machine: recorded requests, replayed under any settings and any limit.
//!
//! [`Follow`] derives the requests from a recording's events and replays them under the recorded settings. It compares
//! every segment event and every block's address with the recording, from the first event on. A [`Trial`] replays the
//! same requests under other settings or another limit. A [`SideBySide`] replays one recording and all its trials in
//! one pass. [`Conf`] is `PYTORCH_CUDA_ALLOC_CONF`, parsed as the allocator of a given version parses it.
//!
//! Guarantees: pure and deterministic. No input makes it panic. Memory is proportional to the live blocks and the
//! segments, not to the events. The rules and constants are those of c10/cuda/CUDACachingAllocator.cpp of torch 2.4 to
//! 2.15.
//!
//! Limits: `backend:cudaMallocAsync` packs memory inside the driver, so only bounds are known for it. The time when an
//! event on another stream would have passed is unknown too. A free that waited completes where it completed in the
//! recording, or earlier if a replayed retry waits for it.

pub mod advice;
mod ahead;
pub mod allocator;
mod bounds;
pub mod fit;
mod follow;
mod names;
mod request;
pub mod settings;
mod side_by_side;
mod trial;

pub use ahead::{Ahead, Fails, Of, STEPS_AHEAD, Shortage};
pub use allocator::{Allocator, BlockId, Counts, DriverCall, DriverEvent, Hint, Limit, OutOfMemory};
pub use follow::{Agreement, Follow, KnownLimit};
pub use names::{BlockName, named};
pub use request::{Request, Requested};
pub use settings::{Conf, ConfError, Remark, Ties, Version};
pub use side_by_side::{SideBySide, TrialFailure};
pub use trial::{Ending, Outcome, Start, Trial};
