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

use super::Room;
use super::api::Answered;
use super::assets::{is_known, tag};
use super::params::Params;
use crate::access::Caller;
use crate::permits;
use crate::query::{Place, TileQuestion};

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
    asked.takes(&["level", "index", "session"])?;
    let selection = asked.selection(&job)?;
    let place = match (asked.number("level")?, asked.large("index")?) {
        (Some(level), Some(index)) => Place { level, index },
        _ => return Err("a tile has a level and an index: level=N&index=N".to_owned().into()),
    };
    if selection.since_ns.or(selection.until_ns).is_some() {
        return Err("a tile's times are those of its level and index, not since= and until=".to_owned().into());
    }
    let session = asked.text("session").map(str::to_owned);
    let by_session = session.is_some();
    let permit = room.permit(&caller).await?;
    let tile = room.query.answer(&caller, TileQuestion { selection, place, session }).await?;
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
