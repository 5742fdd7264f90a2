//! Forecasts the memory of a training at other sizes than the recorded one, as `memctl fit` does from one recording.
//!
//! Guarantees: the same as in the parent module. The forecast states that it is based on one recording.
//! Refuses: recordings that `memctl fit` refuses, with the same message.

use std::sync::Arc;

use memctl_answers::fit::Fit;
use memctl_answers::fitting::{self, Fitting, OUTSIDE, Question, Recorded, Refused, Run, Wanted};
use memctl_answers::naming::shell_word;
use memctl_model::SessionId;
use memctl_proto::v1;
use memctl_replay::fit::{NUMBER_MAX, REQUESTS_MAX};

use super::{Cached, One, Replays, fault, may_be_replayed, passed, too_long, working};
use crate::job_data::error::ReadError;
use crate::store::Store;
use crate::streams::Streams;

/// The most events of a process whose sizes are forecast. Some hundreds of replays take half a minute, and other
/// requests wait for them.
const EVENTS_MAX: u64 = 1 << 20;

/// Identifies a forecast: process, number of events, device, recorded size, limit.
pub(super) type Key = (SessionId, u64, u8, u64, Option<u64>);

/// The parameters of a forecast.
pub struct SizesQuery {
    /// One process.
    pub selection: v1::Selection,
    /// The size at which it was recorded.
    pub size: u64,
    /// Bytes that the process may reserve.
    pub limit: Option<u64>,
}

impl Replays {
    /// A device's peak at sizes around the recorded one, from the cache or from a replay.
    pub(in super::super) async fn fit(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        streams: &Streams,
        wanted: SizesQuery,
    ) -> Result<Fit, ReadError> {
        let SizesQuery { selection, size, limit } = wanted;
        let one = One::find(&*store, streams, &selection).await?;
        may_be_replayed(&one.completeness, one.events)?;
        if one.events > EVENTS_MAX {
            let can_fit = one.events <= REQUESTS_MAX as u64 && one.is_meant_by_rank(&*store, streams, selection).await;
            let command = can_fit.then(|| command(&one.job.id, one.rank, size));
            return Err(ReadError::NotNow(refusal(command.as_deref())));
        }
        let key = (one.session, one.events, one.device, size, limit);
        let is_same = |known: &Key| *known == key;
        let replay = forecast(store, one, size, limit);
        self.done(Cached { cache: |replays| &replays.sizes, key, is_same, replay }).await
    }
}

impl One {
    /// Whether job and rank alone identify the device. `memctl fit` has no flags for attempt and process.
    async fn is_meant_by_rank(&self, store: &dyn Store, streams: &Streams, selection: v1::Selection) -> bool {
        let (ranks, processes, devices) = (vec![self.rank], Vec::new(), Vec::new());
        let plain = v1::Selection { attempt: None, ranks, processes, devices, ..selection };
        let found = Self::find(store, streams, &plain).await;
        found.is_ok_and(|found| (found.session, found.device) == (self.session, self.device))
    }
}

/// The command that forecasts twice the size.
fn command(job: &str, rank: u32, size: u64) -> String {
    let job = shell_word(&format!("{job}={size}"));
    format!("memctl fit --job {job} --rank {rank} --at {}", size.saturating_mul(2).min(NUMBER_MAX))
}

/// The reason why a long recording is refused, with a remedy: a command, if one can forecast it.
fn refusal(command: Option<&str>) -> String {
    match command {
        Some(command) => too_long(EVENTS_MAX, command),
        None => {
            format!("it has more than {EVENTS_MAX} events; record fewer steps: the steps up to the peak are enough")
        }
    }
}

async fn forecast(store: Arc<dyn Store>, one: One, size: u64, limit: Option<u64>) -> Result<Fit, ReadError> {
    let recorded = recorded(&store, &one.part, "it").await?;
    let recording = recorded.named(one.job.id, one.job.attempt, one.rank, Some(size));
    // A forecast around the recorded size is not about one run, so growth is not considered.
    let run = Run { recording, recorded, growing: None, world: 1 };
    let question = Question { sizes: fitting::Sizes::Around, device_memory: limit, change: None };
    let mut answer = working(move |wanted| fitted(run, None, &question, wanted)).await?;
    answer.not_looked_at.push(format!("{OUTSIDE} The limit is what the process may reserve."));
    Ok(answer)
}

/// The requests of one device of a selection. `called` is the job's name in a refusal.
pub(in super::super) async fn recorded(
    store: &Arc<dyn Store>,
    part: &v1::Selection,
    called: &str,
) -> Result<Recorded, ReadError> {
    let called = called.to_owned();
    let pass = move |parts: &mut dyn Iterator<Item = Result<_, ReadError>>| {
        let mut fitting = Fitting::new().map_err(fault)?;
        for part in parts {
            fitting.part(part?).map_err(fault)?;
            if let Some(why) = &fitting.refused {
                return Err(ReadError::NotNow(format!("{called} cannot be replayed: {why}")));
            }
        }
        fitting.recorded().ok_or_else(|| ReadError::NotNow(format!("no allocator events of {called} are stored")))
    };
    passed(store, part, pass).await
}

/// The answer from replays of one or two recordings.
pub(in super::super) fn fitted(
    run: Run,
    larger: Option<Run>,
    question: &Question,
    wanted: &dyn Fn() -> bool,
) -> Result<Fit, ReadError> {
    fitting::answer(run, larger, question, Wanted(wanted)).map_err(|refused| match refused {
        Refused::Unwanted => ReadError::Fault(refused.to_string()),
        refused => ReadError::NotNow(refused.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_quoted_for_the_shell_and_only_named_if_it_can_help() {
        assert_eq!(command("a b", 3, 8), "memctl fit --job 'a b=8' --rank 3 --at 16");
        assert_eq!(command("j", 0, NUMBER_MAX), format!("memctl fit --job j={NUMBER_MAX} --rank 0 --at {NUMBER_MAX}"));
        assert!(refusal(Some("memctl fit")).contains("`memctl fit` replays them"));
        let helpless = refusal(None);
        assert!(helpless.contains("record fewer steps") && !helpless.contains("memctl fit"), "{helpless}");
    }
}
