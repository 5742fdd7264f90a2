//! Views of one job as JSON: the command line's `-o json` output, and data that only the page uses (flame graphs, heat
//! maps, sparklines, blocks, the memory within a step, classes, the anatomy of a peak). `/api/v1/jobs/JOB/VIEW` and
//! `Page.Ask` return them.
//!
//! Guarantees: an answer comes from the same functions as over gRPC, for the same caller. A replay is of the requested
//! process and has the requested limit. Without one, it has the limit that the first failed request of the process
//! reveals. If that is an interval and one limit is needed, its lower end is used.

use memctl_analysis::display_threshold::CHANGE_BYTES;
use memctl_answers::diagnose::Diagnosis;
use memctl_answers::dossier::flame::Flame;
use memctl_answers::dossier::table::SiteClasses;
use memctl_answers::format::json;
use memctl_answers::heat::Heat;
use memctl_answers::ledger::Ledger;
use memctl_answers::oom::{Failed, Oom};
use memctl_answers::processes::JobProcesses;
use memctl_answers::replaying::Limit;
use memctl_answers::report::Report;
use memctl_answers::sites::Sites;
use memctl_answers::sparkline::Sparkline;
use memctl_answers::timeline::Timeline;
use memctl_proto::v1;
use memctl_replay::fit::NUMBER_MAX;
use serde::Serialize;
use tonic::Status;

use super::params::{Moment, Params};
use super::trouble::Trouble;
use crate::query::{
    AnatomyQuestion, At, BlocksQuestion, ClassesQuestion, CourseQuestion, DiffQuestion, LedgerQuestion, Place,
    Question, SizesQuery, StepAt, StepEndQuestion, StepMemoryQuestion, StoreReader, TileQuestion, Wanted, WhichStep,
};
#[cfg(not(target_family = "wasm"))]
use {
    super::Room,
    super::api::{Answered, respond},
    crate::access::Caller,
    crate::query::QueryService,
    axum::extract::{Extension, Path, State},
    axum::http::Uri,
};

/// The default number of points of a timeline.
const POINTS: u32 = 500;
/// The number of points of a sparkline in the list of jobs.
const SPARKLINE: u32 = 60;

/// The names of all views: the values of `{view}` in `/api/v1/jobs/{job}/{view}`.
pub const VIEWS: [&str; 17] = [
    "query",
    "diagnose",
    "heat",
    "timeline",
    "sparkline",
    "sites",
    "ledger",
    "oom",
    "flame",
    "blocks",
    "step",
    "classes",
    "anatomy",
    "profile",
    "diff",
    "what-if",
    "fit",
];

/// Answers the questions of one caller.
pub(super) trait Answering: Sync {
    /// Answers a question about a job.
    fn answer<Q: Question>(&self, question: Q) -> impl Future<Output = Result<Q::Answer, Status>> + Send;

    /// A job and its processes.
    fn job(&self, selection: &v1::Selection) -> impl Future<Output = Result<JobProcesses, Status>> + Send;
}

/// A caller of the daemon's query service.
#[cfg(not(target_family = "wasm"))]
pub(super) struct Calling<'r> {
    pub(super) query: &'r QueryService,
    pub(super) caller: Caller,
}

#[cfg(not(target_family = "wasm"))]
impl Answering for Calling<'_> {
    async fn answer<Q: Question>(&self, question: Q) -> Result<Q::Answer, Status> {
        self.query.answer(&self.caller, question).await
    }

    async fn job(&self, selection: &v1::Selection) -> Result<JobProcesses, Status> {
        self.query.job(&self.caller, selection).await.map_err(Status::from)
    }
}

impl Answering for StoreReader {
    async fn answer<Q: Question>(&self, question: Q) -> Result<Q::Answer, Status> {
        Self::answer(self, question).await
    }

    async fn job(&self, selection: &v1::Selection) -> Result<JobProcesses, Status> {
        Self::job(self, selection).await
    }
}

/// Returns a view over HTTP.
#[cfg(not(target_family = "wasm"))]
pub async fn view(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path((job, view)): Path<(String, String)>,
    uri: Uri,
) -> Answered {
    let params = Params::of(&uri)?;
    let permit = room.permit(&caller).await?;
    let selection = params.selection(&job)?;
    let views = JobViews { from: &Calling { query: &room.query, caller }, selection, params: &params };
    Ok(respond(views.answer(&view).await?, permit))
}

/// The views of a part of a job.
pub(super) struct JobViews<'r, A> {
    pub(super) from: &'r A,
    pub(super) selection: v1::Selection,
    pub(super) params: &'r Params,
}

fn text(answer: &impl Serialize) -> Result<Vec<u8>, Trouble> {
    let mut text = Vec::new();
    json::line(&mut text, answer).map_err(|error| Status::internal(error.to_string()))?;
    Ok(text)
}

impl<A: Answering> JobViews<'_, A> {
    /// The view of this name, as JSON.
    ///
    /// # Errors
    /// There is no view of this name, it does not take a parameter, or an error that every request can have.
    pub(super) async fn answer(&self, view: &str) -> Result<Vec<u8>, Trouble> {
        let own: &[&str] = match view {
            "timeline" => &["points", "floor"],
            "sites" => &["at"],
            "ledger" => &["at", "blocks"],
            "flame" => &["at", "from"],
            "blocks" => &["at", "event"],
            "diff" => &["before"],
            "step" => &["step", "at", "event", "first", "last"],
            "what-if" => &["limit"],
            "fit" => &["size", "limit"],
            _ => &[],
        };
        self.params.takes(own)?;
        match view {
            "query" => text(&self.report().await?),
            "diagnose" => text(&self.diagnosis().await?),
            "heat" => text(&Heat::new(self.report().await?)),
            "timeline" => text(&self.timeline().await?),
            "sparkline" => text(&self.sparkline().await?),
            "sites" => text(&self.live(self.selection.clone(), self.params.moment("at")?).await?),
            "ledger" => {
                let (at, blocks) = (self.params.moment("at")?, self.params.flag("blocks")?);
                text(&self.ledger(self.selection.clone(), at, blocks).await?)
            }
            "oom" => text(&self.oom(true).await?),
            "flame" => text(&self.flame().await?),
            "blocks" => text(&self.ask(self.blocks().await?).await?),
            "step" => text(&self.ask(self.step_memory().await?).await?),
            "classes" => text(&self.ask(ClassesQuestion(self.selection.clone())).await?),
            "anatomy" => text(&self.ask(AnatomyQuestion(self.whole()?)).await?),
            "profile" => text(&self.ask(v1::ProfileRequest { selection: Some(self.whole()?) }).await?),
            "diff" => text(&self.ask(self.diff()?).await?),
            "what-if" => text(&self.ask(self.what_if().await?).await?),
            "fit" => text(&self.ask(self.sizes().await?).await?),
            other => {
                let known = VIEWS.join(", ");
                let why = format!("a job has no view {}; it has {known}, tiles", other.escape_debug());
                Err(Status::not_found(why).into())
            }
        }
    }

    async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer, Trouble> {
        Ok(self.from.answer(question).await?)
    }

    async fn report(&self) -> Result<Report, Trouble> {
        self.ask(v1::ReportRequest { selection: Some(self.selection.clone()) }).await
    }

    async fn live(&self, selection: v1::Selection, moment: Option<Moment>) -> Result<Sites, Trouble> {
        use v1::sites_request::Moment as Wire;
        let moment = match moment {
            None => None,
            Some(Moment::Peak) => Some(Wire::Peak(true)),
            Some(Moment::End) => Some(Wire::End(true)),
            Some(Moment::EpochEnd(epoch)) => Some(Wire::EpochEnd(epoch)),
            Some(Moment::StepEnd(epoch, which)) => Some(Wire::AtNs(self.step_end(epoch, which).await?)),
            Some(Moment::At(ns)) => Some(Wire::AtNs(ns)),
        };
        self.ask(v1::SitesRequest { selection: Some(selection), moment }).await
    }

    async fn ledger(&self, selection: v1::Selection, moment: Option<Moment>, blocks: bool) -> Result<Ledger, Trouble> {
        let at = self.at(moment).await?;
        self.ask(LedgerQuestion { selection, at, blocks }).await
    }

    /// The moment for a request about one process or several; the default is the peak.
    async fn at(&self, moment: Option<Moment>) -> Result<At, Trouble> {
        Ok(match moment {
            None | Some(Moment::Peak) => At::Peak,
            Some(Moment::End) => At::End,
            Some(Moment::EpochEnd(epoch)) => At::EpochEnd(epoch),
            Some(Moment::StepEnd(epoch, which)) => At::Time(self.step_end(epoch, which).await?),
            Some(Moment::At(ns)) => At::Time(ns),
        })
    }

    async fn step_end(&self, epoch: u32, which: WhichStep) -> Result<u64, Trouble> {
        self.ask(StepEndQuestion { selection: self.selection.clone(), epoch, which }).await
    }

    async fn diagnosis(&self) -> Result<Diagnosis, Trouble> {
        self.ask(v1::DiagnosisRequest { selection: Some(self.selection.clone()), replay: true, ..Default::default() })
            .await
    }

    async fn timeline(&self) -> Result<Timeline, Trouble> {
        let points = self.params.number("points")?.unwrap_or(POINTS);
        let request = v1::TimelineRequest { selection: Some(self.selection.clone()), points };
        if self.params.flag("floor")? {
            self.whole()?;
            return self.ask(CourseQuestion(request)).await;
        }
        self.ask(request).await
    }

    /// The timeline of one process with few points.
    async fn sparkline(&self) -> Result<Sparkline, Trouble> {
        let known = self.from.job(&self.selection).await?;
        let first = known.processes.iter().filter(|process| process.events > 0).min_by_key(|process| process.rank);
        let Some(first) = first else { return Ok(Sparkline::new(Timeline::default())) };
        // The attempt is fixed, in case another attempt begins in the meantime.
        let attempt = Some(known.job.attempt);
        let one = v1::Selection { attempt, processes: vec![first.process.clone()], ..self.selection.clone() };
        Ok(Sparkline::new(self.ask(v1::TimelineRequest { selection: Some(one), points: SPARKLINE }).await?))
    }

    async fn oom(&self, replay: bool) -> Result<Oom, Trouble> {
        self.ask(v1::OomRequest { selection: Some(self.selection.clone()), replay, ..Default::default() }).await
    }

    /// Live memory of one device at `at` as a tree of calls, or its change from `from` to `at`.
    async fn flame(&self) -> Result<Flame, Trouble> {
        if self.selection.ranks.len() != 1 {
            return Err("a flame graph is of one rank: rank=N".to_owned().into());
        }
        let (at, from) = (self.params.moment("at")?.unwrap_or(Moment::Peak), self.params.moment("from")?);
        let late = self.live(self.selection.clone(), Some(at)).await?;
        let early = match from {
            Some(from) => Some(self.live(self.selection.clone(), Some(from)).await?),
            None => None,
        };
        // Classes come from events. If no events are stored, boxes have no class.
        let blocks = self.ledger(self.selection.clone(), None, true).await;
        let of = |ledger: &Ledger| {
            let blocks = ledger.ranks.first().and_then(|listed| listed.blocks.as_deref());
            SiteClasses::new(blocks.unwrap_or_default())
        };
        let classes = blocks.as_ref().map(of).unwrap_or_default();
        Flame::new(&late, early.as_ref(), &classes).ok_or_else(|| {
            Status::not_found(
                "no table of live memory is stored of this rank; `memctl sites` says of which there is one",
            )
            .into()
        })
    }

    /// The blocks of a stretch of one device's events around a moment.
    async fn blocks(&self) -> Result<BlocksQuestion, Trouble> {
        let at = match (self.params.large("event")?, self.params.moment("at")?) {
            (Some(event), None) => At::Event(event),
            (None, moment) => self.at(moment).await?,
            (Some(_), Some(_)) => return Err("a moment is given by at=… or by event=N".to_owned().into()),
        };
        Ok(BlocksQuestion { selection: self.selection.clone(), at })
    }

    /// The comparison with an earlier run of this or another job.
    fn diff(&self) -> Result<DiffQuestion, Trouble> {
        let Some(before) = self.params.text("before") else {
            return Err("a comparison needs the other run: before=JOB or before=JOB#RUN".to_owned().into());
        };
        let before = v1::Selection { job: before.to_owned(), ..v1::Selection::default() };
        Ok(DiffQuestion { before, after: self.whole()?, ignored_bytes: CHANGE_BYTES })
    }

    /// The memory within a step: by its number, by a moment (the default is the peak), or a range of events.
    async fn step_memory(&self) -> Result<StepMemoryQuestion, Trouble> {
        let part = (self.params.large("first")?, self.params.large("last")?);
        let moment = self.params.moment("at")?;
        let at = match (self.params.large("step")?, self.params.large("event")?, moment) {
            (Some(step), None, None) => StepAt::Step(step),
            (None, Some(event), None) => StepAt::Moment(At::Event(event)),
            (None, None, None) if part.0.is_some() => StepAt::Events,
            (None, None, moment) => StepAt::Moment(self.at(moment).await?),
            _ => return Err("a step is given by step=N, by at=… or by event=N".to_owned().into()),
        };
        Ok(StepMemoryQuestion { selection: self.whole()?, at, part })
    }

    /// The request of `memctl what-if` for one process.
    async fn what_if(&self) -> Result<Wanted, Trouble> {
        let (selection, limit) = (self.whole()?, self.params.large("limit")?);
        let limits = match limit {
            Some(bytes) => vec![Limit::Share(bytes)],
            None => self.limits().await?,
        };
        Ok(Wanted { selection, limits })
    }

    /// The request of `memctl fit` with one recording, at sizes around the recorded one.
    async fn sizes(&self) -> Result<SizesQuery, Trouble> {
        let (selection, limit) = (self.whole()?, self.params.large("limit")?);
        let Some(size) = self.params.large("size")?.filter(|size| (1..=NUMBER_MAX).contains(size)) else {
            let why =
                format!("size=N, from 1 to {NUMBER_MAX}: the number that it was recorded at (batch, sequence, layers)");
            return Err(why.into());
        };
        let limit = match limit {
            Some(bytes) => Some(bytes),
            None => self.limits().await?.first().and_then(|limit| limit.bytes()),
        };
        Ok(SizesQuery { selection, size, limit })
    }

    /// The limit of the process, as its first failed request reveals it; empty if no request failed.
    async fn limits(&self) -> Result<Vec<Limit>, Trouble> {
        Ok(self.oom(false).await?.failures.first().map_or_else(Vec::new, Failed::limits))
    }

    /// The selection of a view that covers the whole recording.
    fn whole(&self) -> Result<v1::Selection, Trouble> {
        match self.selection.since_ns.or(self.selection.until_ns) {
            None => Ok(self.selection.clone()),
            Some(_) => Err("this covers the whole recording; remove since= and until=".to_owned().into()),
        }
    }
}

/// The tile that an address names, of a part of a job.
pub(super) fn tile(params: &Params, job: &str) -> Result<TileQuestion, Trouble> {
    params.takes(&["level", "index", "session"])?;
    let selection = params.selection(job)?;
    let place = match (params.number("level")?, params.large("index")?) {
        (Some(level), Some(index)) => Place { level, index },
        _ => return Err("a tile has a level and an index: level=N&index=N".to_owned().into()),
    };
    if selection.since_ns.or(selection.until_ns).is_some() {
        return Err("a tile's times are those of its level and index, not since= and until=".to_owned().into());
    }
    Ok(TileQuestion { selection, place, session: params.text("session").map(str::to_owned) })
}
