//! Explains a job's memory from its events: fragmentation, out of memory, churn. It reads the store and calls the
//! analysis.
//!
//! Guarantees: for each moment, at most one stretch of `window::EVENTS_MAX` events, or the events since a keyframe, are
//! replayed. At most [`RANKS_MAX`] ranks with `ooms::FAILURES_MAX` failed requests each are replayed. Expired events
//! are left out, never guessed.
//! Refuses: devices without events.

pub(crate) mod classed;
pub(crate) mod measured;
pub(crate) mod ooms;
pub(crate) mod window;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use memctl_analysis::churn::{self, RankChurn};
use memctl_analysis::fragmentation::RankFragmentation;
use memctl_analysis::{fragmentation, oom};
use memctl_answers::naming::shell_word;
use memctl_model::Finding;
use memctl_proto::v1;

use crate::job_data::concurrently::concurrently;
use crate::job_data::error::ReadError;
use crate::job_data::job::{FoundJob, find};
use crate::store::{DeviceRow, SessionKey, SessionRow, Store};

/// The most ranks that are replayed. In larger jobs these are rank 0 and the ranks that stand out.
pub const RANKS_MAX: usize = 16;

/// Everything that a job's events explain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explained {
    /// By rank and device.
    pub fragmentation: Vec<RankFragmentation>,
    /// By rank and device.
    pub churn: Vec<RankChurn>,
    /// The session of each entry of `fragmentation` and `churn`, in the same order.
    pub analysed: Vec<SessionKey>,
    /// Reports about failed requests, by time.
    pub ooms: Vec<oom::Report>,
    /// The session of each entry of `ooms`, in the same order.
    pub failed: Vec<SessionKey>,
    /// Ranks that ran out of memory without a failed request.
    deaths: Vec<Finding>,
    /// Ranks of the job.
    known: usize,
    /// The number of ranks that were not replayed.
    pub left_out: u32,
}

impl Explained {
    /// Combines the findings about out of memory, fragmentation and churn with those about growth (`grows`), so that
    /// one cause is one finding.
    pub fn settle(&mut self, mut grows: Vec<Finding>) -> Vec<Finding> {
        let Self { fragmentation, churn, ooms, deaths, known, .. } = self;
        oom::outcome::blame(ooms, &grows);
        oom::outcome::excuse(fragmentation, ooms, &grows);
        grows.extend(oom::findings(ooms, *known));
        grows.extend(deaths.iter().cloned());
        grows.extend(fragmentation::finding::finding(fragmentation, *known));
        grows.extend(churn::finding(churn, *known));
        oom::outcome::tell(&mut grows, ooms, *known);
        grows.sort_by_key(|finding| Reverse(finding.severity));
        grows
    }
}

/// The findings about out of memory, fragmentation and churn of a job, imported or running.
///
/// # Errors
/// There is no such job, the store fails, or an item cannot be decoded. Expired data is not an error.
pub async fn findings(store: &Arc<dyn Store>, selection: &v1::Selection) -> Result<Vec<Finding>, ReadError> {
    Ok(explain(store, &Arc::new(find(&**store, selection).await?)).await?.settle(Vec::new()))
}

/// The same as [`findings`] for a job that is already loaded; also returns the reports behind the findings.
///
/// # Errors
/// See [`findings`].
pub(crate) async fn explain(store: &Arc<dyn Store>, found: &Arc<FoundJob>) -> Result<Explained, ReadError> {
    let chosen = chosen(found);
    let mut explained = Explained { known: found.rank_count(), ..Explained::default() };
    let replays = chosen
        .iter()
        .map(|&(session, device)| replay_device(store.clone(), found.clone(), session.clone(), device.clone()))
        .collect();
    let mut ooms = Vec::new();
    concurrently(replays, |(session, failures, analysis)| {
        if let Some(window::StretchAnalysis { fragmentation, churn }) = analysis {
            explained.fragmentation.push(fragmentation);
            explained.churn.push(churn);
            explained.analysed.push(session);
        }
        ooms.extend(failures.into_iter().map(|report| (session, report)));
    })
    .await?;
    ooms.sort_by_key(|(_, report)| (report.facts.time_ns, report.facts.rank));
    (explained.failed, explained.ooms) = ooms.into_iter().unzip();
    explained.deaths = ooms::deaths(&**store, found).await?;
    explained.deaths.extend(ooms::counted(&**store, found).await?);
    let analysed: HashSet<SessionKey> = chosen.iter().map(|(session, _)| session.key).collect();
    explained.left_out = found.sessions.len().saturating_sub(analysed.len()) as u32;
    Ok(explained)
}

/// Puts the job's run into the commands of advice.
pub(crate) fn name_job(findings: &mut [Finding], found: &FoundJob) {
    let job = shell_word(&found.job.address().to_string());
    findings.iter_mut().for_each(|finding| finding.name_job(&job));
}

/// Adds the names of processes to findings that have only ranks.
pub(crate) fn name_processes(findings: &mut [Finding], found: &FoundJob) {
    for finding in findings.iter_mut().filter(|finding| finding.processes.is_empty()) {
        let own = found.sessions.iter().filter(|session| finding.ranks.contains(&session.info.rank));
        let names: Vec<String> = own.map(|session| found.process_name(session)).collect();
        if names.len() == finding.ranks.len() {
            finding.processes = names;
        }
    }
}

/// Replays one device: its failed requests, and its last stretch if that is still stored.
async fn replay_device(
    store: Arc<dyn Store>,
    found: Arc<FoundJob>,
    session: SessionRow,
    device: DeviceRow,
) -> Result<(SessionKey, Vec<oom::Report>, Option<window::StretchAnalysis>), ReadError> {
    let ooms = match ooms::of_device(&*store, &found, &session, &device).await {
        Err(ReadError::Expired { .. }) => Vec::new(),
        other => other?,
    };
    match window::analyse_stretch(&*store, &session, &device, ooms.last()).await {
        Ok(analysis) => Ok((session.key, ooms, analysis)),
        Err(ReadError::Expired { .. }) => Ok((session.key, ooms, None)),
        Err(error) => Err(error),
    }
}

/// The devices to replay, by rank. A small job has all of them replayed. A larger job has rank 0, the ranks that ran
/// out of memory, and the ranks with the most reserved memory that is not in use.
fn chosen(found: &FoundJob) -> Vec<(&SessionRow, &DeviceRow)> {
    let mut devices: Vec<(&SessionRow, &DeviceRow)> = found
        .sessions
        .iter()
        .flat_map(|session| found.devices_of(session.key).iter().map(move |device| (session, device)))
        .filter(|(_, device)| device.events > 0)
        .collect();
    if devices.len() > RANKS_MAX {
        let unused = |device: &DeviceRow| {
            device.latest.map_or(0, |at| at.counters.reserved_bytes.saturating_sub(at.counters.allocated_bytes))
        };
        devices.sort_by_key(|(session, device)| {
            (session.info.rank != 0, device.ooms == 0, Reverse(unused(device)), session.info.rank)
        });
        devices.truncate(RANKS_MAX);
        devices.sort_by_key(|(session, device)| (session.info.rank, device.info.index.0));
    }
    devices
}
