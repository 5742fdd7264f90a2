//! Parts that several responses share: a job and its processes, completeness, a frame.

use memctl_answers::wire;
use memctl_model::{Completeness, Frame, SourceKind};
use memctl_proto::v1;
use serde::Serialize;

use crate::job_data::error::ReadError;
use crate::job_data::job::{self, Found, Summary};
use crate::store::{JobRow, SessionRow};
use crate::streams::Streams;

/// The job that was found.
pub(super) fn found_job(found: &Found, streams: &Streams) -> v1::Job {
    job(&found.job, found.summary(streams))
}

/// A job without a verdict.
pub(super) fn job(job: &JobRow, summary: Summary) -> v1::Job {
    let Summary { state, ended_ns, source, ranks, processes, earlier_sessions, events, stored_bytes } = summary;
    let JobRow { tenant, name, attempt, started_ns, world_size, labels, attempts, run, arrived_ns, .. } = job;
    let source = match source {
        Some(SourceKind::Import) => v1::SourceKind::Import,
        Some(SourceKind::Live) => v1::SourceKind::Live,
        None => v1::SourceKind::Unspecified,
    };
    v1::Job {
        id: job.label(),
        name: name.clone(),
        run: *run,
        arrived_ns: *arrived_ns,
        tenant: tenant.clone(),
        attempt: *attempt,
        state: v1::JobState::from(state) as i32,
        started_ns: *started_ns,
        ended_ns,
        world_size: *world_size,
        ranks,
        processes,
        earlier_sessions,
        events,
        stored_bytes,
        labels: labels.iter().map(|(key, value)| v1::Label { key: key.clone(), value: value.clone() }).collect(),
        attempts: *attempts,
        source: source as i32,
        verdict: None,
    }
}

/// How complete the data behind a response is.
pub(super) fn completeness(completeness: Completeness) -> v1::Completeness {
    let Completeness { exact, events_stored, events_dropped, events_expired, gaps } = completeness;
    v1::Completeness { exact, events_stored, events_dropped, events_expired, gaps }
}

/// An answer for the wire.
pub(super) fn to_wire(answer: &impl Serialize) -> Result<v1::Answer, ReadError> {
    wire::to_wire(answer).map_err(|error| ReadError::Invalid(error.to_string()))
}

/// A frame of a stack.
pub(super) fn frame(Frame { function, file, line }: &Frame) -> v1::Frame {
    v1::Frame { function: function.to_string(), file: file.to_string(), line: *line }
}

/// Every process of the selection.
pub(super) fn processes(found: &Found, streams: &Streams) -> Vec<v1::ProcessReport> {
    let process = |session: &SessionRow| {
        let called = found.process(session.key);
        let devices = found.devices_of(session.key).iter();
        v1::ProcessReport {
            process: called.name.clone(),
            role: called.role.clone(),
            rank: session.info.rank,
            host: session.info.host.clone(),
            pid: session.info.pid,
            parent_pid: session.info.parent_pid,
            devices: devices.map(|device| u32::from(device.info.index.0)).collect(),
            events: session.events,
            stored_bytes: session.stored_bytes,
            state: v1::JobState::from(job::state(session, streams)) as i32,
            failure: session.end.as_ref().and_then(|end| end.failure.clone()),
            completeness: Some(completeness(job::completeness(session, streams))),
            started_ns: session.info.started_ns,
            ended_ns: session.end.as_ref().map(|end| end.time_ns),
            framework: session.info.framework.clone(),
        }
    };
    found.sessions.iter().map(process).collect()
}
