//! What questions are answered from.
//!
//! Guarantees: the store is the part that the caller sees.

use std::sync::Arc;

use memctl_answers::advice::Advice;
use memctl_answers::advising::Subject;
use memctl_proto::v1;

use super::replays::Replays;
use super::tiles::Tiles;
use crate::judge::Judge;
use crate::store::Store;
use crate::streams::Streams;

/// What questions are answered from.
pub struct Sources {
    /// The store, as the caller sees it.
    pub(super) store: Arc<dyn Store>,
    /// The same for the question's other job, if it has one: to a caller of all tenants it may be of another tenant.
    pub(super) other: Arc<dyn Store>,
    pub(super) streams: Streams,
    pub(super) judge: Judge,
    pub(super) tiles: Arc<Tiles>,
    pub(super) replays: Arc<Replays>,
}

impl Sources {
    /// What allocator settings would do for a device of this selection; `flags` reach the store.
    pub(super) async fn advice(&self, of: (&v1::Selection, &str), subject: Subject) -> Advice {
        self.replays.clone().advice(self.store.clone(), &self.streams, of, subject).await
    }
}
