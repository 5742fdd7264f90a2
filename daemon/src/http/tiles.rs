//! `/api/v1/jobs/JOB/tiles`: tiles of a timeline, which browsers cache.
//!
//! Guarantees: every tile has a tag, and an unchanged tile is not sent again. A tile that never changes is cached
//! without revalidation if it was requested by session. A request by the job's name alone is always revalidated,
//! because another job could later have the same address. Caches are private to one reader; proxies and later users do
//! not get them. The work ends when the client disconnects. Permits are shared with the other requests.

use axum::extract::{Extension, Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, VARY};
use axum::http::{HeaderName, StatusCode, Uri};
use axum::response::IntoResponse;
use tonic::Status;

use super::api::Answered;
use super::assets::{is_known, tag};
use super::params::Params;
use super::{Room, job_views};
use crate::access::Caller;
use crate::permits;

/// A cache time of a week. After that, a client requests the tile again.
const FOR_GOOD: &str = "private, max-age=604800, immutable";
/// The tile is revalidated at every request.
const FOR_NOW: &str = "private, no-cache";

/// Returns a tile.
pub async fn tile(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Answered {
    let asked = Params::of(&uri)?;
    let question = job_views::tile(&asked, &job)?;
    let by_session = question.session.is_some();
    let permit = room.permit(&caller).await?;
    let tile = room.query.answer(&caller, question).await?;
    let bytes = tile.bytes().map_err(|error| Status::internal(error.to_string()))?;
    let tag = tag(&bytes);
    let kept = if by_session && tile.head.is_final { FOR_GOOD } else { FOR_NOW };
    let same = is_known(&headers, &tag);
    let head: [(HeaderName, String); 4] = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CACHE_CONTROL, kept.to_owned()),
        (VARY, "Authorization, Cookie".to_owned()),
        (ETAG, tag),
    ];
    if same {
        return Ok((StatusCode::NOT_MODIFIED, head).into_response());
    }
    Ok((head, permits::body(bytes, Some(permit))).into_response())
}
