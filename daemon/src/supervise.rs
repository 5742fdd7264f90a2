//! Keeps the daemon's tasks running and records their state.
//!
//! Guarantees: a task that panics is restarted after a pause, which doubles up to [`PAUSE_MAX`]. Restarts are counted,
//! and [`Tasks::states`] shows whether a task is down. A task that ends by itself is not restarted. Every failure is
//! logged and reported in the daemon's status.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::Instant;

/// The pause before the first restart.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause. Because of the pauses, a task that fails at once does not use up a processor.
pub const PAUSE_MAX: Duration = Duration::from_secs(10);
/// After a task has run this long, its next pause is the shortest one again.
const SETTLED: Duration = Duration::from_secs(60);
/// The most characters of a panic's message.
const WORDS_MAX: usize = 500;

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TaskState {
    /// Whether it runs, or has ended without a failure.
    pub running: bool,
    /// How often the task failed and was restarted.
    pub restarts: u64,
    /// The last failure.
    pub failure: Option<String>,
}

/// The daemon's tasks; clones share them.
#[derive(Clone)]
pub struct Tasks {
    states: Arc<Mutex<BTreeMap<&'static str, TaskState>>>,
    changed: Arc<watch::Sender<u64>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self { states: Arc::default(), changed: Arc::new(watch::channel(0).0) }
    }
}

impl Tasks {
    /// Starts a task and keeps it running. Aborting the handle ends the task.
    pub fn supervise<F, T>(&self, name: &'static str, mut make: F) -> JoinHandle<()>
    where
        F: FnMut() -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.note(name, |state| state.running = true);
        let tasks = self.clone();
        tokio::spawn(async move {
            let mut pause = PAUSE;
            loop {
                let begun = Instant::now();
                // Dropping this ends the task, so that aborting the handle does too.
                let mut alone = JoinSet::new();
                alone.spawn(make());
                let fault = match alone.join_next().await {
                    Some(Err(error)) if error.is_panic() => words(error),
                    _ => return,
                };
                tracing::error!(task = name, fault, "a task of the daemon failed; it is restarted");
                tasks.note(name, |state| {
                    state.running = false;
                    state.restarts += 1;
                    state.failure = Some(fault.clone());
                });
                if begun.elapsed() >= SETTLED {
                    pause = PAUSE;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                tasks.note(name, |state| state.running = true);
            }
        })
    }

    fn note(&self, name: &'static str, change: impl FnOnce(&mut TaskState)) {
        // Every change is complete, so the data is valid even if the lock is poisoned.
        change(self.states.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default());
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// The state of each task, by name.
    #[must_use]
    pub fn states(&self) -> BTreeMap<&'static str, TaskState> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A watch whose value changes with every state.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

/// The message of a panic.
#[must_use]
pub fn words(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
    said.unwrap_or_else(|| "a panic without a message".to_owned()).chars().take(WORDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_restarted_and_its_state_shows_it() {
        let tasks = Tasks::default();
        let mut changes = tasks.changes();
        let starts = Arc::new(AtomicU32::new(0));
        let counted = starts.clone();
        let handle = tasks.supervise("worker", move || {
            let start = counted.fetch_add(1, Ordering::Relaxed);
            async move { assert!(start >= 2, "start {start}") }
        });
        changes.wait_for(|_| !tasks.states()["worker"].running).await.unwrap();
        assert_eq!(tasks.states()["worker"].failure.as_deref(), Some("start 0"));
        handle.await.unwrap();
        assert_eq!(starts.load(Ordering::Relaxed), 3);
        let expected = TaskState { running: true, restarts: 2, failure: Some("start 1".to_owned()) };
        assert_eq!(tasks.states()["worker"], expected);
    }

    #[tokio::test]
    async fn aborting_the_handle_ends_the_task() {
        let tasks = Tasks::default();
        let (alive, gone) = watch::channel(());
        let handle = tasks.supervise("worker", move || {
            let alive = gone.clone();
            async move {
                let _alive = alive;
                std::future::pending::<()>().await;
            }
        });
        handle.abort();
        alive.closed().await;
    }
}
