//! The query service: every request of the command line, answered from the store.
//!
//! Guarantees: a request sees only the jobs of its caller's tenant. Every response reports how complete its data is.
//! Figures come from epoch ends, rollups and site tables if possible, and from a replay otherwise. The memory of a
//! response is bounded. Data that only a running process has (`holders`) is queried from the process, if the
//! configuration allows that.
//!
//! (Over 400 lines: one service whose calls share the same data sources.)

mod advice;
mod anatomy;
mod answer;
mod blocks;
mod class_slots;
mod classes;
mod diagnosis;
mod events_until;
mod export;
mod fit;
mod floor;
mod fragmentation;
mod growth;
#[cfg(not(target_family = "wasm"))]
mod holders;
mod jobs;
mod ledger;
mod moment;
mod need;
mod one_device;
mod oom;
mod profile;
mod question;
mod rank;
mod rank_comparison;
mod reader;
mod replays;
mod report;
mod scope;
mod sites;
mod sources;
mod step_memory;
pub(crate) mod tiles;
mod timeline;
mod what_if;
#[cfg(not(target_family = "wasm"))]
mod worker_threads;

pub use ledger::LedgerQuestion;
pub use moment::At;
pub use question::{
    AnatomyQuestion, BlocksQuestion, ClassesQuestion, CourseQuestion, DiffQuestion, Question, StepEndQuestion,
    TileQuestion,
};
pub use replays::{SizesQuery, Wanted};
pub use sources::Sources;
pub use step_memory::{StepAt, StepMemoryQuestion};
pub use tiles::Place;
pub use timeline::WhichStep;

pub(crate) use reader::StoreReader;
#[cfg(not(target_family = "wasm"))]
pub(crate) use worker_threads::permit;
// The service needs a daemon: callers, threads and streams.
#[cfg(not(target_family = "wasm"))]
use {
    crate::access::{Caller, Gate, subject},
    crate::alerts::machine::EVERY_RUN,
    crate::alerts::{Alerts, JobFacts},
    crate::clock::now_ns,
    crate::ingest::IngestService,
    crate::job_data::ReadError,
    crate::job_data::job::{no_job, stored},
    crate::judge::Judge,
    crate::permits::{ANSWERS_MAX, Permits},
    crate::store::{Scope, Scoped, Store, Tenant, Which},
    crate::streams::Streams,
    crate::supervise::{TaskState, Tasks},
    jobs::Listing,
    memctl_answers::holders::Holders,
    memctl_answers::jobs::Jobs,
    memctl_answers::processes::JobProcesses,
    memctl_proto::v1,
    memctl_proto::v1::query_server::Query,
    replays::Replays,
    serde::Serialize,
    std::sync::Arc,
    tiles::Tiles,
    tokio_stream::wrappers::ReceiverStream,
    tonic::{Request, Response, Status},
    worker_threads::{apart, with_permit},
};

#[cfg(not(target_family = "wasm"))]
/// The most concurrent requests that wait for a process or a replay.
const ASKING_MAX: usize = 16;

#[cfg(not(target_family = "wasm"))]
/// The receiving end of a response stream.
type Parts<T> = tokio::sync::mpsc::Receiver<Result<T, Status>>;

#[cfg(not(target_family = "wasm"))]
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
    /// Permits for responses over gRPC and HTTP together.
    answers: Permits,
    /// Permits for requests that wait (for a training process or for replays) and use little memory.
    asking: Permits,
    /// The addresses of the HTTP port.
    http: Vec<String>,
    /// Whether processes may be queried for the objects that hold their tensors.
    holders: bool,
    started_ns: u64,
}

#[cfg(not(target_family = "wasm"))]
impl QueryService {
    /// A service over a store. Streams and ingest supply the live state; alerts are notified of deleted jobs.
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

    /// Sets whether processes may be queried for the objects that hold their tensors.
    #[must_use]
    pub fn with_holders(self, holders: bool) -> Self {
        Self { holders, ..self }
    }

    /// Permits for responses.
    #[must_use]
    pub fn answers(&self) -> &Permits {
        &self.answers
    }

    /// The part of the store that a caller may see. If a caller of all tenants names a job, this is the part of the one
    /// tenant that has the job.
    async fn seen(&self, caller: &Caller, job: &str) -> Result<Arc<dyn Store>, ReadError> {
        let scope = self.scope(caller, job).await?;
        Ok(Scoped::of(&self.store, &scope))
    }

    /// Answers a question about a job.
    ///
    /// # Errors
    /// The same as for every request.
    pub async fn answer<Q: Question>(&self, caller: &Caller, question: Q) -> Result<Q::Answer, Status> {
        let from = self.sources(caller, &question).await?;
        Ok(apart(None, question.answer(from)).await?.into_inner())
    }

    /// Answers a gRPC request; the answer is JSON.
    async fn as_json<Q>(&self, request: Request<Q>) -> Result<Response<v1::Answer>, Status>
    where
        Q: Question,
        Q::Answer: Serialize,
    {
        let caller = Caller::of(&request)?;
        let permit = Some(permit(&self.answers, &caller).await?);
        let question = request.into_inner();
        let from = self.sources(&caller, &question).await?;
        apart(permit, async move { answer::to_wire(&question.answer(from).await?) }).await
    }

    /// Answers a gRPC request that may take long; the work ends with its request.
    async fn at_length<Q>(
        &self,
        request: Request<Q>,
    ) -> Result<Response<ReceiverStream<Result<v1::Answer, Status>>>, Status>
    where
        Q: Question,
        Q::Answer: Serialize,
    {
        let caller = Caller::of(&request)?;
        let permit = permit(&self.asking, &caller).await?;
        let question = request.into_inner();
        let from = self.sources(&caller, &question).await?;
        let (out, parts) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let answer = apart(Some(permit), async move { answer::to_wire(&question.answer(from).await?) });
            tokio::select! {
                answer = answer => {
                    // An error means that the reader disconnected.
                    let _ = out.send(answer.map(Response::into_inner)).await;
                }
                () = out.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(self.guarded(caller, parts))))
    }

    async fn sources(&self, caller: &Caller, question: &impl Question) -> Result<Sources, ReadError> {
        let job = |selection: Option<&v1::Selection>| selection.map_or_else(String::new, |it| it.job.clone());
        let store = self.seen(caller, &job(question.selection())).await?;
        let other = match question.other() {
            Some(selection) => self.seen(caller, &selection.job).await?,
            None => store.clone(),
        };
        Ok(Sources {
            store,
            other,
            streams: self.streams.clone(),
            judge: self.judge.clone(),
            tiles: self.tiles.clone(),
            replays: self.replays.clone(),
        })
    }

    /// Ends a stream when its caller loses access.
    fn guarded<T: Send + 'static>(&self, caller: Caller, mut parts: Parts<T>) -> Parts<T> {
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

    /// The jobs, newest first.
    ///
    /// # Errors
    /// The same as for every request.
    pub async fn jobs(&self, caller: &Caller, request: v1::ListJobsRequest) -> Result<Jobs, ReadError> {
        let Self { store, streams, judge, .. } = self;
        Listing { store, streams, judge }.jobs(&caller.scope, request).await
    }

    /// A job and its processes, without an analysis.
    ///
    /// # Errors
    /// The same as for every request.
    pub async fn job(&self, caller: &Caller, selection: &v1::Selection) -> Result<JobProcesses, ReadError> {
        let store = self.seen(caller, &selection.job).await?;
        jobs::job(&*store, &self.streams, selection).await
    }

    async fn status(&self, caller: &Caller) -> Result<v1::Status, ReadError> {
        let scope = &caller.scope;
        let (info, totals) = (self.store.info().await?, self.store.totals_in(scope).await?);
        // Only callers that see the whole store get its location and load.
        let whole = *scope == Scope::All;
        Ok(v1::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            store: if whole { info.place } else { String::new() },
            store_version: format!("{} {}", info.kind, info.version),
            schema_version: u32::try_from(info.schema_version).unwrap_or(0),
            started_ns: self.started_ns,
            jobs: totals.jobs,
            sessions_streaming: self.streams.count(scope),
            events_stored: totals.events.saturating_sub(totals.expired_events),
            stored_bytes: totals.stored_bytes,
            items_duplicate: totals.duplicates,
            gaps: totals.missing_items,
            events_expired: totals.expired_events,
            queued_bytes: if whole { self.ingest.queued_bytes() } else { 0 },
            tasks: self.tasks.states().into_iter().map(task).collect(),
            size_bytes: if whole { self.store.size_bytes().await? } else { 0 },
            items_damaged: if whole { self.store.damaged().len() as u64 } else { 0 },
            http: self.http.clone(),
            write_failure: if whole { self.ingest.write_failure() } else { None },
        })
    }

    async fn holders(&self, caller: &Caller, request: v1::HoldersRequest) -> Result<Response<Holders>, Status> {
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
        let Some(first) = stored(&*store, &which, attempt).await? else {
            return Err(no_job(&*store, &which, attempt).await);
        };
        // The run is fixed now, because after its deletion the next run becomes the newest.
        let doomed = if all_runs { Which::Newest(first.name.clone()) } else { first.address() };
        let (mut answer, mut last) = (v1::DeleteJobResponse::default(), None);
        // Deletes all attempts, or only the named one.
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
        // If a run or an attempt remains, only alerts of the deleted one and of earlier ones end.
        let everything = store.job(&Which::Newest(first.name.clone()), None).await?.is_none();
        let (started_ns, attempt) = last.filter(|_| !everything).unwrap_or((now_ns(), u32::MAX));
        let run = if everything { EVERY_RUN } else { first.run };
        let gone = JobFacts::deleted(&first.tenant, &first.name, run, attempt, started_ns);
        self.alerts.observe(&gone, &[], now_ns());
        Ok(answer)
    }
}

#[cfg(not(target_family = "wasm"))]
fn task((name, state): (&'static str, TaskState)) -> v1::TaskStatus {
    let TaskState { running, restarts, failure } = state;
    v1::TaskStatus { name: name.to_owned(), running, restarts, failure }
}

#[cfg(not(target_family = "wasm"))]
#[tonic::async_trait]
impl Query for QueryService {
    type ExportStream = ReceiverStream<Result<v1::ExportPart, Status>>;
    type GetWhatIfStream = ReceiverStream<Result<v1::Answer, Status>>;
    type GetNeedStream = ReceiverStream<Result<v1::Answer, Status>>;
    type GetFitStream = ReceiverStream<Result<v1::Answer, Status>>;
    type GetProfileStream = ReceiverStream<Result<v1::Answer, Status>>;

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        // A list without verdicts is small and needs no permit; it is used for shell completion.
        let permit = if request.get_ref().judge { Some(permit(&self.answers, &caller).await?) } else { None };
        Ok(with_permit(answer::to_wire(&self.jobs(&caller, request.into_inner()).await?)?, permit))
    }

    async fn get_job(&self, request: Request<v1::JobRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        let selection = request.into_inner().selection.unwrap_or_default();
        Ok(Response::new(answer::to_wire(&self.job(&caller, &selection).await?)?))
    }

    async fn get_report(&self, request: Request<v1::ReportRequest>) -> Result<Response<v1::Answer>, Status> {
        self.as_json(request).await
    }

    async fn get_timeline(&self, request: Request<v1::TimelineRequest>) -> Result<Response<v1::Answer>, Status> {
        self.as_json(request).await
    }

    async fn get_sites(&self, request: Request<v1::SitesRequest>) -> Result<Response<v1::Answer>, Status> {
        self.as_json(request).await
    }

    async fn get_fragmentation(
        &self,
        request: Request<v1::FragmentationRequest>,
    ) -> Result<Response<v1::Answer>, Status> {
        self.as_json(request).await
    }

    async fn get_oom(&self, request: Request<v1::OomRequest>) -> Result<Response<v1::Answer>, Status> {
        self.as_json(request).await
    }

    async fn get_diagnosis(&self, request: Request<v1::DiagnosisRequest>) -> Result<Response<v1::Answer>, Status> {
        self.as_json(request).await
    }

    async fn get_what_if(
        &self,
        request: Request<v1::WhatIfRequest>,
    ) -> Result<Response<Self::GetWhatIfStream>, Status> {
        self.at_length(request).await
    }

    async fn get_need(&self, request: Request<v1::NeedRequest>) -> Result<Response<Self::GetNeedStream>, Status> {
        self.at_length(request).await
    }

    async fn get_fit(&self, request: Request<v1::FitRequest>) -> Result<Response<Self::GetFitStream>, Status> {
        self.at_length(request).await
    }

    async fn get_profile(
        &self,
        request: Request<v1::ProfileRequest>,
    ) -> Result<Response<Self::GetProfileStream>, Status> {
        self.at_length(request).await
    }

    async fn get_ledger(&self, request: Request<v1::LedgerRequest>) -> Result<Response<v1::Answer>, Status> {
        self.as_json(request).await
    }

    async fn export(&self, request: Request<v1::ExportRequest>) -> Result<Response<Self::ExportStream>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let job = request.selection.as_ref().map_or("", |selection| &selection.job);
        let parts = export::export(self.seen(&caller, job).await?, request).await?;
        Ok(Response::new(ReceiverStream::new(self.guarded(caller, parts))))
    }

    async fn get_status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::Status>, Status> {
        Ok(Response::new(self.status(&Caller::of(&request)?).await?))
    }

    async fn find_holders(&self, request: Request<v1::HoldersRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let subject = request.selection.as_ref().map_or_else(String::new, |selection| selection.job.clone());
        let outcome = self.holders(&caller, request).await;
        let audit = self.gate.audit();
        match &outcome {
            Ok(answer) => {
                let Holders { process, took_seconds, .. } = answer.get_ref();
                let took_ms = (took_seconds * 1e3) as u64;
                audit.done(&caller, "FindHolders", &subject, &format!("{process} stood still for {took_ms} ms")).await;
            }
            Err(status) => audit.refused(&caller, "FindHolders", &subject, status.message()).await,
        }
        let (metadata, answer, extensions) = outcome?.into_parts();
        Ok(Response::from_parts(metadata, answer::to_wire(&answer)?, extensions))
    }

    async fn delete_job(
        &self,
        request: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let attempt = request.attempt;
        let wanted = subject::of_deletion(&request.job, attempt);
        let outcome = self.delete(&caller, request).await;
        let audit = self.gate.audit();
        match &outcome {
            Ok(gone) => {
                let went = format!("{} sessions, {} bytes", gone.sessions, gone.stored_bytes);
                // A name means its newest run. The entry has the run.
                let deleted = match gone.runs.as_slice() {
                    [] => wanted,
                    runs => subject::of_deletion(&runs.join(", "), attempt),
                };
                audit.done(&caller, "DeleteJob", &deleted, &went).await;
            }
            Err(error) => audit.refused(&caller, "DeleteJob", &wanted, &error.to_string()).await,
        }
        Ok(Response::new(outcome?))
    }
}
