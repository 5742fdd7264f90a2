//! A query about one or two recordings, and its answer: other sizes, a change, measures that bring a peak below a
//! number of bytes.
//!
//! Guarantees: the command line and the page get the same figures. Refuses two recordings of different trainings.
//! Refuses a change of something that the recording does not have, and lists what it has. Ends soon after the answer is
//! no longer wanted.

use super::changes::{self, CHECKPOINT, WITHOUT};
use super::refused::{Refused, Wanted};
use super::sizes::{Fitted, alone, two};
use super::{Recorded, under};
use crate::fit::{Fit, Growing, Recording};

/// A query.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Which sizes.
    pub sizes: Sizes,
    /// Bytes that the process may reserve.
    pub device_memory: Option<u64>,
    /// What is changed in the larger recording.
    pub change: Option<Change>,
}

/// The requested sizes. All but an empty list need the sizes of the recordings.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// These.
    Listed(Vec<u64>),
    /// A curve around the size of the only recording, with the largest that fits.
    Around,
}

impl Default for Sizes {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

/// A change of a training.
#[derive(Clone, Debug)]
pub enum Change {
    /// The blocks of this site do not exist.
    Without(String),
    /// Activation checkpointing of these modules.
    Checkpoint(String),
    /// Whatever gets its peak of reserved bytes under this number.
    Under(u64),
}

/// A recording, its requests, and the circumstances of its run.
pub struct Run {
    /// What an answer says of it.
    pub recording: Recording,
    /// Its requests.
    pub recorded: Recorded,
    /// What grows in it.
    pub growing: Option<Growing>,
    /// Ranks of the job.
    pub world: u32,
}

/// Answers a query about one recording, or about two, of which the first has the smaller size.
///
/// # Errors
/// See [`Refused`].
pub fn answer(
    run: Run,
    larger: Option<Run>,
    Question { sizes, device_memory, change }: &Question,
    wanted: Wanted<'_>,
) -> Result<Fit, Refused> {
    let growing = [Some(&run), larger.as_ref()].into_iter().flatten().filter_map(|run| run.growing.clone()).collect();
    let last = larger.as_ref().unwrap_or(&run);
    let ran = under::Ran { growing: last.growing.clone(), world: last.world, oldest: last.recorded.oldest };
    let scales = !matches!(sizes, Sizes::Listed(listed) if listed.is_empty());
    let jobs = [Some(&run), larger.as_ref()].into_iter().flatten().map(|run| run.recording.job.as_str());
    let jobs = jobs.collect::<Vec<_>>().join(" and ");
    let fitted = match larger {
        None => alone(run.recording, run.recorded, *device_memory, scales),
        Some(larger) => two((run.recording, run.recorded), (larger.recording, larger.recorded), *device_memory),
    };
    let mut fitted = fitted.map_err(|error| Refused::Recordings { jobs, error })?;
    fitted.answer.growing = growing;
    wanted.check()?;
    if let Some(change) = change {
        changed(&mut fitted, change, &ran, wanted)?;
    }
    match sizes {
        Sizes::Listed(listed) if listed.is_empty() => {}
        Sizes::Listed(listed) => fitted.sizes(listed, wanted)?,
        Sizes::Around => fitted.curve(wanted)?,
    }
    Ok(fitted.answer)
}

/// Applies a change; sizes are then replayed with it.
fn changed(fitted: &mut Fitted, change: &Change, ran: &under::Ran, wanted: Wanted<'_>) -> Result<(), Refused> {
    let Fitted { answer, fit, meaning } = fitted;
    match change {
        Change::Without(site) => {
            let (without, script) = changes::without(site, fit, meaning)?;
            answer.without = Some(without);
            answer.not_looked_at.push(WITHOUT.to_owned());
            *fit = fit.with(script);
        }
        Change::Checkpoint(name) => {
            let (checkpoint, script) = changes::checkpoint(name, fit, meaning)?;
            answer.checkpoint = Some(checkpoint);
            answer.not_looked_at.extend(CHECKPOINT.map(str::to_owned));
            *fit = fit.with(script);
        }
        Change::Under(limit) => {
            let size = answer.recordings.last().and_then(|recording| recording.size);
            answer.peak = Some(under::peak(fit, meaning));
            let (under, remarks) = under::under(&under::LimitQuery { limit: *limit, size, ran, wanted }, fit, meaning)?;
            answer.under = Some(under);
            answer.not_looked_at.extend(remarks);
        }
    }
    Ok(())
}
