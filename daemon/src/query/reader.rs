//! Answers questions about a store of this process for one reader, without a daemon.
//!
//! Guarantees: answers come from the same functions as those of the daemon's query service. The reader sees the whole
//! store. There is no permit, because one reader asks one question at a time.
//! Refuses: everything that needs a running process or that changes the store.

use std::sync::Arc;

use memctl_answers::jobs::Jobs;
use memctl_answers::processes::JobProcesses;
use memctl_proto::v1;
use tonic::Status;

use super::jobs::{self, Listing};
use super::question::Question;
use super::replays::Replays;
use super::sources::Sources;
use super::tiles::Tiles;
use crate::judge::{Judge, usual_memory};
use crate::store::{Scope, Store};
use crate::streams::Streams;

/// A reader of a store; see the module.
pub struct StoreReader {
    store: Arc<dyn Store>,
    streams: Streams,
    judge: Judge,
    tiles: Arc<Tiles>,
    replays: Arc<Replays>,
}

impl StoreReader {
    /// A reader of this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        let streams = Streams::default();
        let judge = Judge::new(store.clone(), streams.clone(), usual_memory());
        Self { store, streams, judge, tiles: Arc::new(Tiles::new()), replays: Arc::new(Replays::new()) }
    }

    /// Answers a question about a job.
    ///
    /// # Errors
    /// The same as for every request.
    pub async fn answer<Q: Question>(&self, question: Q) -> Result<Q::Answer, Status> {
        let from = Sources {
            store: self.store.clone(),
            other: self.store.clone(),
            streams: self.streams.clone(),
            judge: self.judge.clone(),
            tiles: self.tiles.clone(),
            replays: self.replays.clone(),
        };
        Ok(question.answer(from).await?)
    }

    /// The jobs with their verdicts, newest first.
    ///
    /// # Errors
    /// The same as for every request.
    pub async fn jobs(&self, request: v1::ListJobsRequest) -> Result<Jobs, Status> {
        let listing = Listing { store: &self.store, streams: &self.streams, judge: &self.judge };
        Ok(listing.jobs(&Scope::All, request).await?)
    }

    /// A job and its processes, without an analysis.
    ///
    /// # Errors
    /// The same as for every request.
    pub async fn job(&self, selection: &v1::Selection) -> Result<JobProcesses, Status> {
        Ok(jobs::job(&*self.store, &self.streams, selection).await?)
    }
}
