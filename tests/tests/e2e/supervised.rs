//! Faults inside the daemon: a job that cannot be judged does not affect other jobs, and a failed committer is
//! restarted. Health reports the faults correctly, and every event is stored in the end.
//!
//! The faults are real panics, thrown by a store on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_answers::judged::NotJudged;
use memctl_answers::report::Report;
use memctl_answers::wire::from_wire;
use memctl_daemon::server::Embedded;
use memctl_daemon::store::{
    AlertPut, AlertRecord, AlertSelection, Append, AuditRow, ChunkRow, DeviceRow, EpochEndRow, ExistingSession,
    Expired, ExpiredJob, Gap, HoldersIndex, HoldersRow, ItemPage, ItemRow, JobRow, OpenedSession, Opening, PutOutcome,
    Retention, Scope, Selection, SessionKey, SessionRow, SqliteStore, Store, StoreError, StoreInfo, Tenant, TokenRow,
    Totals, WatchRow, Which,
};
use memctl_model::{DeviceIndex, DeviceInfo, Frame, SessionId, SessionInfo, Severity};
use memctl_proto::v1::query_client::QueryClient;
use memctl_proto::v1::{self, ItemKind};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const PATIENCE: Duration = Duration::from_secs(60);
const EVENTS: u64 = 20;
/// A job that the judge cannot read; the judge must not have read it before the fault is set.
const UNREADABLE: &str = "broken";
/// Commits that fail.
const FAILURES: u32 = 5;

/// A store in memory that panics on request.
struct Faulty {
    inner: SqliteStore,
    /// Reading the items of this session panics; it is the session of the job [`UNREADABLE`], from its beginning.
    unreadable: std::sync::Mutex<Option<i64>>,
    /// This many appends panic from now on.
    appends: AtomicU32,
    /// Whether a panic was thrown.
    thrown: AtomicBool,
}

impl Faulty {
    async fn new() -> Self {
        let inner = SqliteStore::in_memory().await.unwrap();
        Self { inner, unreadable: Default::default(), appends: Default::default(), thrown: Default::default() }
    }

    fn throw(&self, what: &str) -> ! {
        self.thrown.store(true, Ordering::SeqCst);
        panic!("{what}");
    }
}

#[async_trait]
impl Store for Faulty {
    async fn info(&self) -> Result<StoreInfo, StoreError> {
        self.inner.info().await
    }
    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        let opened = self.inner.open(opening).await?;
        if opening.info.job == UNREADABLE {
            *self.unreadable.lock().unwrap() = Some(opened.key);
        }
        Ok(opened)
    }
    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        let left = self.appends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() {
            self.throw("the append was told to fail");
        }
        self.inner.append(appends).await
    }
    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<ExistingSession>, StoreError> {
        self.inner.held(tenant, id).await
    }
    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.inner.jobs_in(scope, limit).await
    }
    async fn jobs_heard(&self, since_ns: u64, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.inner.jobs_heard(since_ns, limit).await
    }
    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        self.inner.job_in(scope, which, attempt).await
    }
    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError> {
        self.inner.tenants_of(job).await
    }
    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError> {
        self.inner.sessions(job).await
    }
    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError> {
        self.inner.devices(job).await
    }
    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError> {
        self.inner.epoch_ends(job).await
    }
    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError> {
        self.inner.chunks(session, device, selection).await
    }
    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError> {
        self.inner.payloads(session, seqs).await
    }
    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError> {
        self.inner.items_at(session, seqs).await
    }
    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError> {
        if *self.unreadable.lock().unwrap() == Some(session) {
            self.throw("the judge was told to fail");
        }
        self.inner.items_after(session, kind, after, limit).await
    }
    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.inner.items(session, kind, device, selection).await
    }
    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        self.inner.keyframe_before(session, device, event).await
    }
    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        self.inner.gaps(job).await
    }
    async fn expire_jobs(&self, policy: Retention, now_ns: u64) -> (Vec<ExpiredJob>, Result<(), StoreError>) {
        self.inner.expire_jobs(policy, now_ns).await
    }
    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        self.inner.delete_job(job).await
    }
    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError> {
        self.inner.totals_in(scope).await
    }
    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.inner.tokens().await
    }
    async fn token(&self, id: u64) -> Result<Option<TokenRow>, StoreError> {
        self.inner.token(id).await
    }
    async fn add_token(&self, token: &TokenRow) -> Result<bool, StoreError> {
        self.inner.add_token(token).await
    }
    async fn revoke_token(&self, id: u64, now_ns: u64) -> Result<bool, StoreError> {
        self.inner.revoke_token(id, now_ns).await
    }
    async fn add_audit(&self, entry: &AuditRow) -> Result<(), StoreError> {
        self.inner.add_audit(entry).await
    }
    async fn audit_in(&self, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.inner.audit_in(scope, limit).await
    }
    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError> {
        self.inner.watch(session).await
    }

    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError> {
        self.inner.put_watch(session, watch).await
    }

    async fn holders_kept(&self, job: i64) -> Result<Vec<HoldersIndex>, StoreError> {
        self.inner.holders_kept(job).await
    }

    async fn holders(&self, job: i64, session: SessionKey, asked_ns: u64) -> Result<Option<HoldersRow>, StoreError> {
        self.inner.holders(job, session, asked_ns).await
    }

    async fn put_holders(&self, row: &HoldersRow) -> Result<(), StoreError> {
        self.inner.put_holders(row).await
    }

    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError> {
        self.inner.kept_bytes().await
    }
    async fn heard_latest(&self) -> Result<Option<u64>, StoreError> {
        self.inner.heard_latest().await
    }
    async fn size_bytes(&self) -> Result<u64, StoreError> {
        self.inner.size_bytes().await
    }
    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError> {
        self.inner.alert_records(selection).await
    }
    async fn put_alert_records(&self, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError> {
        self.inner.put_alert_records(puts).await
    }
    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

fn session(job: &str, id: u8) -> SessionInfo {
    SessionInfo {
        host: Some("here".into()),
        pid: Some(u32::from(id)),
        devices: vec![DeviceInfo::default()],
        ..SessionInfo::live(SessionId([id; 16]), job, 1)
    }
}

async fn record(daemon: &Embedded, job: &str, id: u8) {
    let config = AgentConfig::new(session(job, id), Daemon::Connected(daemon.channel()));
    let outcome = tokio::task::spawn_blocking(move || {
        let agent = Agent::start(config).unwrap();
        let stack = agent.stack(&[Frame { function: "keep".into(), file: "train.py".into(), line: 7 }]);
        let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
        recorder.segment_alloc(1 << 40, 1 << 30, 0);
        for step in 0..EVENTS - 1 {
            agent.step_begin(step);
            recorder.alloc((1 << 40) + (step << 20), 1 << 20, 0, stack);
            agent.step_end(step);
        }
        agent.stop(None, PATIENCE)
    });
    assert!(outcome.await.unwrap().delivered, "everything is stored in the end");
}

async fn report(daemon: &Embedded, job: &str) -> Report {
    let selection = Some(v1::Selection { job: job.into(), ..v1::Selection::default() });
    let response = QueryClient::new(daemon.channel()).get_report(v1::ReportRequest { selection }).await.unwrap();
    from_wire(response.get_ref()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_judged_says_so_and_others_are_judged_all_the_same() {
    let store = Arc::new(Faulty::new().await);
    let daemon = Embedded::start(store.clone()).await.unwrap();
    record(&daemon, UNREADABLE, 1).await;
    record(&daemon, "whole", 2).await;

    let broken = report(&daemon, UNREADABLE).await;
    assert!(store.thrown.load(Ordering::SeqCst), "the fault has happened");
    let [finding] = broken.findings.as_slice() else { panic!("one finding: {:#?}", broken.findings) };
    assert_eq!((finding.kind.as_str(), finding.severity), ("unjudged", Severity::Warning));
    assert!(finding.explanation.contains("the judge was told to fail"), "{}", finding.explanation);
    assert_eq!(broken.completeness.events_stored, EVENTS, "what was recorded is reported all the same");
    let open: Vec<&NotJudged> = broken.scope.not_judged.iter().filter(|not| not.decides).collect();
    let [not] = open.as_slice() else { panic!("one gap decides: {:#?}", broken.scope.not_judged) };
    assert_eq!((not.kind.as_str(), &*not.gap, not.reason.as_str()), ("leak", "whole", "judging this job failed"));
    assert!(not.remedy.as_ref().is_some_and(|remedy| finding.advice.contains(remedy)), "{not:#?}");
    assert!(broken.scope.judged.kinds.is_empty(), "nothing counts as judged");
    let whole = report(&daemon, "whole").await;
    assert!(whole.findings.iter().all(|finding| finding.kind != "unjudged"), "{:#?}", whole.findings);

    *store.unreadable.lock().unwrap() = None;
    let again = report(&daemon, UNREADABLE).await;
    let kinds = |report: &Report| report.findings.iter().map(|it| it.kind.clone()).collect::<Vec<String>>();
    assert_eq!(kinds(&again), kinds(&whole), "once it can be judged it is, from the beginning");
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committer_that_fails_is_restarted_and_health_shows_it() {
    let store = Arc::new(Faulty::new().await);
    let daemon = Embedded::start(store.clone()).await.unwrap();
    let mut health = HealthClient::new(daemon.channel());
    let request = HealthCheckRequest { service: "memctl.v1.Ingest".into() };
    let mut statuses = health.watch(request).await.unwrap().into_inner();
    let mut next = async || statuses.message().await.unwrap().expect("health keeps reporting").status();
    assert_eq!(next().await, ServingStatus::Serving);
    // Each failure doubles the pause, so the last one is long enough to be observed on a busy machine.
    store.appends.store(FAILURES, Ordering::SeqCst);
    let recovery = async {
        while next().await != ServingStatus::NotServing {}
        while next().await != ServingStatus::Serving {}
    };
    let ((), recovery) = tokio::join!(record(&daemon, "job", 1), tokio::time::timeout(PATIENCE, recovery));
    assert!(store.thrown.load(Ordering::SeqCst), "the fault has happened");
    recovery.expect("health reports the failure and the recovery");

    let status = QueryClient::new(daemon.channel()).get_status(v1::StatusRequest {}).await.unwrap().into_inner();
    let committer = status.tasks.iter().find(|task| task.name == "committer").expect("the committer is reported");
    assert_eq!((committer.running, committer.restarts), (true, u64::from(FAILURES)));
    assert_eq!(committer.failure.as_deref(), Some("the append was told to fail"));
    let completeness = report(&daemon, "job").await.completeness;
    assert_eq!((completeness.exact, completeness.events_stored), (true, EVENTS));
    daemon.stop().await.unwrap();
}
