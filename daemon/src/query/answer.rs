//! Builds the parts that several responses share: a job and its processes, completeness, a frame.

use std::collections::BTreeMap;

use memctl_answers::format::time::Time;
use memctl_answers::processes::Process;
use memctl_answers::{Frame, Job, wire};
use memctl_model::{self as model, SourceKind};
use memctl_proto::v1;
use serde::Serialize;

use crate::job_data::error::ReadError;
use crate::job_data::job::{self, FoundJob, Summary};
use crate::store::{JobRow, SessionRow};
use crate::streams::Streams;

/// The job that was found.
pub(super) fn found_job(found: &FoundJob, streams: &Streams) -> Job {
    job(&found.job, found.summary(streams))
}

/// A job without a verdict.
pub(super) fn job(job: &JobRow, summary: Summary) -> Job {
    let Summary {
        state,
        ended_ns,
        source,
        ranks,
        processes,
        earlier_sessions,
        events,
        stored_bytes,
        received_events: _,
    } = summary;
    let JobRow { tenant, name, attempt, started_ns, world_size, labels, attempts, run, arrived_ns, .. } = job;
    let source = source.map(|source| match source {
        SourceKind::Import => "import".into(),
        SourceKind::Live => "live".into(),
    });
    Job {
        id: job.label(),
        name: name.clone(),
        run: Some(*run),
        state,
        started_at: Time(*started_ns),
        arrived_at: Time(*arrived_ns),
        ended_at: ended_ns.map(Time),
        world_size: *world_size,
        attempt: *attempt,
        labels: labels.iter().cloned().collect::<BTreeMap<String, String>>(),
        events,
        stored_bytes,
        ranks,
        processes,
        earlier_sessions,
        attempts: *attempts,
        source,
        tenant: tenant.clone(),
        verdict: None,
    }
}

/// Encodes an answer for the wire.
pub(super) fn to_wire(answer: &impl Serialize) -> Result<v1::Answer, ReadError> {
    wire::to_wire(answer).map_err(|error| ReadError::Invalid(error.to_string()))
}

/// The frames of a stack.
pub(super) fn frames(stack: &model::Stack) -> Vec<Frame> {
    stack.frames.iter().map(Frame::from).collect()
}

/// Every process of the selection.
pub(super) fn processes(found: &FoundJob, streams: &Streams) -> Vec<Process> {
    let process = |session: &SessionRow| {
        let called = found.process(session.key);
        let devices = found.devices_of(session.key).iter();
        Process {
            process: called.name.clone(),
            role: called.role.clone(),
            rank: session.info.rank,
            host: session.info.host.clone(),
            pid: session.info.pid,
            parent_pid: session.info.parent_pid,
            devices: devices.map(|device| u32::from(device.info.index.0)).collect(),
            events: session.events_stored(),
            stored_bytes: session.stored_bytes,
            state: job::state(session, streams),
            failure: session.end.as_ref().and_then(|end| end.failure.clone()),
            started_at: Time(session.info.started_ns),
            ended_at: session.end.as_ref().map(|end| Time(end.time_ns)),
            framework: session.info.framework.clone(),
            completeness: job::completeness(session, streams).into(),
        }
    };
    found.sessions.iter().map(process).collect()
}
