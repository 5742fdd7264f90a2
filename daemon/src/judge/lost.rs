//! Finds ranks that stopped while others continued, or that ended with a failure. `memctl-analysis` reports them.
//!
//! Guarantees: if a job was lost as a whole, that is one finding about all ranks. It is made only after the daemon has
//! listened for some time, because processes that outlive a daemon need a moment to reach the next one. The marks of at most [`PLACES_MAX`] sessions
//! are read to find the step in which they ended.

use memctl_analysis::deaths::{self, Death, Incidents, Others, SeenProcesses};
use memctl_model::JobState;

use crate::job_data::mark_cursor::at_the_end;
use crate::job_data::{FoundJob, ReadError};
use crate::store::{SessionRow, Store};

/// Deaths whose step is looked up. These are the first ones, which the finding's sentence names.
const PLACES_MAX: usize = 8;

/// Findings about ranks that stopped. `state` returns the state of a session; `has_listened` is whether processes had
/// time to reach this daemon.
pub(super) async fn tell(
    store: &dyn Store,
    found: &FoundJob,
    has_listened: bool,
    state: impl Fn(&SessionRow) -> JobState,
) -> Result<Incidents, ReadError> {
    let states: Vec<JobState> = found.sessions.iter().map(&state).collect();
    let others = others(found, &states);
    let all_lost = states.iter().all(|state| *state == JobState::Lost);
    let mut dead: Vec<(&SessionRow, Death)> = Vec::new();
    for (session, state) in found.sessions.iter().zip(states) {
        let failure = session.end.as_ref().and_then(|end| end.failure.clone());
        let is_reported = match state {
            JobState::Failed => failure.is_some(),
            JobState::Lost if all_lost || others == Others::None => has_listened,
            JobState::Lost => true,
            _ => false,
        };
        if is_reported {
            dead.push((session, death(found, session, failure)));
        }
    }
    dead.sort_by_key(|(_, death)| (death.time_ns, death.rank));
    let own = |death: &Death| !deaths::CauseOfDeath::of(death.failure.as_deref()).is_consequence();
    // Deaths with a cause of their own are named; if there are none, the first death is.
    let speakers: Vec<usize> = (0..dead.len()).filter(|&at| own(&dead[at].1)).chain([0]).take(PLACES_MAX).collect();
    for at in speakers {
        let Some((session, death)) = dead.get_mut(at) else { continue };
        let (epoch, step, under_way) = at_the_end(store, session.key, death.time_ns).await?;
        death.epoch = epoch.or(death.epoch);
        if step.is_some() {
            (death.step, death.under_way) = (step, under_way);
        }
    }
    let dead: Vec<Death> = dead.into_iter().map(|(_, death)| death).collect();
    let mut known = SeenProcesses { processes: found.sessions.len(), ..SeenProcesses::default() };
    for session in &found.sessions {
        *known.by_host.entry(host(session)).or_default() += 1;
    }
    Ok(deaths::tell(&dead, &known, others))
}

/// What is known of the processes that did not fail, by the states of all processes.
fn others(found: &FoundJob, states: &[JobState]) -> Others {
    let running = found.sessions.iter().zip(states).filter(|(_, state)| **state == JobState::Running);
    match running.map(|(session, _)| session.heard_ns).max() {
        Some(heard_ns) => Others::Running(heard_ns),
        None if states.contains(&JobState::Finished) => Others::Finished,
        None => Others::None,
    }
}

fn host(session: &SessionRow) -> String {
    session.info.host.clone().unwrap_or_default()
}

fn death(found: &FoundJob, session: &SessionRow, failure: Option<String>) -> Death {
    let devices = found.devices_of(session.key);
    let last = devices.iter().filter_map(|device| device.latest).max_by_key(|latest| latest.time_ns);
    // Before the first end of a step, step 0 is that of a process without steps.
    let stepped = devices.iter().any(|device| device.steps > 0);
    Death {
        rank: session.info.rank,
        host: host(session),
        time_ns: session.end.as_ref().map_or(session.heard_ns, |end| end.time_ns),
        epoch: last.map(|latest| latest.epoch),
        step: last.filter(|_| stepped).map(|latest| latest.step),
        under_way: false,
        failure,
    }
}
