//! The table of rights against a real daemon: every role × every call × own and foreign tenant, attempts to take over
//! sessions, and tokens exchanged and revoked while events flow.
//!
//! (Over 400 lines: the table of requests for every call belongs beside the test that makes them all.)

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use memctl_agent::credentials::{Credentials, TokenSource};
use memctl_agent::{Agent, AgentConfig, Backoff, Daemon, SpoolConfig};
use memctl_answers::access::Tokens;
use memctl_answers::alerts::Silences;
use memctl_answers::wire::from_wire;
use memctl_daemon::access::Role;
use memctl_daemon::access::rights::{Need, need};
use memctl_model::{Frame, SessionEnd, SessionId, SessionInfo};
use memctl_proto::item::Packed;
use memctl_proto::v1;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_tests::bytes_codec::BytesCodec;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::raw::{Stream, hello, session};
use memctl_tests::source::Producer;
use memctl_tests::{http, jobs, memctl, run, run_json, stderr, stored};
use prost::Message;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const TENANTS: [&str; 2] = ["team-a", "team-b"];
/// The job in both tenants.
const JOB: &str = "shared";

type Asking = InterceptedService<Channel, Credentials>;

/// The whole response: the bytes of its messages, and its final status.
async fn call(asking: &Asking, path: &str, request: Vec<u8>) -> (Vec<u8>, Code, String) {
    let mut client = tonic::client::Grpc::new(asking.clone()).max_decoding_message_size(64 << 20);
    client.ready().await.unwrap();
    let path = path.parse().unwrap();
    let requests = tokio_stream::once(request);
    let mut bytes = Vec::new();
    let ended = match client.streaming(Request::new(requests), path, BytesCodec).await {
        Ok(answers) => {
            let mut answers = answers.into_inner();
            loop {
                match answers.message().await {
                    Ok(Some(message)) => bytes.extend(message),
                    Ok(None) => break Status::ok(""),
                    Err(status) => break status,
                }
            }
        }
        Err(status) => status,
    };
    (bytes, ended.code(), ended.message().to_owned())
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

// --- what there is ------------------------------------------------------------------------------

/// Makes a token on a store that no daemon has open; returns its text.
fn token(data_dir: &Path, name: &str, role: &str, tenant: &str, more: &[&str]) -> String {
    let mut command = memctl();
    command.args(["token", "create", name, "--role", role, "--tenant", tenant, "-o", "json", "--data-dir"]);
    let made = run_json(command.arg(data_dir).args(more));
    made["tokens"][0]["secret"].as_str().expect("a secret").to_owned()
}

fn with(token: &str) -> Credentials {
    Credentials { token: Some(TokenSource::Text(token.to_owned())), tenant: None }
}

fn reached(url: &str, credentials: Credentials) -> Daemon {
    Daemon::Address(url.into()).showing(credentials)
}

async fn channel(daemon: &DaemonProcess) -> Channel {
    Endpoint::from_shared(daemon.url.clone()).unwrap().connect().await.unwrap()
}

async fn asking(daemon: &DaemonProcess, token: &str) -> Asking {
    InterceptedService::new(channel(daemon).await, with(token))
}

/// Text that only this tenant's job contains.
fn marker(tenant: &str) -> String {
    format!("marker_of_{}", tenant.replace('-', "_"))
}

/// Records a job that leaks, so that all kinds of data exist: a finding, an alert, a stack.
fn record(url: &str, tenant: &str, token: &str) {
    let mut session = jobs::session(JOB, 0);
    session.host = Some(marker(tenant));
    session.labels = vec![("owner".into(), marker(tenant))];
    let config = AgentConfig::new(session, reached(url, with(token)));
    let agent = Agent::start(config).unwrap();
    agent.stack(&[Frame { function: marker(tenant).into(), file: "train.py".into(), line: 3 }]);
    jobs::train(&agent, jobs::Training { kept_a_step: 8 << 20, ..jobs::Training::default() });
    let outcome = agent.stop(None, Duration::from_secs(60));
    assert!(outcome.delivered, "{outcome:?}");
}

/// The requests of every call, about the job that both tenants have.
fn request(path: &str, silence: &str, token: &str) -> Vec<u8> {
    let selection = || Some(v1::Selection { job: JOB.into(), ..Default::default() });
    match path.rsplit('/').next().unwrap() {
        "Check" | "List" | "Watch" | "ServerReflectionInfo" => Vec::new(),
        "Push" => {
            let said = v1::agent_message::Body::Hello(hello(&SessionInfo { job: "pushed".into(), ..session(77) }));
            v1::AgentMessage { body: Some(said) }.encode_to_vec()
        }
        "ListJobs" => v1::ListJobsRequest { judge: true, ..Default::default() }.encode_to_vec(),
        "GetJob" => v1::JobRequest { selection: selection() }.encode_to_vec(),
        "GetReport" => v1::ReportRequest { selection: selection() }.encode_to_vec(),
        "GetTimeline" => v1::TimelineRequest { selection: selection(), points: 0 }.encode_to_vec(),
        "GetSites" => v1::SitesRequest { selection: selection(), moment: None }.encode_to_vec(),
        "Export" => v1::ExportRequest { selection: selection(), ..Default::default() }.encode_to_vec(),
        "GetFragmentation" => v1::FragmentationRequest { selection: selection(), ..Default::default() }.encode_to_vec(),
        "GetOom" => v1::OomRequest { selection: selection(), ..Default::default() }.encode_to_vec(),
        "GetDiagnosis" => {
            v1::DiagnosisRequest { selection: selection(), replay: true, ..Default::default() }.encode_to_vec()
        }
        "GetWhatIf" => v1::WhatIfRequest { selection: selection(), ..Default::default() }.encode_to_vec(),
        "GetNeed" => v1::NeedRequest { selection: selection(), sizes: vec![1 << 26] }.encode_to_vec(),
        "GetFit" => {
            let recording = v1::SizedRecording { selection: selection(), size: None };
            let change = Some(v1::fit_request::Change::Under(1 << 20));
            v1::FitRequest { recordings: vec![recording], change, ..Default::default() }.encode_to_vec()
        }
        "GetProfile" => v1::ProfileRequest { selection: selection() }.encode_to_vec(),
        "GetLedger" => v1::LedgerRequest { selection: selection(), ..Default::default() }.encode_to_vec(),
        "FindHolders" => v1::HoldersRequest { selection: selection(), ..Default::default() }.encode_to_vec(),
        "Ask" => v1::PageQuestion { job: JOB.into(), question: "query".into() }.encode_to_vec(),
        "GetStatus" => v1::StatusRequest {}.encode_to_vec(),
        "DeleteJob" => v1::DeleteJobRequest { job: "not-there".into(), ..Default::default() }.encode_to_vec(),
        "ListAlerts" => v1::ListAlertsRequest { firing_only: false }.encode_to_vec(),
        "TestReceivers" => v1::TestReceiversRequest { receiver: Some("log".into()) }.encode_to_vec(),
        "AddSilence" => {
            let silence = v1::Silence { job: "another".into(), ..Default::default() };
            v1::AddSilenceRequest { silence: Some(silence), for_ns: 60_000_000_000 }.encode_to_vec()
        }
        "RemoveSilence" => v1::RemoveSilenceRequest { id: silence.into() }.encode_to_vec(),
        "ListSilences" => v1::ListSilencesRequest {}.encode_to_vec(),
        "GetRules" => v1::GetRulesRequest {}.encode_to_vec(),
        "GetCaller" => v1::GetCallerRequest {}.encode_to_vec(),
        "CreateToken" => {
            let (name, role) = ("made".into(), v1::Role::Reader as i32);
            v1::CreateTokenRequest { name, role, ..Default::default() }.encode_to_vec()
        }
        "ListTokens" => v1::ListTokensRequest {}.encode_to_vec(),
        "RevokeToken" => v1::RevokeTokenRequest { token: token.into() }.encode_to_vec(),
        "ListAudit" => v1::ListAuditRequest { limit: 0 }.encode_to_vec(),
        other => panic!("{other} has no request here: add one, so that it is tested for every role and tenant"),
    }
}

/// All calls in the daemon's descriptors.
fn calls() -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for file in prost_types::FileDescriptorSet::decode(memctl_proto::FILE_DESCRIPTOR_SET).unwrap().file {
        for service in &file.service {
            let method = |method: &prost_types::MethodDescriptorProto| {
                format!("/{}.{}/{}", file.package(), service.name(), method.name())
            };
            calls.extend(service.method.iter().map(method));
        }
    }
    calls
}

// --- tests --------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn every_role_calls_what_it_may_and_sees_its_own_tenant_alone() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let tokens: Vec<(Role, &str, String)> = TENANTS
        .iter()
        .flat_map(|tenant| Role::ALL.map(|role| (role, *tenant)))
        .map(|(role, tenant)| (role, tenant, token(dir, &marker(tenant), role.name(), tenant, &[])))
        .collect();
    let of = |role: Role, tenant: &str| {
        let found = tokens.iter().find(|(other, of, _)| (*other, *of) == (role, tenant));
        found.map(|(_, _, token)| token.clone()).unwrap()
    };
    let daemon = DaemonProcess::sqlite(dir, free_port());
    for tenant in TENANTS {
        let (url, token) = (daemon.url.clone(), of(Role::Agent, tenant));
        tokio::task::spawn_blocking(move || record(&url, tenant, &token)).await.unwrap();
    }
    // Each tenant has a silence whose text only that tenant may read. The other tenant guesses its id.
    let mut silences = Vec::new();
    for tenant in TENANTS {
        let silence = v1::Silence { job: "none".into(), comment: marker(tenant), ..Default::default() };
        let added = v1::AddSilenceRequest { silence: Some(silence), for_ns: 3_600_000_000_000 };
        let asking = asking(&daemon, &of(Role::Operator, tenant)).await;
        let (bytes, code, words) = call(&asking, "/memctl.v1.Alerts/AddSilence", added.encode_to_vec()).await;
        assert_eq!(code, Code::Ok, "{words}");
        silences
            .push(from_wire::<Silences>(&v1::Answer::decode(bytes.as_slice()).unwrap()).unwrap().silences.remove(0).id);
    }
    let mut answered = 0;
    for (role, tenant, token) in &tokens {
        let other = TENANTS.iter().position(|it| it != tenant).unwrap();
        let foreign = marker(TENANTS[other]);
        let foreign_token = &of(Role::Reader, TENANTS[other])[7..23];
        let asking = asking(&daemon, token).await;
        for path in calls() {
            let (bytes, code, words) = call(&asking, &path, request(&path, &silences[other], foreign_token)).await;
            let may = need(&path).expect("a row").roles().contains(role);
            assert_eq!(code == Code::PermissionDenied, !may, "{} {tenant} {path}: {code:?} {words}", role.name());
            assert!(
                !holds(&bytes, &foreign) && !words.contains(&foreign),
                "{} of {tenant} reads of the other tenant in {path}",
                role.name()
            );
            answered += usize::from(holds(&bytes, &marker(tenant)));
        }
        // One call carries all of the page's requests about a job; it has none about several jobs.
        let views =
            ["diagnose", "timeline?rank=0", "sites?rank=0", "ledger", "flame?rank=0", "blocks?rank=0", "heat", "oom"];
        for view in views.into_iter().chain(["../../jobs", "..%2F..%2Fjobs", "query/../../../alerts"]) {
            let question = v1::PageQuestion { job: JOB.into(), question: view.into() }.encode_to_vec();
            let (bytes, code, words) = call(&asking, "/memctl.v1.Page/Ask", question).await;
            let may = need("/memctl.v1.Page/Ask").expect("a row").roles().contains(role);
            assert_eq!(code == Code::PermissionDenied, !may, "{} {tenant} {view}: {code:?} {words}", role.name());
            // Some views require the name of one of several processes, and report this.
            let expected = if view.contains("..") { [Code::NotFound; 2] } else { [Code::Ok, Code::InvalidArgument] };
            assert!(!may || expected.contains(&code), "{} {tenant} {view}: {code:?} {words}", role.name());
            assert!(!holds(&bytes, &foreign) && !words.contains(&foreign), "{} of {tenant} reads {view}", role.name());
        }
    }
    assert!(answered >= 2 * 20, "{answered} answers held what they should");
    // The attempts have not changed the other tenant's objects.
    for (tenant, silence) in TENANTS.iter().zip(&silences) {
        let asking = asking(&daemon, &of(Role::Admin, tenant)).await;
        let (bytes, ..) = call(&asking, "/memctl.v1.Alerts/ListSilences", Vec::new()).await;
        assert!(holds(&bytes, silence), "the silence of {tenant} is gone");
        let (bytes, ..) = call(&asking, "/memctl.v1.Access/ListTokens", Vec::new()).await;
        let listed = from_wire::<Tokens>(&v1::Answer::decode(bytes.as_slice()).unwrap()).unwrap().tokens;
        assert!(listed.iter().all(|token| token.revoked_at.is_none()), "a token of {tenant} was revoked");
    }
    // A job is deleted in one tenant and stays in the other.
    let delete = v1::DeleteJobRequest { job: JOB.into(), ..Default::default() }.encode_to_vec();
    let a = asking(&daemon, &of(Role::Operator, TENANTS[0])).await;
    let deleted = async || call(&a, "/memctl.v1.Query/DeleteJob", delete.clone()).await.1;
    // The streams that were tried above must have ended.
    wait("the job can be deleted", async || deleted().await == Code::Ok).await;
    assert_eq!(deleted().await, Code::NotFound);
    let b = asking(&daemon, &of(Role::Reader, TENANTS[1])).await;
    let (bytes, code, _) = call(&b, "/memctl.v1.Query/GetJob", request("/GetJob", "", "")).await;
    assert!(code == Code::Ok && holds(&bytes, &marker(TENANTS[1])));
    // Tokens exist now, so without a token only health responds.
    let anonymous = InterceptedService::new(channel(&daemon).await, Credentials::default());
    for path in calls() {
        let (bytes, code, words) = call(&anonymous, &path, request(&path, "", "")).await;
        assert_eq!((code, bytes.len()), (Code::Unauthenticated, 0), "{path}: {words}");
    }
    let health = "/grpc.health.v1.Health/Check";
    assert_eq!(need(health), Some(Need::Nothing));
    assert_eq!(call(&anonymous, health, Vec::new()).await.1, Code::Ok);
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_of_all_tenants_names_the_one_that_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let agents: Vec<String> = TENANTS.iter().map(|tenant| token(dir, "agent", "agent", tenant, &[])).collect();
    let admin = token(dir, "root", "admin", "*", &[]);
    let daemon = DaemonProcess::sqlite(dir, free_port());
    for (tenant, token) in TENANTS.into_iter().zip(agents) {
        let url = daemon.url.clone();
        tokio::task::spawn_blocking(move || record(&url, tenant, &token)).await.unwrap();
    }
    let file = dir.join("token");
    std::fs::write(&file, admin).unwrap();
    let ask = |more: &[&str]| {
        let mut command = memctl();
        command.args(["query", "--job", JOB, "--daemon", &daemon.url, "--token-file"]).arg(&file);
        command.args(more).output().unwrap()
    };
    std::fs::rename(&file, dir.join("elsewhere")).unwrap();
    let unread = ask(&[]);
    assert_eq!(unread.status.code(), Some(2), "{unread:?}");
    assert!(memctl_tests::stderr(&unread).contains("--token-file or MEMCTL_TOKEN_FILE names it"), "{unread:?}");
    std::fs::rename(dir.join("elsewhere"), &file).unwrap();
    let several = ask(&[]);
    assert!(!several.status.success());
    assert!(memctl_tests::stderr(&several).contains("--tenant"), "{several:?}");
    for tenant in TENANTS {
        let one = ask(&["--tenant", tenant, "-o", "json"]);
        assert!(holds(&one.stdout, &marker(tenant)), "{one:?}");
        assert!(TENANTS.iter().filter(|other| *other != &tenant).all(|other| !holds(&one.stdout, &marker(other))));
    }
    assert_eq!(daemon.terminate(), 0);
}

/// Opens a stream with a secret.
async fn open(daemon: &DaemonProcess, session: &SessionInfo, secret: &[u8]) -> (Stream, Heard) {
    let hello = v1::Hello { secret: secret.to_vec(), ..hello(session) };
    Stream::open(channel(daemon).await, hello).await
}

fn end(seq: u64) -> v1::Item {
    Packed::end(&SessionEnd::default()).numbered(seq)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_agent_takes_over_or_ends_the_session_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let victim = SessionInfo { job: "victim".into(), rank: 3, ..session(9) };
    let (mut stream, welcome) = open(&daemon, &victim, &[7; 32]).await;
    assert!(matches!(welcome, Heard::Welcome(_)), "{welcome:?}");
    stream.send(Packed::marks(&[], 100).numbered(1)).await;
    stream.until_durable(1).await;
    // Any reader of the job learns the session's id.
    let exported = stored::events(channel(&daemon).await, "victim").await;
    assert_eq!(exported.len(), 1);
    let wrong = [
        ("another secret", victim.clone(), vec![8; 32]),
        ("no secret", victim.clone(), Vec::new()),
        ("another rank", SessionInfo { rank: 0, ..victim.clone() }, vec![7; 32]),
        ("another attempt", SessionInfo { attempt: 1, ..victim.clone() }, vec![7; 32]),
        ("another job", SessionInfo { job: "mine".into(), ..victim.clone() }, vec![7; 32]),
    ];
    for (what, session, secret) in &wrong {
        let (thief, heard) = open(&daemon, session, secret).await;
        thief.send(end(2)).await;
        match heard {
            Heard::Refused(refused) => {
                assert_eq!(refused.reason(), v1::RefusedReason::Denied, "{what}: {}", refused.message);
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    // The victim's stream is not affected.
    stream.send(Packed::marks(&[], 100).numbered(2)).await;
    stream.until_durable(2).await;
    drop(stream);
    // After it has ended, no other caller can continue it, but the agent can.
    for (what, session, secret) in &wrong {
        let (_, heard) = open(&daemon, session, secret).await;
        assert!(matches!(heard, Heard::Refused(_)), "{what}: {heard:?}");
    }
    let (mut stream, heard) = open(&daemon, &victim, &[7; 32]).await;
    assert!(matches!(&heard, Heard::Welcome(welcome) if welcome.resume_after == 2), "{heard:?}");
    stream.send(end(3)).await;
    stream.until_durable(3).await;
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_came_in_before_the_first_token_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let (mut stream, heard) = open(&daemon, &session(9), &[7; 32]).await;
    assert!(matches!(heard, Heard::Welcome(_)), "{heard:?}");
    stream.send(Packed::marks(&[], 100).numbered(1)).await;
    stream.until_durable(1).await;
    let url = daemon.url.clone();
    let made = memctl().args(["token", "create", "t", "--role", "admin", "--tenant", "*", "--daemon", &url]).output();
    assert!(made.unwrap().status.success());
    let refused = tokio::time::timeout(Duration::from_secs(60), stream.until_refused());
    let (reason, words) = refused.await.expect("the stream ends");
    assert!(reason == v1::RefusedReason::Unauthenticated && words.contains("wants a token"), "{reason:?} {words}");
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_lies_ahead_owns_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let in_2255 = 9_000_000_000_000_000_000;
    let liar = SessionInfo { job: "liar".into(), started_ns: in_2255, ..session(1) };
    let (_liar, heard) = open(&daemon, &liar, &[1; 32]).await;
    assert!(matches!(heard, Heard::Welcome(_)), "{heard:?}");
    let honest = SessionInfo { job: "honest".into(), started_ns: memctl_agent::now_ns(), ..session(2) };
    let (_honest, heard) = open(&daemon, &honest, &[2; 32]).await;
    assert!(matches!(heard, Heard::Welcome(_)), "{heard:?}");
    let jobs = run_json(memctl().args(["jobs", "-o", "json", "--daemon", &daemon.url]));
    assert_eq!(jobs["jobs"][0]["id"], "honest", "{jobs}");
    let started = |job: usize| jobs["jobs"][job]["started_at"].as_str().unwrap().to_owned();
    assert!(started(1) <= started(0) && !started(1).starts_with("22"), "{jobs}");
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_writes_to_the_jobs_that_its_token_names() {
    let folder = tempfile::tempdir().unwrap();
    let agent = token(folder.path(), "ci", "agent", "team-a", &["--jobs", "train-*"]);
    let reader = token(folder.path(), "eyes", "reader", "team-a", &[]);
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let refused = |job: &'static str, token: &str| {
        let config = AgentConfig::new(jobs::session(job, 0), reached(&daemon.url, with(token)));
        async move {
            let stopping = move || Agent::start(config).unwrap().stop(None, Duration::from_secs(30));
            tokio::task::spawn_blocking(stopping).await.unwrap()
        }
    };
    let outcome = refused("train-7", &agent).await;
    assert!(outcome.delivered, "{outcome:?}");
    let outcome = refused("prod", &agent).await;
    assert!(!outcome.delivered && outcome.refused.as_ref().unwrap().contains("train-*"), "{outcome:?}");
    let outcome = refused("train-7", &reader).await;
    assert!(!outcome.delivered && outcome.refused.is_some(), "{outcome:?}");
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_exchanged_under_load_and_no_event_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let name = |number: usize| format!("node-{number}");
    let tokens: Vec<String> = (0..4).map(|number| token(dir, &name(number), "agent", "team-a", &[])).collect();
    let reader = token(dir, "eyes", "reader", "team-a", &[]);
    let admin = dir.join("admin");
    std::fs::write(&admin, token(dir, "root", "admin", "*", &[])).unwrap();
    let daemon = DaemonProcess::sqlite(dir, free_port());
    let file = dir.join("token");
    std::fs::write(&file, &tokens[0]).unwrap();
    let credentials = Credentials { token: Some(TokenSource::File(file.clone())), tenant: None };
    let spool = SpoolConfig { folder: dir.join("spool"), bytes_max: 1 << 30 };
    let config = AgentConfig {
        linger: Some(Duration::from_millis(5)),
        backoff: Backoff { first: Duration::from_millis(10), most: Duration::from_millis(100) },
        spool: Some(spool),
        ..AgentConfig::new(jobs::session(JOB, 0), reached(&daemon.url, credentials))
    };
    let asking = asking(&daemon, &reader).await;
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let streaming = tokio::task::spawn_blocking(move || {
        let agent = Agent::start(config).unwrap();
        let mut recorder = agent.recorder(memctl_model::DeviceIndex(0)).unwrap();
        let mut producer = Producer::new(5);
        while stopped.try_recv().is_err() {
            for event in producer.by_ref().take(1_000) {
                recorder.event_waiting(&event).unwrap();
            }
        }
        drop(recorder);
        agent.stop(None, Duration::from_secs(60))
    });
    let streams = || async {
        let (bytes, code, words) = call(&asking, "/memctl.v1.Query/GetStatus", Vec::new()).await;
        assert_eq!(code, Code::Ok, "{words}");
        let status = v1::Status::decode(bytes.as_slice()).unwrap();
        (status.sessions_streaming, status.events_stored)
    };
    wait("events are stored", async || streams().await.1 > 10_000).await;
    for (number, next) in tokens.iter().enumerate().skip(1) {
        // The old token is revoked before the new one exists: for a while no token is accepted.
        let old = name(number - 1);
        let revoke = ["token", "revoke", &old, "-q", "--tenant", "team-a", "--daemon", &daemon.url, "--token-file"];
        run(memctl().args(revoke).arg(&admin));
        wait("the stream of a revoked token ends", async || streams().await.0 == 0).await;
        let before = streams().await.1;
        let beside = dir.join("token.next");
        std::fs::write(&beside, next).unwrap();
        std::fs::rename(&beside, &file).unwrap();
        wait("the agent goes on with the new token", async || streams().await.1 > before + 10_000).await;
    }
    stop.send(()).unwrap();
    let outcome = streaming.await.unwrap();
    assert!(outcome.delivered && outcome.counts.dropped == 0, "{outcome:?}");
    assert_eq!(streams().await.1, outcome.end.produced, "every event that was produced is stored, once");
    let audit = run(memctl().args(["audit", "--daemon", &daemon.url, "--token-file"]).arg(&admin));
    assert!(audit.contains("RevokeToken") && audit.contains("CreateToken"), "{audit}");
    assert_eq!(daemon.terminate(), 0);
}

/// Waits for a state of the daemon.
async fn wait(what: &str, is: impl AsyncFn() -> bool) {
    let looking = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looking).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[test]
fn what_a_daemon_and_an_agent_keep_is_theirs_alone() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("made/data");
    let store = format!("sqlite:{}", dir.join("memctl.db").display());
    let check = format!("umask 0; exec {} daemon --check --store {store}", memctl_tests::memctl_path().display());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    for wide in [false, true] {
        let done = std::process::Command::new("sh").args(["-c", &check]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        assert_eq!(mode(&dir), 0o700);
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path) & 0o077, 0, "{} is {:o}", path.display(), mode(&path));
            if !wide {
                // The mode that an earlier version used.
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            }
        }
    }
    let spool = folder.path().join("spool");
    let id = SessionId([3; 16]);
    let config = AgentConfig {
        spool: Some(SpoolConfig { folder: spool.clone(), bytes_max: 1 << 20 }),
        ..AgentConfig::new(
            SessionInfo { id, ..jobs::session("nobody", 0) },
            Daemon::Address("http://127.0.0.1:0".into()),
        )
    };
    let agent = Agent::start(config).unwrap();
    let session = spool.join(id.to_string());
    assert_eq!((mode(&session), mode(&session.join("secret"))), (0o700, 0o600));
    drop(agent);
}

#[test]
fn the_first_token_is_an_admins_and_an_import_without_the_right_fails_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let create = |name: &str, role: &str, by: Option<&Path>| {
        let mut command = memctl();
        command.args(["token", "create", name, "--role", role, "-q", "--daemon", &daemon.url]);
        command.args(by.map(|file| format!("--token-file={}", file.display()))).output().unwrap()
    };
    let kept = |name: &str, secret: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, secret).unwrap();
        file
    };
    // Without tokens every caller is admitted. The first token ends that, so it must be able to create others.
    let agents = create("nodes", "agent", None);
    assert_eq!(agents.status.code(), Some(5), "{agents:?}");
    assert!(memctl_tests::stderr(&agents).contains("the first token must have the role admin"), "{agents:?}");
    let admin = kept("admin", &memctl_tests::stdout(&create("admin", "admin", None)));
    let reader = kept("reader", &memctl_tests::stdout(&create("reader", "reader", Some(&admin))));
    let agent = memctl_tests::stdout(&create("agent", "agent", Some(&admin)));
    let unknown = kept("unknown", &format!("{}{}", &agent.trim()[..agent.trim().len() - 4], "AAAA"));
    let snapshot = memctl_tests::recordings::folder("cnn_rank0_cache").join("rank0.pickle.zst");
    let import = |file: &Path| {
        let file = format!("--token-file={}", file.display());
        memctl()
            .arg("import")
            .arg(&snapshot)
            .args(["--job", "j", "-q", "--daemon", &daemon.url, &file])
            .output()
            .unwrap()
    };
    for (file, words) in [(&unknown, "token"), (&reader, "the role reader, which imports nothing")] {
        let began = std::time::Instant::now();
        let refused = import(file);
        assert_eq!(refused.status.code(), Some(6), "{refused:?}");
        let said = memctl_tests::stderr(&refused);
        assert!(said.contains(words) && !said.contains("could not be removed"), "{said}");
        // An earlier version retried for a minute.
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "{said}");
    }
    let args = ["token", "create", "some", "--role", "agent", "--jobs", "train-*", "-q", "--daemon", &daemon.url];
    let some = memctl().args(args).arg(format!("--token-file={}", admin.display())).output().unwrap();
    let refused = import(&kept("some", &memctl_tests::stdout(&some)));
    let said = memctl_tests::stderr(&refused);
    assert_eq!(refused.status.code(), Some(6), "{said}");
    assert!(said.contains("may write only to jobs named train-*, and j is not one of them"), "{said}");
    assert_eq!(said.lines().count(), 1, "no line of the uplink, no clean-up: {said}");
    assert!(import(&kept("agent", &agent)).status.success());
    assert_eq!(daemon.terminate(), 0);
}

/// The last admin would lock everybody out; and each stream that the gate refuses is counted.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_admin_stays_and_refused_streams_are_counted() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let (admin, reader) = (dir.join("admin"), dir.join("reader"));
    std::fs::write(&admin, token(dir, "boss", "admin", "*", &[])).unwrap();
    std::fs::write(&reader, token(dir, "reader", "reader", "team-a", &[])).unwrap();
    let daemon = DaemonProcess::sqlite_with(dir, free_port(), &["--http-listen", "127.0.0.1:0"]);
    let asked = |words: &[&str]| {
        let output = memctl().args(words).args(["--daemon", &daemon.url, "--token-file"]).arg(&admin).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (code, words) = asked(&["token", "revoke", "boss"]);
    assert!(code != Some(0) && words.contains("the last token of an admin of all tenants"), "{code:?} {words}");
    assert_eq!(asked(&["token", "create", "second", "--role", "admin", "--tenant", "*"]).0, Some(0));
    let known = std::fs::read_to_string(&reader).unwrap();
    for token in ["memctl_0000000000000000_0", known.trim()] {
        let config = AgentConfig::new(jobs::session(JOB, 0), reached(&daemon.url, with(token)));
        let stop = move || Agent::start(config).unwrap().stop(None, Duration::from_secs(2));
        let outcome = tokio::task::spawn_blocking(stop).await.unwrap();
        assert!(!outcome.delivered, "{outcome:?}");
    }
    let bearer = format!("Authorization: Bearer {}\r\n", std::fs::read_to_string(&admin).unwrap().trim());
    let page = http::get_with(&format!("{}/metrics", daemon.http[0]), &bearer);
    let metrics = page.map(|(_, _, body)| body).unwrap_or_default();
    let count = |reason: &str| -> u64 {
        let name = format!("memctl_streams_refused_total{{reason=\"{reason}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)).expect("the metric").parse::<f64>().unwrap() as u64
    };
    assert!(count("unauthenticated") >= 1 && count("denied") >= 1, "{metrics}");
    assert_eq!(asked(&["token", "revoke", "boss"]).0, Some(0), "another admin stays");
}
