//! Runs work on several ranks concurrently, because a request waits for all of them and most of the work is arithmetic.
//!
//! Guarantees: results are delivered in the order of the requests. The number of concurrent tasks is at most the number
//! of processors, and at most [`AT_ONCE`]. All of them end when the caller is dropped.

use std::num::NonZero;
use std::thread::available_parallelism;

use tokio::task::JoinSet;

use super::error::ReadError;

/// The most ranks at the same time. Each opens a connection to the store.
const AT_ONCE: usize = 4;

/// Runs all tasks and passes their results to `each`.
///
/// # Errors
/// The first error, in the order of the tasks.
pub(crate) async fn concurrently<T, W>(tasks: Vec<W>, mut each: impl FnMut(T)) -> Result<(), ReadError>
where
    T: Send + 'static,
    W: Future<Output = Result<T, ReadError>> + Send + 'static,
{
    let at_once = available_parallelism().map_or(1, NonZero::get).min(AT_ONCE);
    let mut tasks = tasks.into_iter().enumerate();
    while tasks.len() > 0 {
        // Dropping this ends the running tasks.
        let mut together = JoinSet::new();
        for (place, task) in tasks.by_ref().take(at_once) {
            together.spawn(async move { (place, task.await) });
        }
        // A panic propagates, as if the tasks had not been spawned.
        let mut done = together.join_all().await;
        done.sort_by_key(|(place, _)| *place);
        for (_, result) in done {
            each(result?);
        }
    }
    Ok(())
}
