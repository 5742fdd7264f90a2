//! Work on several ranks at the same time: a question waits for all of them, and most of it is arithmetic.
//!
//! Guarantees: what comes of it is seen in the order in which it was asked for; no more is under way than
//! there are processors for, and [`AT_ONCE`] at most; nothing goes on once nobody waits for the answer.

use std::num::NonZero;
use std::thread::available_parallelism;

use tokio::task::JoinSet;

use super::error::ReadError;

/// Ranks at the same time, at most: each opens a connection to the store.
const AT_ONCE: usize = 4;

/// Runs all works, and shows `each` what they come to.
///
/// # Errors
/// The first of theirs, in their order.
pub(crate) async fn side_by_side<T, W>(works: Vec<W>, mut each: impl FnMut(T)) -> Result<(), ReadError>
where
    T: Send + 'static,
    W: Future<Output = Result<T, ReadError>> + Send + 'static,
{
    let at_once = available_parallelism().map_or(1, NonZero::get).min(AT_ONCE);
    let mut works = works.into_iter().enumerate();
    while works.len() > 0 {
        // Dropped, it ends what is under way.
        let mut together = JoinSet::new();
        for (place, work) in works.by_ref().take(at_once) {
            together.spawn(async move { (place, work.await) });
        }
        // A panic goes on in here, as if nothing had been spawned.
        let mut done = together.join_all().await;
        done.sort_by_key(|(place, _)| *place);
        for (_, come_to) in done {
            each(come_to?);
        }
    }
    Ok(())
}
