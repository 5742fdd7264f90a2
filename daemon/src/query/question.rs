//! Questions about one job: the part that each is about, and the function that answers it.
//!
//! Guarantees: gRPC and HTTP requests use the same questions and the same functions. Every answer is a type of the
//! crate `answers`.

use std::future::Future;

use memctl_answers::anatomy::Anatomy;
use memctl_answers::blocks::Blocks;
use memctl_answers::classes::Classes;
use memctl_answers::diagnose::Diagnosis;
use memctl_answers::diff::Diff;
use memctl_answers::fit::Fit;
use memctl_answers::frag::Fragmentation;
use memctl_answers::ledger::Ledger;
use memctl_answers::need::Need;
use memctl_answers::oom::Oom;
use memctl_answers::profile::Profile;
use memctl_answers::report::Report;
use memctl_answers::sites::Sites;
use memctl_answers::step_memory::StepMemory;
use memctl_answers::tile::Tile;
use memctl_answers::timeline::Timeline;
use memctl_answers::what_if::WhatIf;
use memctl_proto::v1;

use super::ledger::LedgerQuestion;
use super::moment::At;
use super::replays::{SizesQuery, Wanted};
use super::sources::Sources;
use super::step_memory::StepMemoryQuestion;
use super::tiles::Place;
use super::timeline::{Floors, WhichStep};
use super::{
    advice, anatomy, blocks, classes, diagnosis, fit, ledger, need, profile, report, sites, step_memory, timeline,
    what_if,
};
use crate::job_data::ReadError;

/// A question about one job; see the module.
pub trait Question: Send + Sync + 'static {
    /// The type of its answer.
    type Answer: Send + 'static;

    /// The part of a job that it is about; `None` means the newest job.
    fn selection(&self) -> Option<&v1::Selection>;

    /// The part of another job that it compares with.
    fn other(&self) -> Option<&v1::Selection> {
        None
    }

    /// Answers the question.
    fn answer(self, from: Sources) -> impl Future<Output = Result<Self::Answer, ReadError>> + Send;
}

impl Question for v1::ReportRequest {
    type Answer = Report;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, Sources { store, streams, judge, .. }: Sources) -> Result<Report, ReadError> {
        report::report(&store, &streams, &judge, self).await
    }
}

impl Question for v1::TimelineRequest {
    type Answer = Timeline;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<Timeline, ReadError> {
        timeline::timeline(&*store, &streams, self, Floors::Left).await
    }
}

impl Question for v1::SitesRequest {
    type Answer = Sites;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<Sites, ReadError> {
        sites::sites(&*store, &streams, self).await
    }
}

impl Question for v1::FragmentationRequest {
    type Answer = Fragmentation;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, from: Sources) -> Result<Fragmentation, ReadError> {
        advice::fragmentation(&from, self).await
    }
}

impl Question for v1::OomRequest {
    type Answer = Oom;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, from: Sources) -> Result<Oom, ReadError> {
        advice::oom(&from, self).await
    }
}

impl Question for v1::DiagnosisRequest {
    type Answer = Diagnosis;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, from: Sources) -> Result<Diagnosis, ReadError> {
        diagnosis::diagnosis(&from, self).await
    }
}

impl Question for v1::WhatIfRequest {
    type Answer = WhatIf;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, from: Sources) -> Result<WhatIf, ReadError> {
        what_if::what_if(&from, self).await
    }
}

impl Question for v1::NeedRequest {
    type Answer = Need;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, from: Sources) -> Result<Need, ReadError> {
        need::need(&from, self).await
    }
}

impl Question for v1::FitRequest {
    type Answer = Fit;

    fn selection(&self) -> Option<&v1::Selection> {
        self.recordings.first()?.selection.as_ref()
    }

    fn other(&self) -> Option<&v1::Selection> {
        self.recordings.get(1)?.selection.as_ref()
    }

    async fn answer(self, from: Sources) -> Result<Fit, ReadError> {
        fit::fit(&from, self).await
    }
}

impl Question for v1::ProfileRequest {
    type Answer = Profile;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, from: Sources) -> Result<Profile, ReadError> {
        profile::profile(&from, self).await
    }
}

/// What differs between two runs: see `answers/src/diff/`.
pub struct DiffQuestion {
    /// The first run.
    pub before: v1::Selection,
    /// The second run.
    pub after: v1::Selection,
    /// Changes up to this size are not reported.
    pub ignored_bytes: u64,
}

impl Question for DiffQuestion {
    type Answer = Diff;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.after)
    }

    fn other(&self) -> Option<&v1::Selection> {
        Some(&self.before)
    }

    async fn answer(self, from: Sources) -> Result<Diff, ReadError> {
        let of = |selection| v1::ProfileRequest { selection: Some(selection) };
        let after = profile::profile(&from, of(self.after)).await?;
        let before = Sources { store: from.other.clone(), ..from };
        let before = profile::profile(&before, of(self.before)).await?;
        Ok(Diff::new((&before.job, &before), (&after.job, &after), self.ignored_bytes))
    }
}

impl Question for v1::LedgerRequest {
    type Answer = Ledger;

    fn selection(&self) -> Option<&v1::Selection> {
        self.selection.as_ref()
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<Ledger, ReadError> {
        ledger::ledger(&*store, &streams, LedgerQuestion::from(self)).await
    }
}

impl Question for LedgerQuestion {
    type Answer = Ledger;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.selection)
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<Ledger, ReadError> {
        ledger::ledger(&*store, &streams, self).await
    }
}

/// A timeline with the floor of each device.
pub struct CourseQuestion(pub v1::TimelineRequest);

impl Question for CourseQuestion {
    type Answer = Timeline;

    fn selection(&self) -> Option<&v1::Selection> {
        self.0.selection.as_ref()
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<Timeline, ReadError> {
        timeline::timeline(&*store, &streams, self.0, Floors::Shown).await
    }
}

/// When a step of an epoch ended, in nanoseconds since the Unix epoch.
pub struct StepEndQuestion {
    /// One process.
    pub selection: v1::Selection,
    /// The epoch.
    pub epoch: u32,
    /// Its step.
    pub which: WhichStep,
}

impl Question for StepEndQuestion {
    type Answer = u64;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.selection)
    }

    async fn answer(self, Sources { store, .. }: Sources) -> Result<u64, ReadError> {
        timeline::step_end(&*store, &self.selection, self.epoch, self.which).await
    }
}

/// Live memory at the peak of one device: see `query/anatomy.rs`.
pub struct AnatomyQuestion(pub v1::Selection);

impl Question for AnatomyQuestion {
    type Answer = Anatomy;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.0)
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<Anatomy, ReadError> {
        anatomy::anatomy(&*store, &streams, &self.0).await
    }
}

/// Live memory by class over time: see `query/classes.rs`.
pub struct ClassesQuestion(pub v1::Selection);

impl Question for ClassesQuestion {
    type Answer = Classes;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.0)
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<Classes, ReadError> {
        classes::classes(&*store, &streams, &self.0).await
    }
}

/// A stretch of one device's allocator: see `query/blocks.rs`.
pub struct BlocksQuestion {
    /// One process.
    pub selection: v1::Selection,
    /// The middle of the stretch.
    pub at: At,
}

impl Question for BlocksQuestion {
    type Answer = Blocks;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.selection)
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<Blocks, ReadError> {
        blocks::blocks(&*store, &streams, &self.selection, self.at).await
    }
}

impl Question for StepMemoryQuestion {
    type Answer = StepMemory;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.selection)
    }

    async fn answer(self, Sources { store, streams, .. }: Sources) -> Result<StepMemory, ReadError> {
        step_memory::step_memory(&*store, &streams, self).await
    }
}

/// A tile of one device's timeline: see `query/tiles/`.
pub struct TileQuestion {
    /// One process.
    pub selection: v1::Selection,
    /// The tile's position.
    pub place: Place,
    /// The session whose earlier tiles the client has.
    pub session: Option<String>,
}

impl Question for TileQuestion {
    type Answer = Tile;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.selection)
    }

    async fn answer(self, Sources { store, tiles, .. }: Sources) -> Result<Tile, ReadError> {
        tiles.tile(&*store, &self.selection, self.place, self.session.as_deref()).await
    }
}

impl Question for Wanted {
    type Answer = WhatIf;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.selection)
    }

    async fn answer(self, Sources { store, streams, replays, .. }: Sources) -> Result<WhatIf, ReadError> {
        replays.what_if(store, &streams, self).await
    }
}

impl Question for SizesQuery {
    type Answer = Fit;

    fn selection(&self) -> Option<&v1::Selection> {
        Some(&self.selection)
    }

    async fn answer(self, Sources { store, streams, replays, .. }: Sources) -> Result<Fit, ReadError> {
        replays.fit(store, &streams, self).await
    }
}
