//! Query: every request of the command line, answered from the store.
//!
//! Guarantees: a request sees only the jobs of its caller's tenant. Every response reports how complete its data is.
//! Figures come from epoch ends, rollups and site tables where possible, and from a replay otherwise. The memory of a
//! response is bounded. Data that only a running process has (`holders`) is requested from it, if the configuration
//! allows that.
//!
//! (Over 400 lines: one service, whose calls share the data that they are answered from.)

mod anatomy;
mod answer;
mod blocks;
mod classes;
mod export;
mod fragmentation;
mod growth;
mod holders;
mod ledger;
mod oom;
mod rank;
mod rank_comparison;
mod replays;
mod report;
mod scope;
mod sites;
mod tiles;
mod timeline;
mod worker_threads;

use std::sync::Arc;

use memctl_answers::anatomy::Anatomy;
use memctl_answers::blocks::Blocks;
use memctl_answers::classes::Classes;
use memctl_answers::fit::Fit;
use memctl_answers::ledger::Ledger;
use memctl_answers::tile::Tile;
use memctl_answers::what_if::WhatIf;
use memctl_model::limits::JOBS_LISTED;
use memctl_proto::v1;
use memctl_proto::v1::query_server::Query;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

pub use blocks::At;
pub use replays::{Sizes, Wanted};
pub use tiles::Place;

use crate::access::{Caller, Gate};
use crate::alerts::machine::EVERY_RUN;
use crate::alerts::{Alerts, JobFacts};
use crate::clock::now_ns;
use crate::ingest::IngestService;
use crate::job_data::job::{Summary, no_job};
use crate::job_data::{ReadError, find};
use crate::judge::{Judge, Range};
use crate::permits::{ANSWERS_MAX, Permits};
use crate::store::{JobRow, Scope, Scoped, Store, Tenant, Which};
use crate::streams::Streams;
use crate::supervise::{TaskState, Tasks};
use replays::Replays;
use tiles::Tiles;
pub(crate) use worker_threads::permit;
use worker_threads::{apart, slot_of, with_permit};

/// The most jobs in a list.
const JOBS_MAX: u32 = 10_000;

/// The most concurrent requests to training processes.
const ASKING_MAX: usize = 16;

/// How long a list of jobs may take to judge them; jobs that were judged before are listed at once.
const JUDGING: std::time::Duration = std::time::Duration::from_secs(3);

/// The query service.
pub struct QueryService {
    store: Arc<dyn Store>,
    gate: Gate,
    streams: Streams,
    ingest: IngestService,
    judge: Judge,
    alerts: Alerts,
    tasks: Tasks,
    tiles: Arc<Tiles>,
    replays: Arc<Replays>,
    /// Permits for responses, of gRPC and HTTP together.
    answers: Permits,
    /// Permits for requests that a training process answers: they wait, and use little memory.
    asking: Permits,
    /// The addresses of the HTTP port.
    http: Vec<String>,
    /// Whether processes may be asked which objects hold their tensors.
    holders: bool,
    started_ns: u64,
}

impl QueryService {
    /// A service over a store; streams and ingest supply the live state, alerts are notified of deleted jobs.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        gate: Gate,
        streams: Streams,
        ingest: IngestService,
        judge: Judge,
        alerts: Alerts,
        tasks: Tasks,
    ) -> Self {
        Self {
            store,
            gate,
            streams,
            ingest,
            judge,
            alerts,
            tasks,
            tiles: Arc::new(Tiles::new()),
            replays: Arc::new(Replays::new()),
            answers: Permits::new(ANSWERS_MAX, worker_threads::SLOT_WAIT),
            asking: Permits::new(ASKING_MAX, worker_threads::SLOT_WAIT),
            http: Vec::new(),
            holders: true,
            started_ns: now_ns(),
        }
    }

    /// Sets the addresses of the HTTP port.
    #[must_use]
    pub fn with_http(self, http: Vec<String>) -> Self {
        Self { http, ..self }
    }

    /// Sets whether processes may be asked which objects hold their tensors.
    #[must_use]
    pub fn with_holders(self, holders: bool) -> Self {
        Self { holders, ..self }
    }

    /// Permits for responses.
    #[must_use]
    pub fn answers(&self) -> &Permits {
        &self.answers
    }

    /// The store as a caller sees it. If a caller of all tenants names a job, it is restricted to the one tenant that has
    /// it.
    async fn seen(&self, caller: &Caller, job: &str) -> Result<Arc<dyn Store>, ReadError> {
        let scope = self.scope(caller, job).await?;
        Ok(Scoped::of(&self.store, &scope))
    }

    /// The same for a request with a selection.
    async fn asked<T>(
        &self,
        request: &Request<T>,
        selection: impl Fn(&T) -> &Option<v1::Selection>,
    ) -> Result<Arc<dyn Store>, Status> {
        let caller = Caller::of(request)?;
        let job = selection(request.get_ref()).as_ref().map_or("", |selection| &selection.job);
        Ok(self.seen(&caller, job).await?)
    }

    /// A stretch of one device's allocator, only for the page: see `query/blocks.rs`.
    ///
    /// # Errors
    /// As for every request.
    pub async fn blocks(&self, caller: &Caller, selection: v1::Selection, at: At) -> Result<Blocks, Status> {
        let store = self.seen(caller, &selection.job).await?;
        let streams = self.streams.clone();
        let answer = apart(None, async move { blocks::blocks(&*store, &streams, &selection, at).await }).await?;
        Ok(answer.into_inner())
    }

    /// A tile of one device's timeline, only for the page: see `query/tiles/`. `session` is the one whose earlier tiles
    /// the client has.
    ///
    /// # Errors
    /// As for every request.
    pub async fn tile(
        &self,
        caller: &Caller,
        selection: v1::Selection,
        place: Place,
        session: Option<String>,
    ) -> Result<Tile, Status> {
        let (store, tiles) = (self.seen(caller, &selection.job).await?, self.tiles.clone());
        let answer = async move { tiles.tile(&*store, &selection, place, session.as_deref()).await };
        Ok(apart(None, answer).await?.into_inner())
    }

    /// Live memory by class over time, only for the page: see `query/classes.rs`.
    ///
    /// # Errors
    /// As for every request.
    pub async fn classes(&self, caller: &Caller, selection: v1::Selection) -> Result<Classes, Status> {
        let (store, streams) = (self.seen(caller, &selection.job).await?, self.streams.clone());
        let answer = async move { classes::classes(&*store, &streams, &selection).await };
        Ok(apart(None, answer).await?.into_inner())
    }

    /// The ledgers of a job.
    ///
    /// # Errors
    /// As for every request.
    pub async fn ledger(&self, caller: &Caller, request: v1::LedgerRequest) -> Result<Ledger, Status> {
        let job = request.selection.as_ref().map_or("", |selection| &selection.job);
        let (store, streams) = (self.seen(caller, job).await?, self.streams.clone());
        Ok(apart(None, async move { ledger::ledger(&*store, &streams, request).await }).await?.into_inner())
    }

    /// Live memory at the peak of one device, only for the page: see `query/anatomy.rs`.
    ///
    /// # Errors
    /// As for every request.
    pub async fn anatomy(&self, caller: &Caller, selection: v1::Selection) -> Result<Anatomy, Status> {
        let (store, streams) = (self.seen(caller, &selection.job).await?, self.streams.clone());
        let answer = async move { anatomy::anatomy(&*store, &streams, &selection).await };
        Ok(apart(None, answer).await?.into_inner())
    }

    /// Memory under other allocator settings, only for the page: see `query/replays/settings.rs`.
    ///
    /// # Errors
    /// As for every request; another replay is running.
    pub async fn what_if(&self, caller: &Caller, wanted: Wanted) -> Result<WhatIf, Status> {
        let store = self.seen(caller, &wanted.selection.job).await?;
        let (streams, replays) = (self.streams.clone(), self.replays.clone());
        Ok(apart(None, async move { replays.what_if(store, &streams, wanted).await }).await?.into_inner())
    }

    /// Memory at other sizes, only for the page: see `query/replays/sizes.rs`.
    ///
    /// # Errors
    /// As for every request; another replay is running.
    pub async fn fit(&self, caller: &Caller, wanted: Sizes) -> Result<Fit, Status> {
        let store = self.seen(caller, &wanted.selection.job).await?;
        let (streams, replays) = (self.streams.clone(), self.replays.clone());
        Ok(apart(None, async move { replays.fit(store, &streams, wanted).await }).await?.into_inner())
    }

    /// Ends an export once its caller loses access.
    fn guarded(&self, caller: Caller, mut parts: export::Parts) -> export::Parts {
        let (gate, (out, guarded)) = (self.gate.clone(), tokio::sync::mpsc::channel(1));
        tokio::spawn(async move {
            let mut unwanted = std::pin::pin!(gate.ended(&caller));
            loop {
                let part = tokio::select! {
                    part = parts.recv() => part,
                    over = &mut unwanted => Some(Err(over.into())),
                };
                let Some(part) = part else { return };
                let last = part.is_err();
                // An error means that the reader disconnected.
                if out.send(part).await.is_err() || last {
                    return;
                }
            }
        });
        guarded
    }

    async fn scope(&self, caller: &Caller, job: &str) -> Result<Scope, ReadError> {
        if caller.scope != Scope::All || job.is_empty() || job == "latest" {
            return Ok(caller.scope.clone());
        }
        let which = Which::written(job);
        match self.store.tenants_of(which.name().unwrap_or_default()).await?.as_slice() {
            [] => Ok(Scope::All),
            [only] => Ok(Scope::One(Tenant::stored(only))),
            several => Err(ReadError::Invalid(format!(
                "several tenants have a job of this name: {}; choose one with --tenant",
                several.join(", ")
            ))),
        }
    }

    async fn jobs(&self, caller: &Caller, request: v1::ListJobsRequest) -> Result<v1::ListJobsResponse, ReadError> {
        let limit = if request.limit == 0 { JOBS_LISTED } else { request.limit.min(JOBS_MAX) };
        let narrowed = !request.states.is_empty() || !request.labels.is_empty();
        let until = tokio::time::Instant::now() + JUDGING;
        let mut jobs = Vec::new();
        // Filtered jobs do not count against the limit.
        for job in self.store.jobs_in(&caller.scope, if narrowed { JOBS_MAX } else { limit }).await? {
            if jobs.len() >= limit as usize {
                break;
            }
            let sessions = self.store.sessions(job.key).await?;
            let mut answer = answer::job(&job, Summary::new(&job, sessions.iter(), &self.streams));
            let asked = (request.states.is_empty() || request.states.contains(&answer.state))
                && request.labels.iter().all(|label| answer.labels.contains(label));
            if !asked {
                continue;
            }
            if request.judge {
                // A job that takes longer, or cannot be judged, is listed without a verdict.
                answer.verdict = tokio::time::timeout_at(until, self.verdict(&job)).await.ok().and_then(Result::ok);
            }
            jobs.push(answer);
        }
        Ok(v1::ListJobsResponse { jobs })
    }

    async fn verdict(&self, job: &JobRow) -> Result<v1::JobVerdict, ReadError> {
        let selection =
            v1::Selection { job: job.address().to_string(), attempt: Some(job.attempt), ..Default::default() };
        let store = Scoped::of(&self.store, &Scope::One(Tenant::stored(&job.tenant)));
        let found = Arc::new(find(&*store, &selection).await?);
        let judgement = self.judge.judgement(&found, &found, Range::default(), true).await?;
        let worst = judgement.findings.first();
        Ok(v1::JobVerdict {
            severity: worst.map(|finding| v1::Severity::from(finding.severity) as i32),
            kind: worst.map_or_else(String::new, |finding| finding.kind.name().to_owned()),
            title: worst.map_or_else(String::new, |finding| finding.title.clone()),
            findings: u32::try_from(judgement.findings.len()).unwrap_or(u32::MAX),
            inconclusive: judgement
                .not_judged
                .iter()
                .find(|not| not.decides())
                .map_or_else(String::new, |not| not.reason.clone()),
            verdict: Some((&judgement.verdict(self.judge.activity(&found), found.has_failed())).into()),
        })
    }

    async fn status(&self, caller: &Caller) -> Result<v1::Status, ReadError> {
        let scope = &caller.scope;
        let (info, totals) = (self.store.info().await?, self.store.totals_in(scope).await?);
        // The location and load of the store are only for callers who see all of it.
        let whole = *scope == Scope::All;
        Ok(v1::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            store: if whole { info.place } else { String::new() },
            store_version: format!("{} {}", info.kind, info.version),
            schema_version: u32::try_from(info.schema_version).unwrap_or(0),
            started_ns: self.started_ns,
            jobs: totals.jobs,
            sessions_streaming: self.streams.count(scope),
            events_stored: totals.events,
            stored_bytes: totals.stored_bytes,
            items_duplicate: totals.duplicates,
            gaps: totals.missing_items,
            events_expired: totals.expired_events,
            queued_bytes: if whole { self.ingest.queued_bytes() } else { 0 },
            tasks: self.tasks.states().into_iter().map(task).collect(),
            size_bytes: if whole { self.store.size_bytes().await? } else { 0 },
            items_damaged: if whole { self.store.damaged().len() as u64 } else { 0 },
            http: self.http.clone(),
        })
    }

    async fn holders(&self, caller: &Caller, request: v1::HoldersRequest) -> Result<Response<v1::Holders>, Status> {
        if !self.holders {
            let words = "this daemon's configuration forbids requests for holders (holders = \"off\")";
            return Err(ReadError::Forbidden(words.to_owned()).into());
        }
        let job = request.selection.as_ref().map_or("", |selection| &selection.job);
        let store = self.seen(caller, job).await?;
        let (streams, judge) = (self.streams.clone(), self.judge.clone());
        let permit = permit(&self.asking, caller).await?;
        apart(Some(permit), async move { holders::holders(&store, &streams, &judge, request).await }).await
    }

    async fn delete(&self, caller: &Caller, request: v1::DeleteJobRequest) -> Result<v1::DeleteJobResponse, ReadError> {
        let v1::DeleteJobRequest { job: name, attempt, launcher, all_runs } = request;
        let which = match launcher {
            Some(launcher) => Which::OfLauncher(name.clone(), launcher),
            None => Which::written(&name),
        };
        if which == Which::Latest {
            return Err(ReadError::Invalid("a job is deleted by its own name only".into()));
        }
        let store = self.seen(caller, &name).await?;
        let Some(first) = store.job(&which, attempt).await? else {
            return Err(no_job(&*store, &which, attempt).await);
        };
        // Fix the run now: once it is deleted, the next one becomes the newest.
        let doomed = if all_runs { Which::Newest(first.name.clone()) } else { first.address() };
        let (mut answer, mut last) = (v1::DeleteJobResponse::default(), None);
        // All attempts, or the named one.
        while let Some(job) = store.job(&doomed, attempt).await? {
            let sessions = store.sessions(job.key).await?;
            if sessions.iter().any(|session| self.streams.is_streaming(session.key)) {
                return Err(ReadError::Recording { name: job.label() });
            }
            last = last.max(sessions.iter().map(|session| (session.info.started_ns, job.attempt)).max());
            let gone = store.delete_job(job.key).await?;
            self.judge.forget(job.key);
            answer.sessions += gone.sessions as u32;
            answer.stored_bytes += gone.bytes;
            if !answer.runs.contains(&job.label()) {
                answer.runs.push(job.label());
            }
        }
        // If a run or an attempt is left, only alerts of the deleted one and of those before it end.
        let everything = store.job(&Which::Newest(first.name.clone()), None).await?.is_none();
        let (started_ns, attempt) = last.filter(|_| !everything).unwrap_or((now_ns(), u32::MAX));
        let run = if everything { EVERY_RUN } else { first.run };
        self.alerts.observe(&gone(&first, run, started_ns, attempt), &[], now_ns());
        Ok(answer)
    }
}

fn task((name, state): (&'static str, TaskState)) -> v1::TaskStatus {
    let TaskState { running, restarts, failure } = state;
    v1::TaskStatus { name: name.to_owned(), running, restarts, failure }
}

/// What alerting needs to know of deleted runs, up to this one.
fn gone(JobRow { tenant, name, .. }: &JobRow, run: u32, started_ns: u64, attempt: u32) -> JobFacts {
    JobFacts {
        tenant: tenant.clone(),
        name: name.clone(),
        run,
        attempt,
        labels: Vec::new(),
        state: None,
        started_ns,
        ended_ns: None,
        epochs: None,
        imported: false,
    }
}

#[tonic::async_trait]
impl Query for QueryService {
    type ExportStream = ReceiverStream<Result<v1::ExportPart, Status>>;

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsResponse>, Status> {
        let caller = Caller::of(&request)?;
        // (A list without verdicts is small, and is used for shell completion.)
        let permit = if request.get_ref().judge { slot_of(&self.answers, &request).await? } else { None };
        Ok(with_permit(self.jobs(&caller, request.into_inner()).await?, permit))
    }

    async fn get_job(&self, request: Request<v1::JobRequest>) -> Result<Response<v1::JobAnswer>, Status> {
        let caller = Caller::of(&request)?;
        let selection = request.into_inner().selection.unwrap_or_default();
        let store = self.seen(&caller, &selection.job).await?;
        let found = find(&*store, &selection).await?;
        Ok(Response::new(v1::JobAnswer {
            job: Some(answer::found_job(&found, &self.streams)),
            completeness: Some(answer::completeness(found.completeness(&self.streams))),
            processes: answer::processes(&found, &self.streams),
        }))
    }

    async fn get_report(&self, request: Request<v1::ReportRequest>) -> Result<Response<v1::Report>, Status> {
        let permit = slot_of(&self.answers, &request).await?;
        let store = self.asked(&request, |request| &request.selection).await?;
        let (streams, judge) = (self.streams.clone(), self.judge.clone());
        apart(permit, async move { report::report(&store, &streams, &judge, request.into_inner()).await }).await
    }

    async fn get_timeline(&self, request: Request<v1::TimelineRequest>) -> Result<Response<v1::Timeline>, Status> {
        let permit = slot_of(&self.answers, &request).await?;
        let store = self.asked(&request, |request| &request.selection).await?;
        let streams = self.streams.clone();
        apart(permit, async move { timeline::timeline(&*store, &streams, request.into_inner()).await }).await
    }

    async fn get_sites(&self, request: Request<v1::SitesRequest>) -> Result<Response<v1::Sites>, Status> {
        let permit = slot_of(&self.answers, &request).await?;
        let store = self.asked(&request, |request| &request.selection).await?;
        let streams = self.streams.clone();
        apart(permit, async move { sites::sites(&*store, &streams, request.into_inner()).await }).await
    }

    async fn export(&self, request: Request<v1::ExportRequest>) -> Result<Response<Self::ExportStream>, Status> {
        let caller = Caller::of(&request)?;
        let store = self.asked(&request, |request| &request.selection).await?;
        let parts = export::export(store, request.into_inner()).await?;
        Ok(Response::new(ReceiverStream::new(self.guarded(caller, parts))))
    }

    async fn get_fragmentation(
        &self,
        request: Request<v1::FragmentationRequest>,
    ) -> Result<Response<v1::Fragmentation>, Status> {
        let permit = slot_of(&self.answers, &request).await?;
        let store = self.asked(&request, |request| &request.selection).await?;
        let (streams, judge) = (self.streams.clone(), self.judge.clone());
        apart(permit, async move { fragmentation::fragmentation(&store, &streams, &judge, request.into_inner()).await })
            .await
    }

    async fn get_oom(&self, request: Request<v1::OomRequest>) -> Result<Response<v1::Oom>, Status> {
        let permit = slot_of(&self.answers, &request).await?;
        let store = self.asked(&request, |request| &request.selection).await?;
        let (streams, judge) = (self.streams.clone(), self.judge.clone());
        apart(permit, async move { oom::oom(&store, &streams, &judge, request.into_inner()).await }).await
    }

    async fn get_ledger(&self, request: Request<v1::LedgerRequest>) -> Result<Response<v1::Answer>, Status> {
        let permit = slot_of(&self.answers, &request).await?;
        let store = self.asked(&request, |request| &request.selection).await?;
        let streams = self.streams.clone();
        let answer = async move { answer::to_wire(&ledger::ledger(&*store, &streams, request.into_inner()).await?) };
        apart(permit, answer).await
    }

    async fn get_status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::Status>, Status> {
        Ok(Response::new(self.status(&Caller::of(&request)?).await?))
    }

    async fn find_holders(&self, request: Request<v1::HoldersRequest>) -> Result<Response<v1::Holders>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let subject = request.selection.as_ref().map_or_else(String::new, |selection| selection.job.clone());
        let outcome = self.holders(&caller, request).await;
        let audit = self.gate.audit();
        match &outcome {
            Ok(answer) => {
                let v1::Holders { process, found, .. } = answer.get_ref();
                let took_ms = found.as_ref().map_or(0, |found| found.took_us / 1_000);
                audit.done(&caller, "FindHolders", &subject, &format!("{process} stood still for {took_ms} ms")).await;
            }
            Err(status) => audit.refused(&caller, "FindHolders", &subject, status.message()).await,
        }
        outcome
    }

    async fn delete_job(
        &self,
        request: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let subject = match request.attempt {
            Some(attempt) => format!("{} (attempt {attempt})", request.job),
            None => request.job.clone(),
        };
        let outcome = self.delete(&caller, request).await;
        let audit = self.gate.audit();
        match &outcome {
            Ok(gone) => {
                let went = format!("{} sessions, {} bytes", gone.sessions, gone.stored_bytes);
                audit.done(&caller, "DeleteJob", &subject, &went).await;
            }
            Err(error) => audit.refused(&caller, "DeleteJob", &subject, &error.to_string()).await,
        }
        Ok(Response::new(outcome?))
    }
}
