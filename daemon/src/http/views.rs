//! `/api/v1/jobs/JOB/classes`, `anatomy`, `what-if` and `fit`: views of one device that only the page has.
//!
//! Guarantees: as [`super::api`]. A replay is of the requested process, under the requested limit, or else under the
//! limit that its first failed request reveals. If that is an interval and one limit is needed, its lower end is used.

use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use memctl_answers::oom::{Failed, Oom};
use memctl_answers::replaying::Limit;
use memctl_proto::v1;
use memctl_proto::v1::query_server::Query as _;
use memctl_replay::fit::NUMBER_MAX;

use super::Room;
use super::api::{Answered, Asking, Trouble};
use super::params::Params;
use crate::access::Caller;
use crate::query::{Sizes, Wanted};

/// Live memory by class at the boundaries of one device.
pub async fn classes(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&[])?;
    let selection = asked.selection(&job)?;
    let asking = Asking { room: &room, caller };
    asking.told(async { Ok(room.query.classes(&asking.caller, selection).await?) }).await
}

/// Live memory at the peak of one device.
pub async fn anatomy(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&[])?;
    let selection = asked.selection(&job)?;
    whole(&selection)?;
    let asking = Asking { room: &room, caller };
    asking.told(async { Ok(room.query.anatomy(&asking.caller, selection).await?) }).await
}

/// As `memctl what-if`, for one process.
pub async fn what_if(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["limit"])?;
    let (selection, limit) = (asked.selection(&job)?, asked.large("limit")?);
    whole(&selection)?;
    let asking = Asking { room: &room, caller };
    let answer = async {
        let limits = match limit {
            Some(bytes) => vec![Limit::Share(bytes)],
            None => asking.limits(&selection).await?,
        };
        let is_interval = limits.len() > 1;
        Ok(room.query.what_if(&asking.caller, Wanted { selection, limits, is_interval }).await?)
    };
    asking.told(answer).await
}

/// As `memctl fit` with one recording, at sizes around the recorded one.
pub async fn fit(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["size", "limit"])?;
    let (selection, limit) = (asked.selection(&job)?, asked.large("limit")?);
    whole(&selection)?;
    let Some(size) = asked.large("size")?.filter(|size| (1..=NUMBER_MAX).contains(size)) else {
        let why =
            format!("size=N, from 1 to {NUMBER_MAX}: the number that it was recorded at (batch, sequence, layers)");
        return Err(why.into());
    };
    let asking = Asking { room: &room, caller };
    let answer = async {
        let limit = match limit {
            Some(bytes) => Some(bytes),
            None => asking.limits(&selection).await?.first().and_then(|limit| limit.bytes()),
        };
        Ok(room.query.fit(&asking.caller, Sizes { selection, size, limit }).await?)
    };
    asking.told(answer).await
}

impl Asking<'_> {
    /// The limit of the process, as its first failed request reveals it; empty if none failed.
    async fn limits(&self, selection: &v1::Selection) -> Result<Vec<Limit>, Trouble> {
        let request = self.request(v1::OomRequest { selection: Some(selection.clone()) });
        let failed = Oom::new(self.room.query.get_oom(request).await?.into_inner(), None)?;
        let mut limits = failed.failures.first().map_or_else(Vec::new, Failed::limits);
        limits.dedup();
        Ok(limits)
    }
}

/// The peak and a replay cover the whole recording.
fn whole(selection: &v1::Selection) -> Result<(), Trouble> {
    match selection.since_ns.or(selection.until_ns) {
        None => Ok(()),
        Some(_) => Err("this covers the whole recording; remove since= and until=".to_owned().into()),
    }
}
