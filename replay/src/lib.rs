//! PyTorch's CUDA caching allocator as a state machine: recorded requests, replayed under any settings and any limit.
//!
//! [`Follow`] takes a recording's events, makes requests of them and replays these under the recorded settings: every segment
//! event and every block's address is compared with what was recorded, from the first event. A [`Trial`] replays the same
//! requests under other settings or another limit; a [`SideBySide`] is one recording with all its trials, in one pass.
//! [`Conf`] is `PYTORCH_CUDA_ALLOC_CONF`, read as the allocator of a version reads it.
//!
//! Guarantees: pure and deterministic; no input makes it panic; memory in proportion to the live blocks and the segments, not to
//! the events. Rules and constants: c10/cuda/CUDACachingAllocator.cpp of torch 2.4 to 2.15.
//!
//! Refuses: to say more than bounds of `backend:cudaMallocAsync`, which packs inside the driver; and to know when an event on another stream would have
//! passed: a free that waited completes where it completed in the recording, or earlier when a replayed retry waits for it.

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
pub use side_by_side::{Ended, SideBySide};
pub use trial::{Ending, Outcome, Start, Trial};
