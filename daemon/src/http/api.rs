//! `/api/v1/…`: the command line's `-o json` output over HTTP; and data that only the page uses: flame graphs,
//! sparklines, heat maps and blocks here, tiles in `tiles`, classes and the anatomy of a peak in `views`.
//!
//! Guarantees: a response comes from the same service as over gRPC, for the same caller, and is written by the crate that
//! writes the command line's output. At most [`crate::permits::ANSWERS_MAX`] are in memory at a time, half of them of one
//! tenant. An error is one sentence of text, with a status that says which side caused it.

use axum::extract::{Extension, Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use memctl_answers::PartMissing;
use memctl_answers::access::Known;
use memctl_answers::advice::{Advice, is_called_for};
use memctl_answers::diagnose::{Diagnosis, rank_of};
use memctl_answers::dossier::flame::Flame;
use memctl_answers::dossier::same_job;
use memctl_answers::dossier::table::SiteClasses;
use memctl_answers::format::json;
use memctl_answers::heat::Heat;
use memctl_answers::jobs::Jobs;
use memctl_answers::ledger::Ledger;
use memctl_answers::oom::Oom;
use memctl_answers::report::Report;
use memctl_answers::sites::{Sites, View as SitesView};
use memctl_answers::sparkline::Sparkline;
use memctl_answers::timeline::Timeline;
use memctl_proto::v1;
use memctl_proto::v1::query_server::Query as _;
use serde::Serialize;
use tonic::{Code, Request, Status};

use super::params::{Moment, Params};
use super::{Room, plain};
use crate::access::Caller;
use crate::permits::{self, HasPermit};
use crate::query::At;

/// Default number of points of a timeline.
const POINTS: u32 = 500;
/// Points of a sparkline in the list of jobs.
const SPARKLINE: u32 = 60;

/// Why a request has no response.
#[derive(Debug)]
pub enum Trouble {
    /// The request is invalid.
    Params(String),
    /// The service returned an error.
    Said(Status),
    /// The maximum number of responses is being computed.
    Busy,
    /// A response that lacks a part.
    Missing(PartMissing),
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self::Params(why)
    }
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self::Said(status)
    }
}

impl From<PartMissing> for Trouble {
    fn from(missing: PartMissing) -> Self {
        Self::Missing(missing)
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        match self {
            Self::Params(why) => plain(StatusCode::BAD_REQUEST, format!("{why}\n")),
            Self::Said(status) => plain(code(status.code()), format!("{}\n", status.message())),
            Self::Busy => {
                plain(StatusCode::SERVICE_UNAVAILABLE, "too many concurrent requests; try again later\n".to_owned())
            }
            Self::Missing(missing) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{missing}\n")),
        }
    }
}

const fn code(code: Code) -> StatusCode {
    match code {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => StatusCode::CONFLICT,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

pub(super) type Answered = Result<Response, Trouble>;

/// The caller and its context.
pub(super) struct Asking<'r> {
    pub(super) room: &'r Room,
    pub(super) caller: Caller,
}

impl Asking<'_> {
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(self.caller.clone());
        request.extensions_mut().insert(HasPermit);
        request
    }

    async fn report(&self, selection: v1::Selection) -> Result<Report, Trouble> {
        let request = self.request(v1::ReportRequest { selection: Some(selection) });
        Ok(Report::new(self.room.query.get_report(request).await?.into_inner(), None)?)
    }

    async fn live(&self, selection: v1::Selection, moment: Option<Moment>) -> Result<Sites, Trouble> {
        use v1::sites_request::Moment as Wire;
        let moment = moment.map(|moment| match moment {
            Moment::Peak => Wire::Peak(true),
            Moment::End => Wire::End(true),
            Moment::EpochEnd(epoch) => Wire::EpochEnd(epoch),
            Moment::At(ns) => Wire::AtNs(ns),
        });
        let request = self.request(v1::SitesRequest { selection: Some(selection), moment });
        Ok(Sites::new(self.room.query.get_sites(request).await?.into_inner(), SitesView::default())?)
    }

    async fn ledger(&self, selection: v1::Selection, moment: Option<Moment>, blocks: bool) -> Result<Ledger, Trouble> {
        use v1::ledger_request::Moment as Wire;
        let moment = match moment {
            None | Some(Moment::Peak) => Wire::Peak(true),
            Some(Moment::End) => Wire::End(true),
            Some(Moment::EpochEnd(epoch)) => Wire::EpochEnd(epoch),
            Some(Moment::At(_)) => {
                return Err("a ledger is at the peak, at the end of an epoch, or at the end".to_owned().into());
            }
        };
        let request = v1::LedgerRequest { selection: Some(selection), moment: Some(moment), blocks };
        Ok(self.room.query.ledger(&self.caller, request).await?)
    }

    /// The response as the command line writes it, once there is a permit for it.
    pub(super) async fn told<T: Serialize>(&self, answer: impl Future<Output = Result<T, Trouble>>) -> Answered {
        let permit = self.room.permit(&self.caller).await?;
        let answer = answer.await?;
        let mut text = Vec::new();
        json::line(&mut text, &answer).map_err(|error| Status::internal(error.to_string()))?;
        let head = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
        Ok((head, permits::body(text, permit)).into_response())
    }
}

/// The caller, as this daemon identifies it.
pub async fn caller(State(room): State<Room>, Extension(caller): Extension<Caller>) -> Answered {
    let asking = Asking { room: &room, caller };
    let Caller { name, role, .. } = &asking.caller;
    let tenant = asking.caller.tenant_name().to_owned();
    let may_leave = matches!(&room.auth, super::Authentication::Gate(_)) && asking.caller.has_token();
    let known = Known::new(name.clone(), *role, tenant, may_leave, env!("CARGO_PKG_VERSION"));
    asking.told(async { Ok(known) }).await
}

/// As `memctl jobs`.
pub async fn jobs(State(room): State<Room>, Extension(caller): Extension<Caller>, uri: Uri) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["limit"])?;
    let limit = asked.number("limit")?.unwrap_or(0);
    let asking = Asking { room: &room, caller };
    let request = asking.request(v1::ListJobsRequest { limit, judge: true, ..v1::ListJobsRequest::default() });
    asking
        .told(async { Ok(Jobs::new(room.query.list_jobs(request).await?.into_inner(), false, crate::clock::now_ns())) })
        .await
}

/// As `memctl query`.
pub async fn query(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&[])?;
    let asking = Asking { room: &room, caller };
    asking.told(asking.report(asked.selection(&job)?)).await
}

/// Ranks by epochs, outliers first.
pub async fn heat(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&[])?;
    let asking = Asking { room: &room, caller };
    asking.told(async { Ok(Heat::new(asking.report(asked.selection(&job)?).await?)) }).await
}

/// As `memctl diagnose`.
pub async fn diagnose(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&[])?;
    let selection = asked.selection(&job)?;
    let asking = Asking { room: &room, caller };
    let note = async {
        let report = asking.report(selection.clone()).await?;
        let Some(one) = rank_of(&report).map(|rank| same_job(selection, &report, rank)) else {
            return Ok(Diagnosis::new(report, None, None, None, ""));
        };
        let replay =
            rank_of(&report).filter(|_| is_called_for(&report)).map(|rank| unreplayed(rank.rank, &rank.process));
        let sites = asking.live(one.clone(), None).await?;
        // If its events are no longer stored, the report goes without them.
        let peak = asking.ledger(one, None, false).await.ok();
        Ok(Diagnosis::new(report, Some(&sites), peak.as_ref(), replay, ""))
    };
    asking.told(note).await
}

/// As `memctl timeline`.
pub async fn timeline(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["points"])?;
    let (selection, points) = (asked.selection(&job)?, asked.number("points")?.unwrap_or(POINTS));
    let asking = Asking { room: &room, caller };
    let request = asking.request(v1::TimelineRequest { selection: Some(selection), points });
    asking.told(async { Ok(Timeline::new(room.query.get_timeline(request).await?.into_inner(), true, None)?) }).await
}

/// The timeline of one process in a few columns.
pub async fn sparkline(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&[])?;
    let selection = asked.selection(&job)?;
    let asking = Asking { room: &room, caller };
    let line = async {
        let known = asking.request(v1::JobRequest { selection: Some(selection.clone()) });
        let known = room.query.get_job(known).await?.into_inner();
        let first = known.processes.iter().filter(|process| process.events > 0).min_by_key(|process| process.rank);
        let Some(first) = first else { return Ok(Sparkline::new(v1::Timeline::default())) };
        // Fixes the attempt, in case another one begins meanwhile.
        let attempt = known.job.as_ref().map(|job| job.attempt);
        let one = v1::Selection { attempt, processes: vec![first.process.clone()], ..selection };
        let request = asking.request(v1::TimelineRequest { selection: Some(one), points: SPARKLINE });
        Ok(Sparkline::new(room.query.get_timeline(request).await?.into_inner()))
    };
    asking.told(line).await
}

/// As `memctl sites`.
pub async fn sites(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["at"])?;
    let asking = Asking { room: &room, caller };
    asking.told(asking.live(asked.selection(&job)?, asked.moment("at")?)).await
}

/// As `memctl ledger`.
pub async fn ledger(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["at", "blocks"])?;
    let asking = Asking { room: &room, caller };
    asking.told(asking.ledger(asked.selection(&job)?, asked.moment("at")?, asked.flag("blocks")?)).await
}

/// As `memctl oom`.
pub async fn oom(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&[])?;
    let asking = Asking { room: &room, caller };
    let request = asking.request(v1::OomRequest { selection: Some(asked.selection(&job)?) });
    let answer = async {
        let answer = Oom::new(room.query.get_oom(request).await?.into_inner(), None)?;
        let replay = answer.failures.first().map(|failed| unreplayed(failed.rank, &failed.process));
        Ok(answer.with_replay(replay))
    };
    asking.told(answer).await
}

/// Verdicts are requested often and must be fast: settings are only replayed on request.
fn unreplayed(rank: u32, process: &str) -> Advice {
    Advice::none(
        rank,
        process,
        "the page replays it under \"Settings\", `memctl what-if` in a terminal".to_owned(),
        None,
    )
}

/// Live memory of one device as a tree of calls at `at`, or its change from `from` to `at`.
pub async fn flame(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["at", "from"])?;
    let selection = asked.selection(&job)?;
    if selection.ranks.len() != 1 {
        return Err("a flame graph is of one rank: rank=N".to_owned().into());
    }
    let (at, from) = (asked.moment("at")?.unwrap_or(Moment::Peak), asked.moment("from")?);
    let asking = Asking { room: &room, caller };
    let graph = async {
        let late = asking.live(selection.clone(), Some(at)).await?;
        let early = match from {
            Some(from) => Some(asking.live(selection.clone(), Some(from)).await?),
            None => None,
        };
        // Classes come from single events: if none is stored, boxes have no class.
        let blocks = asking.ledger(selection, None, true).await;
        let of = |ledger: &Ledger| {
            let blocks = ledger.ranks.first().and_then(|listed| listed.blocks.as_deref());
            SiteClasses::new(blocks.unwrap_or_default())
        };
        let classes = blocks.as_ref().map(of).unwrap_or_default();
        Flame::new(&late, early.as_ref(), &classes).ok_or_else(|| {
            Status::not_found(
                "no table of live memory is stored of this rank; `memctl sites` says of which there is one",
            )
            .into()
        })
    };
    asking.told(graph).await
}

/// A stretch of one device's allocator around a moment, block by block.
pub async fn blocks(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["at", "event"])?;
    let selection = asked.selection(&job)?;
    let at = match (asked.large("event")?, asked.moment("at")?) {
        (Some(event), None) => At::Event(event),
        (None, None | Some(Moment::Peak)) => At::Peak,
        (None, Some(Moment::End)) => At::End,
        (None, Some(Moment::EpochEnd(epoch))) => At::EpochEnd(epoch),
        (None, Some(Moment::At(ns))) => At::Time(ns),
        (Some(_), Some(_)) => return Err("a moment is given by at=… or by event=N".to_owned().into()),
    };
    let asking = Asking { room: &room, caller };
    let answer = async { Ok(room.query.blocks(&asking.caller, selection, at).await?) };
    asking.told(answer).await
}
