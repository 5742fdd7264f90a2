//! Answers `memctl need`: what a job's processes need, and which sizes of devices have it.
//!
//! Guarantees: for most sizes, the recorded peaks show whether the size suffices. For the other sizes, at most
//! [`REPLAYS_MAX`] devices are replayed, one at a time, as for `memctl what-if`: those with the highest need. If the
//! peaks decide every size, one device is replayed for
//! the request that fails on the next smaller size, unless its recording is long. If the client
//! disconnects, its replay ends.
//! Refuses: more than [`SIZES_MAX`] sizes.

use std::cmp::Reverse;

use memctl_answers::dossier::same_job;
use memctl_answers::naming::name_of;
use memctl_answers::need::{DeviceSize, Need, Replay, Row, device_sizes, rows};
use memctl_answers::replaying::{EVENTS_MAX, Limit, Question};
use memctl_answers::report::Report;
use memctl_proto::v1;

use super::replays::{may_be_replayed, replayed};
use super::report;
use super::sources::Sources;
use crate::job_data::error::ReadError;

/// The most devices that are replayed.
const REPLAYS_MAX: usize = 4;
/// The most sizes of a question, besides the usual ones. Each takes memory of its own in a replay.
const SIZES_MAX: usize = 16;

/// Answers the request; see the module.
pub(super) async fn need(from: &Sources, request: v1::NeedRequest) -> Result<Need, ReadError> {
    let v1::NeedRequest { selection, sizes } = request;
    if sizes.len() > SIZES_MAX {
        return Err(ReadError::Invalid(format!("these are more than {SIZES_MAX} sizes")));
    }
    let selection = selection.unwrap_or_default();
    let request = v1::ReportRequest { selection: Some(selection.clone()) };
    let report = report::report(&from.store, &from.streams, &from.judge, request).await?;
    let (sizes, mut rows) = (device_sizes(&sizes), rows(&report));
    let mut remarks = Remarks::default();
    for at in chosen(&report, &mut rows, &sizes) {
        let (replay, said) = replay(from, &selection, &report, &rows[at], &sizes).await?;
        rows[at].replay = replay;
        remarks.add(&name_of(&rows[at].device.process, rows[at].device.rank), said);
    }
    Ok(Need::new(report, &rows, &sizes, remarks.sentences()))
}

/// What replays do not cover: each remark once, with the processes that it is about.
#[derive(Default)]
struct Remarks(Vec<(String, Vec<String>)>);

impl Remarks {
    /// Adds the remarks of a process of this name.
    fn add(&mut self, name: &str, said: Vec<String>) {
        let beginning = format!("Of {name}: ");
        for text in said {
            let text = text.strip_prefix(&beginning).unwrap_or(&text);
            match self.0.iter_mut().find(|(known, _)| known == text) {
                Some((_, names)) => names.push(name.to_owned()),
                None => self.0.push((text.to_owned(), vec![name.to_owned()])),
            }
        }
    }

    fn sentences(self) -> Vec<String> {
        self.0.into_iter().map(|(text, names)| format!("Of {}: {text}", names.join(", "))).collect()
    }
}

/// The rows to replay, by their indexes. Rows that have an open size and are not replayed get the reason.
fn chosen(report: &Report, rows: &mut [Row], sizes: &[DeviceSize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&at| (Reverse(rows[at].device.needed_bytes), at));
    let may_replay = |at: usize| {
        let rank = &report.ranks[at];
        may_be_replayed(&rank.completeness, rank.events).map_err(|why| why.to_string())
    };
    let mut chosen = Vec::new();
    for &at in order.iter().filter(|&&at| rows[at].is_open(sizes)).collect::<Vec<_>>() {
        let why = match may_replay(at) {
            _ if !rows[at].device.shared_with.is_empty() => {
                "it shares its device, and a replay covers only one process".to_owned()
            }
            Err(why) => why,
            Ok(()) if chosen.len() == REPLAYS_MAX => format!("only {REPLAYS_MAX} processes are replayed"),
            Ok(()) => {
                chosen.push(at);
                continue;
            }
        };
        rows[at].replay = Replay::Not(why);
    }
    let highest = order.first().filter(|&&at| chosen.is_empty() && !rows[at].limits(sizes).is_empty());
    chosen.extend(highest.filter(|&&at| may_replay(at).is_ok() && report.ranks[at].events <= EVENTS_MAX));
    chosen
}

/// The replay of a row under its limits, and what it does not cover.
async fn replay(
    from: &Sources,
    selection: &v1::Selection,
    report: &Report,
    row: &Row,
    sizes: &[DeviceSize],
) -> Result<(Replay, Vec<String>), ReadError> {
    let rank = &report.ranks[row.at];
    let part = v1::Selection { devices: vec![rank.device], ..same_job(selection.clone(), report, rank) };
    let mut limits: Vec<Limit> = Vec::new();
    for (_, allowed) in row.limits(sizes) {
        let limit = if allowed.by_settings { Limit::Share(allowed.bytes) } else { Limit::Device(allowed.bytes) };
        if !limits.contains(&limit) {
            limits.push(limit);
        }
    }
    // Only the recorded settings: the next submission has them too.
    let question = Question { settings: vec![rank.allocator_conf.clone()], limits, ..Question::default() };
    let _place = from.replays.long().await?;
    let replaying = replayed(&from.store, &part, question).await?;
    let (ranks, mut said) = (replaying.ranks, replaying.not_looked_at);
    match ranks.into_iter().next() {
        Some(device) if device.exact => Ok((Replay::Exact(device.settings), said)),
        Some(_) => Ok((Replay::Not("its replay does not reproduce the recording".to_owned()), Vec::new())),
        None => {
            let why = if said.is_empty() { "nothing of it is stored".to_owned() } else { said.remove(0) };
            let own = format!("Rank {}: ", rank.rank);
            let why = why.strip_prefix(&own).unwrap_or(&why).trim_end_matches('.');
            Ok((Replay::Not(why.to_owned()), said))
        }
    }
}
