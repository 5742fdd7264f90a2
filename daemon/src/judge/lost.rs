//! Ranks that stopped while others went on, or that ended badly.
//!
//! Guarantees: a rank that ended by an out of memory is told by that finding and not here; of a job that was lost as a whole
//! nothing is said about single ranks.

use memctl_model::{Finding, FindingKind, Moment, Severity};
use memctl_proto::v1::JobState;

use crate::store::{DeviceRow, SessionRow};

/// Findings about ranks that stopped. `state` tells how a session is doing.
pub(super) fn findings(
    sessions: &[SessionRow],
    devices: &[DeviceRow],
    state: impl Fn(&SessionRow) -> JobState,
) -> Vec<Finding> {
    let states: Vec<JobState> = sessions.iter().map(&state).collect();
    let goes_on = states.iter().any(|state| matches!(state, JobState::Running | JobState::Finished));
    let all_lost = sessions.len() > 1 && states.iter().all(|state| *state == JobState::Lost);
    let mut found = Vec::new();
    for (session, state) in sessions.iter().zip(states) {
        let failure = session.end.as_ref().and_then(|end| end.failure.as_deref());
        let how = match (state, failure) {
            (JobState::Failed, Some(failure)) if !failure.to_lowercase().contains("memory") => failure.to_owned(),
            (JobState::Lost, _) if goes_on && !all_lost => "nothing was heard of it any more".to_owned(),
            _ => continue,
        };
        found.push(finding(session, devices, &how, goes_on));
    }
    found
}

fn finding(session: &SessionRow, devices: &[DeviceRow], how: &str, goes_on: bool) -> Finding {
    let rank = session.info.rank;
    let last = devices.iter().filter(|device| device.session == session.key).filter_map(|device| device.latest);
    let last = last.max_by_key(|latest| latest.time_ns);
    let at = last.map_or_else(String::new, |latest| format!(" after step {} of epoch {}", latest.step, latest.epoch));
    let severity = if goes_on { Severity::Critical } else { Severity::Warning };
    Finding {
        first_seen: Moment {
            epoch: last.map(|latest| latest.epoch),
            step: last.map(|latest| latest.step),
            time_ns: session.end.as_ref().map(|end| end.time_ns).or(Some(session.heard_ns)),
            boundary: None,
        },
        subject: format!("rank {rank}"),
        title: format!("rank {rank} stopped{at}: {how}"),
        explanation: "Its last state is stored: everything up to that moment can be asked for.".to_owned(),
        advice: format!(
            "`memctl sites --rank {rank} --end` shows what it held; look at the host's log (dmesg) for the out-of-memory killer."
        ),
        ..Finding::new(FindingKind::RankLost, severity, 1.0, vec![rank])
    }
}
