//! Answers `memctl fit`: replays one or two recordings of a training at other sizes and with a change.
//!
//! Guarantees: the same as in `query/what_if.rs`.
//! Refuses: recordings with gaps, two recordings of different trainings, and more than [`SIZES_MAX`] sizes.

use std::cmp::Reverse;
use std::sync::Arc;

use memctl_answers::dossier::same_job;
use memctl_answers::fit::{Fit, Growing};
use memctl_answers::fitting::{Change, OUTSIDE, Question, Run, Sizes};
use memctl_answers::report::{Rank, Report};
use memctl_proto::v1;
use memctl_proto::v1::fit_request;
use memctl_replay::fit::NUMBER_MAX;

use super::replays::{fitted, recorded, working};
use super::report;
use super::sources::Sources;
use crate::job_data::error::ReadError;
use crate::store::Store;

/// The most sizes. Each size takes several replays.
const SIZES_MAX: usize = 1024;
/// The meaning of limits in bytes; the sentence follows [`OUTSIDE`].
const MEANT: &str = "--device-memory and --under are what the process may reserve.";

/// A device whose recording is replayed.
struct Chosen {
    store: Arc<dyn Store>,
    /// The request's name for its job.
    called: String,
    part: v1::Selection,
    size: Option<u64>,
    report: Report,
    row: Rank,
}

/// Answers the request; see the module.
pub(super) async fn fit(from: &Sources, request: v1::FitRequest) -> Result<Fit, ReadError> {
    let v1::FitRequest { recordings, rank, at, device_memory, change } = request;
    refuse(&recordings, &at)?;
    let mut recordings: Vec<_> = recordings.into_iter().zip([&from.store, &from.other]).collect();
    recordings.sort_by_key(|(recording, _)| recording.size);
    let (mut chosen, mut rank): (Vec<Chosen>, _) = (Vec::new(), rank);
    for (recording, store) in recordings {
        let one = Chosen::find(from, store, recording, rank).await?;
        rank = Some(one.row.rank);
        chosen.push(one);
    }
    let place = from.replays.long().await?;
    let mut runs = Vec::new();
    for one in chosen {
        runs.push(one.run().await?);
    }
    let change = change.map(|change| match change {
        fit_request::Change::Without(site) => Change::Without(site),
        fit_request::Change::Checkpoint(modules) => Change::Checkpoint(modules),
        fit_request::Change::Under(bytes) => Change::Under(bytes),
    });
    let question = Question { sizes: Sizes::Listed(at), device_memory, change };
    let mut answer = working(move |wanted| {
        // The permit is returned when the work has ended, which may be later than the request.
        let _place = place;
        let mut runs = runs.into_iter();
        let run = runs.next().ok_or_else(|| ReadError::Invalid(NUMBER_OF_RECORDINGS.to_owned()))?;
        fitted(run, runs.next(), &question, wanted)
    })
    .await?;
    answer.not_looked_at.push(format!("{OUTSIDE} {MEANT}"));
    Ok(answer)
}

const NUMBER_OF_RECORDINGS: &str = "one recording is needed, or two at different sizes";

/// Refuses requests that the command line does not make.
fn refuse(recordings: &[v1::SizedRecording], at: &[u64]) -> Result<(), ReadError> {
    let sizes = || recordings.iter().filter_map(|recording| recording.size);
    let is_size = |size: &u64| (1..=NUMBER_MAX).contains(size);
    let why = match recordings.len() {
        1 | 2 if at.len() > SIZES_MAX => format!("these are more than {SIZES_MAX} sizes"),
        1 | 2 if !sizes().chain(at.iter().copied()).all(|size| is_size(&size)) => {
            format!("a size is a number from 1 to {NUMBER_MAX}")
        }
        1 if at.is_empty() || sizes().count() == 1 => return Ok(()),
        1 => "other sizes need the size that was recorded".to_owned(),
        2 if sizes().count() == 2 => return Ok(()),
        _ => NUMBER_OF_RECORDINGS.to_owned(),
    };
    Err(ReadError::Invalid(why))
}

impl Chosen {
    /// The requested rank, otherwise the rank with the highest peak.
    async fn find(
        from: &Sources,
        store: &Arc<dyn Store>,
        recording: v1::SizedRecording,
        rank: Option<u32>,
    ) -> Result<Self, ReadError> {
        let v1::SizedRecording { selection, size } = recording;
        let selection = selection.unwrap_or_default();
        let called = selection.job.clone();
        let selection = match rank {
            Some(rank) => v1::Selection { ranks: vec![rank], ..selection },
            None => selection,
        };
        let request = v1::ReportRequest { selection: Some(selection.clone()) };
        let report = report::report(store, &from.streams, &from.judge, request).await?;
        let level = |row: &&Rank| (row.peak_reserved_bytes, Reverse(row.rank));
        let Some(row) = report.ranks.iter().max_by_key(level).cloned() else {
            return Err(ReadError::NotNow(format!("nothing of {called} was recorded")));
        };
        if row.completeness.events_dropped > 0 || row.completeness.gaps > 0 {
            let why = format!("events of {called} are missing, so its requests cannot be replayed");
            return Err(ReadError::NotNow(why));
        }
        let part = v1::Selection { devices: vec![row.device], ..same_job(selection, &report, &row) };
        Ok(Self { store: store.clone(), called, part, size, report, row })
    }

    /// The requests of this device, prepared for the replays.
    async fn run(self) -> Result<Run, ReadError> {
        let Self { store, called, part, size, report, row } = self;
        let recorded = recorded(&store, &part, &called).await?;
        let recording = recorded.named(report.job.id.clone(), report.job.attempt, row.rank, size);
        let growing = Growing::of(&report, &row);
        Ok(Run { recording, recorded, growing, world: report.job.world_size.unwrap_or(1) })
    }
}
