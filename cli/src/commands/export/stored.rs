//! What the formats share: what is stored of the requested part of a job, and its parts as they stream in.

use std::path::Path;

use memctl_answers::Completeness;
use memctl_answers::processes::JobProcesses;
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;

use crate::client::answered;
use crate::connect::Connection;
use crate::exit::Failure;
use crate::export::window::Windows;
use crate::export::{ExportError, Sink};
use crate::output_file::name_of;
use crate::render::text::plural;

/// What is stored of the requested part.
pub(super) struct StoredPart {
    /// The job, as it is asked for.
    pub job: String,
    /// Its ranks, ascending.
    pub ranks: Vec<u32>,
    completeness: Completeness,
}

impl StoredPart {
    pub(super) async fn of(connection: &mut Connection, selection: &v1::Selection) -> Result<Self, Failure> {
        // A job without an epoch end has events as well.
        let all = v1::Selection { first_epoch: None, last_epoch: None, ..selection.clone() };
        let request = v1::JobRequest { selection: Some(all) };
        let response = connection.query.get_job(request).await;
        let JobProcesses { job, completeness, processes } = answered(response, connection)?;
        let mut ranks: Vec<u32> = processes.iter().map(|process| process.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let job = job.id;
        if ranks.is_empty() {
            return Err(Failure::no_such_job(format!("job {job} has none of these ranks")));
        }
        Ok(Self { job, ranks, completeness })
    }

    /// States what has expired.
    pub(super) fn missing(&self) -> Option<String> {
        let Completeness { events_expired, .. } = self.completeness;
        (events_expired > 0).then(|| format!("retention removed the oldest {}", plural(events_expired, "event")))
    }

    /// Why there is nothing to write.
    pub(super) fn nothing(&self) -> Failure {
        let job = &self.job;
        let why = match (self.missing(), self.completeness.events_stored) {
            (Some(missing), _) => format!("no event of this part of job {job} is stored any more: {missing}"),
            (None, 0) => format!("no allocator event of job {job} was recorded"),
            (None, _) => format!("no event lies in this part of job {job}"),
        };
        Failure::input(format!("{why}; nothing was written"))
    }

    /// Why there is no live memory to write.
    pub(super) fn nothing_live(&self) -> Failure {
        let job = &self.job;
        Failure::input(format!("nothing was live at the end of this part of job {job}; nothing was written"))
    }

    /// Whether an event of the selection is stored; reads only to the first one.
    pub(super) async fn holds(&self, connection: &mut Connection, selection: &v1::Selection) -> Result<bool, Failure> {
        let request = v1::ExportRequest { selection: Some(selection.clone()), ..v1::ExportRequest::default() };
        let parts = connection.query.export(request).await;
        let mut parts = parts.map_err(|status| connection.failure(&status))?.into_inner();
        while let Some(part) = parts.message().await.map_err(|status| connection.failure(&status))? {
            if matches!(part.body, Some(Body::Chunk(_))) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The selected ranks for all of their time: a report refuses a part in which no epoch ended.
pub(super) fn whole(selection: &v1::Selection) -> v1::Selection {
    v1::Selection { first_epoch: None, last_epoch: None, since_ns: None, until_ns: None, ..selection.clone() }
}

/// The slice in time for each rank; epochs are found in the marks.
pub(super) async fn windows(connection: &mut Connection, selection: &v1::Selection) -> Result<Windows, Failure> {
    let mut windows = Windows::new(selection);
    if !windows.need_marks() {
        return Ok(windows);
    }
    // Marks of the whole job are read, because the mark that begins the slice may precede it.
    let all = v1::Selection { first_epoch: None, last_epoch: None, ..selection.clone() };
    let request = v1::ExportRequest { selection: Some(all), without_events: true, ..v1::ExportRequest::default() };
    let parts = connection.query.export(request).await;
    let mut parts = parts.map_err(|status| connection.failure(&status))?.into_inner();
    let mut rank = 0;
    while let Some(part) = parts.message().await.map_err(|status| connection.failure(&status))? {
        match part.body {
            Some(Body::Start(start)) => rank = start.rank,
            Some(Body::Marks(batch)) => {
                windows.marks(rank, &batch).map_err(|error| failed(&ExportError::from(error), connection, None))?;
            }
            _ => {}
        }
    }
    Ok(windows)
}

/// Hands the parts of the selection to a writer, in their order.
pub(super) async fn stream(
    connection: &mut Connection,
    selection: v1::Selection,
    sink: &mut impl Sink,
    (stored, file): (&StoredPart, Option<&Path>),
) -> Result<(), Failure> {
    let with_samples = sink.wants_samples();
    let request = v1::ExportRequest { selection: Some(selection), with_samples, ..v1::ExportRequest::default() };
    let parts = connection.query.export(request).await;
    let mut parts = parts.map_err(|status| connection.failure(&status))?.into_inner();
    while let Some(part) = parts.message().await.map_err(|status| connection.failure(&status))? {
        // An unknown part comes from a newer memctl and has no data for these formats.
        if let Some(body) = part.body {
            sink.part(body).map_err(|error| failed(&error, connection, file))?;
        }
    }
    sink.finish().map_err(|error| match error {
        ExportError::Nothing => stored.nothing(),
        error => failed(&error, connection, file),
    })
}

/// An error of a writer as a failure of the command.
pub(super) fn failed(error: &ExportError, connection: &Connection, file: Option<&Path>) -> Failure {
    match error {
        ExportError::Output(error) => Failure::output(&name_of(file), error),
        other => Failure::unreachable(format!("what {} sent cannot be exported: {other}", connection.place)),
    }
}
