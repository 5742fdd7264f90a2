//! What a training would hold at other sizes than the one at which it was recorded, as `memctl fit` forecasts it of one recording.
//!
//! Guarantees: those of the module above; the forecast says that it rests on one recording. Refuses recordings that `memctl fit`
//! refuses, with its sentence.

use std::sync::Arc;

use memctl_answers::fit::Fit;
use memctl_answers::fitting::{Fitting, OUTSIDE, alone};
use memctl_answers::naming::shell_word;
use memctl_model::SessionId;
use memctl_proto::v1;

use super::{One, Replays, fault, may_be_replayed, passed};
use crate::read::error::ReadError;
use crate::store::Store;
use crate::streams::Streams;

/// Events of a process whose sizes are forecast: some hundreds of replays, half a minute, for which everybody else waits.
const EVENTS_MAX: u64 = 1 << 20;

/// Which forecast: of which process, behind how many events, on which device, recorded at which size, under which limit.
pub(super) type Key = (SessionId, u64, u8, u64, Option<u64>);

/// What is wanted of a forecast.
pub struct Sizes {
    /// Of one process.
    pub selection: v1::Selection,
    /// The number that it was recorded at.
    pub size: u64,
    /// Bytes that the process may reserve.
    pub limit: Option<u64>,
}

impl Replays {
    /// A device's peak at sizes around the recorded one, replayed now or before.
    pub(in super::super) async fn fit(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        streams: &Streams,
        wanted: Sizes,
    ) -> Result<Fit, ReadError> {
        let Sizes { selection, size, limit } = wanted;
        let one = One::find(&*store, streams, &selection).await?;
        may_be_replayed(&one.completeness, (one.events, EVENTS_MAX), || {
            let job = shell_word(&format!("{}={size}", one.job.id));
            format!("memctl fit --job {job} --rank {} --at {}", one.rank, size.saturating_add(size))
        })?;
        let key = (one.session, one.events, one.device, size, limit);
        self.done(|replays| &replays.sizes, key, forecast(store, one, size, limit)).await
    }
}

async fn forecast(store: Arc<dyn Store>, one: One, size: u64, limit: Option<u64>) -> Result<Fit, ReadError> {
    let selection = one.selection();
    let pass = move |parts: &mut dyn Iterator<Item = Result<_, ReadError>>| {
        let mut fitting = Fitting::new().map_err(fault)?;
        for part in parts {
            fitting.part(part?).map_err(fault)?;
            if let Some(why) = &fitting.refused {
                return Err(ReadError::NotNow(format!("it cannot be replayed: {why}")));
            }
        }
        let recorded = fitting.recorded().ok_or_else(|| ReadError::NotNow("nothing of it is stored".to_owned()))?;
        let recording = recorded.named(one.job.id, one.job.attempt, one.rank, Some(size));
        let fitted = alone(recording, recorded, limit, true);
        let mut fitted = fitted.map_err(|error| ReadError::Invalid(error.to_string()))?;
        fitted.curve(size);
        fitted.answer.not_looked_at.push(format!("{OUTSIDE} The limit is what the process may reserve."));
        Ok(fitted.answer)
    };
    passed(&store, &selection, pass).await
}
