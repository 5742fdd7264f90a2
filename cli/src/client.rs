//! Sends requests to a daemon or to the store in this process, and reads the responses.
//!
//! Guarantees: the connection is closed whether or not the request succeeds; sessions that wait in the spool are stored
//! first.

use memctl_answers::Job;
use memctl_answers::access::Caller;
use memctl_answers::diagnose::Diagnosis;
pub use memctl_answers::dossier::same_job;
use memctl_answers::frag::Fragmentation;
use memctl_answers::jobs::Jobs;
use memctl_answers::ledger::Ledger;
use memctl_answers::oom::Oom;
use memctl_answers::profile::Profile;
use memctl_answers::report::Report;
use memctl_answers::sites::{Sites, View};
use memctl_answers::timeline::Timeline;
use memctl_answers::wire::from_wire;
use memctl_proto::v1;
use memctl_proto::v1::access_client::AccessClient;
use serde::de::DeserializeOwned;
use tonic::{Response, Status, Streaming};

use crate::args::Global;
use crate::connect::{Connection, WhenMissing, connect};
use crate::exit::Failure;
use crate::spool_delivery::take_in;

/// The most jobs among which the runs of one are looked for.
const JOBS_MAX: u32 = 1000;

/// Connects, sends the requests and closes the connection, also after an error.
///
/// # Errors
/// See [`Failure`].
pub async fn asking<T, F>(global: &Global, ask: F) -> Result<T, Failure>
where
    F: AsyncFnOnce(&mut Connection) -> Result<T, Failure>,
{
    let mut connection = connect(global, WhenMissing::Refuse).await?;
    take_in(&connection, global).await;
    let answer = ask(&mut connection).await;
    connection.close().await;
    answer
}

/// The flags for the commands that a page proposes; `None` with `--quiet`.
#[must_use]
pub fn hint(connection: &Connection, global: &Global) -> Option<String> {
    (!global.quiet).then(|| connection.flags.clone())
}

/// The content of a call's response.
///
/// # Errors
/// See [`Failure`].
pub fn answered<T: DeserializeOwned>(
    response: Result<Response<v1::Answer>, Status>,
    connection: &Connection,
) -> Result<T, Failure> {
    let response = response.map_err(|status| connection.failure(&status))?;
    Ok(from_wire(response.get_ref())?)
}

/// The content of a streamed response, which may take long.
///
/// # Errors
/// See [`Failure`].
pub async fn streamed<T: DeserializeOwned>(
    response: Result<Response<Streaming<v1::Answer>>, Status>,
    connection: &Connection,
) -> Result<T, Failure> {
    let first = async {
        let part = response?.into_inner().message().await?;
        part.map(Response::new).ok_or_else(|| Status::internal("the daemon sent no answer"))
    };
    answered(first.await, connection)
}

/// The caller, as the daemon sees it.
///
/// # Errors
/// The daemon's. `None` if the daemon has another version.
pub async fn caller(connection: &Connection) -> Result<Option<Caller>, Status> {
    let response = AccessClient::new(connection.asking()).get_caller(v1::GetCallerRequest {}).await?;
    Ok(from_wire(response.get_ref()).ok())
}

/// Requests a job's report.
///
/// # Errors
/// See [`Failure`].
pub async fn report(connection: &mut Connection, selection: v1::Selection, global: &Global) -> Result<Report, Failure> {
    let request = v1::ReportRequest { selection: Some(selection) };
    let response = connection.query.get_report(request).await;
    Ok(Report { hint: hint(connection, global), ..answered(response, connection)? })
}

/// Requests a job's timeline.
///
/// # Errors
/// See [`Failure`].
pub async fn course(
    connection: &mut Connection,
    selection: v1::Selection,
    points: u32,
    global: &Global,
) -> Result<Timeline, Failure> {
    let chosen = !selection.ranks.is_empty() || !selection.processes.is_empty();
    let request = v1::TimelineRequest { selection: Some(selection), points };
    let response = connection.query.get_timeline(request).await;
    Ok(Timeline { chosen, hint: hint(connection, global), ..answered(response, connection)? })
}

/// Requests the parts of a device's memory use.
///
/// # Errors
/// See [`Failure`].
pub async fn ledger(connection: &mut Connection, request: v1::LedgerRequest) -> Result<Ledger, Failure> {
    answered(connection.query.get_ledger(request).await, connection)
}

/// Requests live memory by site.
///
/// # Errors
/// See [`Failure`].
pub async fn live(connection: &mut Connection, request: v1::SitesRequest, view: View) -> Result<Sites, Failure> {
    let response = connection.query.get_sites(request).await;
    Ok(Sites { view, ..answered(response, connection)? })
}

/// Requests how free memory is split up, and the effect of other allocator settings.
///
/// # Errors
/// See [`Failure`].
pub async fn fragmentation(connection: &mut Connection, selection: v1::Selection) -> Result<Fragmentation, Failure> {
    let flags = connection.flags.clone();
    let request = v1::FragmentationRequest { selection: Some(selection), replay: true, flags };
    answered(connection.query.get_fragmentation(request).await, connection)
}

/// Requests the allocation requests that failed. With `replay`, the response has the effect of other allocator
/// settings.
///
/// # Errors
/// See [`Failure`].
pub async fn oom(connection: &mut Connection, selection: v1::Selection, replay: bool) -> Result<Oom, Failure> {
    let request = v1::OomRequest { selection: Some(selection), replay, flags: connection.flags.clone() };
    answered(connection.query.get_oom(request).await, connection)
}

/// Requests the diagnosis, with the effect of other allocator settings.
///
/// # Errors
/// See [`Failure`].
pub async fn diagnosis(connection: &mut Connection, selection: v1::Selection) -> Result<Diagnosis, Failure> {
    let flags = connection.flags.clone();
    let request = v1::DiagnosisRequest { selection: Some(selection), replay: true, flags };
    answered(connection.query.get_diagnosis(request).await, connection)
}

/// Requests a list of jobs.
///
/// # Errors
/// See [`Failure`].
pub async fn jobs(connection: &mut Connection, request: v1::ListJobsRequest) -> Result<Jobs, Failure> {
    let response = connection.query.list_jobs(request).await;
    answered(response, connection)
}

/// The newest runs of a job, the newest first.
///
/// # Errors
/// See [`Failure`].
pub async fn newest(connection: &mut Connection, job: &str, most: usize) -> Result<Vec<Job>, Failure> {
    let known = jobs(connection, v1::ListJobsRequest { limit: JOBS_MAX, ..Default::default() }).await?.jobs;
    let name = match job {
        "latest" => known.first().map_or_else(String::new, |newest| newest.name.clone()),
        name => name.to_owned(),
    };
    let mut runs: Vec<Job> = known.into_iter().filter(|run| run.name == name).collect();
    runs.sort_by_key(|run| std::cmp::Reverse((run.run, run.arrived_at)));
    runs.truncate(most);
    Ok(runs)
}

/// The profile of a run.
///
/// # Errors
/// See [`Failure`].
pub async fn profile(connection: &mut Connection, job: &str) -> Result<Profile, Failure> {
    let selection = v1::Selection { job: job.to_owned(), ..v1::Selection::default() };
    let request = v1::ProfileRequest { selection: Some(selection) };
    let response = connection.query.get_profile(request).await;
    streamed(response, connection).await
}
