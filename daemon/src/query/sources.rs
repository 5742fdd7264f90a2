//! The data and services that answers are computed from.
//!
//! Guarantees: the store is restricted to the part that the caller may see.

use std::sync::Arc;

use memctl_answers::advice::Advice;
use memctl_answers::advising::Subject;
use memctl_proto::v1;

use super::replays::Replays;
use super::tiles::Tiles;
use crate::judge::Judge;
use crate::store::Store;
use crate::streams::Streams;

/// The data and services that answers are computed from.
pub struct Sources {
    /// The part of the store that the caller may see.
    pub(super) store: Arc<dyn Store>,
    /// The same for the question's other job, if it has one. For a caller of all tenants, that job may belong to
    /// another tenant.
    pub(super) other: Arc<dyn Store>,
    pub(super) streams: Streams,
    pub(super) judge: Judge,
    pub(super) tiles: Arc<Tiles>,
    pub(super) replays: Arc<Replays>,
}

impl Sources {
    /// The effect of allocator settings on a device of this selection. `flags` are the command-line flags to reach the
    /// store.
    pub(super) async fn advice(&self, of: (&v1::Selection, &str), subject: Subject) -> Advice {
        self.replays.clone().advice(self.store.clone(), &self.streams, of, subject).await
    }
}
