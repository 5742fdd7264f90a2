//! Asks whoever answers, a daemon or the store in this process, and makes an answer of what comes back.
//!
//! Guarantees: a connection is closed whatever came of the question; what waits on this machine is taken in before.

pub use memctl_answers::dossier::same_job;
use memctl_answers::report::Report;
use memctl_answers::sites::{Sites, View};
use memctl_answers::timeline::Timeline;
use memctl_proto::v1;

use crate::args::Global;
use crate::connect::{Connection, WhenMissing, connect};
use crate::exit::Failure;
use crate::spooled::take_in;

/// Connects, asks, and closes whatever came of it.
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

/// The flags for the commands that a page proposes, if it shall propose any.
#[must_use]
pub fn hint(connection: &Connection, global: &Global) -> Option<String> {
    (!global.quiet).then(|| connection.flags.clone())
}

/// Asks for a job's report.
///
/// # Errors
/// See [`Failure`].
pub async fn report(connection: &mut Connection, selection: v1::Selection, global: &Global) -> Result<Report, Failure> {
    let request = v1::ReportRequest { selection: Some(selection) };
    let response = connection.query.get_report(request).await.map_err(|status| connection.failure(&status))?;
    Ok(Report::new(response.into_inner(), hint(connection, global))?)
}

/// Asks for a job's course.
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
    let response = connection.query.get_timeline(request).await.map_err(|status| connection.failure(&status))?;
    Ok(Timeline::new(response.into_inner(), chosen, hint(connection, global))?)
}

/// Asks for live memory by site.
///
/// # Errors
/// See [`Failure`].
pub async fn live(connection: &mut Connection, request: v1::SitesRequest, view: View) -> Result<Sites, Failure> {
    let response = connection.query.get_sites(request).await.map_err(|status| connection.failure(&status))?;
    Ok(Sites::new(response.into_inner(), view)?)
}
