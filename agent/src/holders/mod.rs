//! The path of a request for holders through the agent. It goes from the uplink to the worker, which has the live
//! blocks, into the trainer's region, and back.
//!
//! - [`Asks`] passes requests and answers between the uplink and the worker.
//! - [`search`] is the worker's part.
//! - [`allowance`] limits how often a search may run.
//! - [`parse`] parses what trainers write.
//!
//! Guarantees: there is one request at a time, and a newer one replaces an older one. Nothing is queued and nothing
//! blocks. An answer is not an item: it is lost with its connection, but no event is.
//! Refuses: malformed requests, and answers without a request.

mod allowance;
mod parse;
pub(crate) mod search;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memctl_model::StackId;
use memctl_proto::convert::holders::{BUDGET_MS_MAX, STACKS_MAX};
use memctl_proto::v1;
use memctl_proto::v1::holders_answer::Body;
use tokio::sync::Notify;

/// The longest time that a caller may wait.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// A request for holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The request's id, which the answer repeats.
    pub id: u64,
    /// The stacks of the requested blocks, sorted.
    pub stacks: Vec<StackId>,
    /// How long the search may take.
    pub budget_ms: u32,
    /// The time until which the caller waits.
    pub until: Instant,
}

impl Ask {
    /// Converts a request from the wire format.
    fn new(ask: v1::HoldersAsk, now: Instant) -> Self {
        let v1::HoldersAsk { id, mut stacks, budget_ms, wait_ms } = ask;
        stacks.truncate(STACKS_MAX);
        stacks.sort_unstable();
        let wait = Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
        let stacks = stacks.into_iter().filter(|stack| *stack != 0).map(StackId).collect();
        Self { id, stacks, budget_ms: budget_ms.clamp(1, BUDGET_MS_MAX), until: now + wait }
    }

    fn budget(&self) -> Duration {
        Duration::from_millis(self.budget_ms.into())
    }
}

/// The request and the answer; see the module's documentation.
#[derive(Default)]
pub(crate) struct Asks {
    /// Whether a request waits for the worker, which checks this in every turn.
    is_asked: AtomicBool,
    waiting: Mutex<Waiting>,
    answered: Notify,
}

#[derive(Default)]
struct Waiting {
    ask: Option<Ask>,
    answer: Option<v1::HoldersAnswer>,
}

impl Asks {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the daemon's request.
    pub fn ask(&self, ask: v1::HoldersAsk) {
        self.waiting().ask = Some(Ask::new(ask, Instant::now()));
        // Relaxed: the lock orders the data.
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Drops the request and the answer of the previous connection, which was replaced.
    pub fn forget(&self) {
        *self.waiting() = Waiting::default();
    }

    /// Takes the request. It is returned only once.
    fn take(&self) -> Option<Ask> {
        // Relaxed: see `ask`. A request that is missed now is seen in the next turn.
        if !self.is_asked.load(Ordering::Relaxed) || !self.is_asked.swap(false, Ordering::Relaxed) {
            return None;
        }
        self.waiting().ask.take()
    }

    fn answer(&self, id: u64, body: Body) {
        self.waiting().answer = Some(v1::HoldersAnswer { id, body: Some(body) });
        self.answered.notify_one();
    }

    /// The next answer. Cancel-safe: nothing is lost when this future is dropped.
    pub async fn answered(&self) -> v1::HoldersAnswer {
        loop {
            if let Some(answer) = self.waiting().answer.take() {
                return answer;
            }
            self.answered.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_ask_goes_to_the_worker_and_its_answer_to_the_uplink() {
        let asks = Asks::default();
        assert_eq!(asks.take(), None);
        asks.ask(v1::HoldersAsk { id: 1, stacks: vec![9], ..Default::default() });
        asks.ask(v1::HoldersAsk { id: 2, stacks: vec![5, 0, 3], budget_ms: u32::MAX, wait_ms: u32::MAX });
        let ask = asks.take().unwrap();
        assert_eq!((ask.id, ask.budget_ms), (2, BUDGET_MS_MAX), "the newer one");
        assert_eq!(ask.stacks, [StackId(3), StackId(5)]);
        assert!(ask.until <= Instant::now() + WAIT_MAX);
        assert_eq!(asks.take(), None);
        // The answer may come before or after the wait begins.
        asks.answer(2, Body::Failure("no".into()));
        assert_eq!(asks.answered().await.id, 2);
        let (answer, ()) = tokio::join!(asks.answered(), async { asks.answer(3, Body::Failure("no".into())) });
        assert_eq!(answer.id, 3);
    }

    #[tokio::test]
    async fn another_connection_hears_nothing_of_the_one_before() {
        let asks = Asks::default();
        asks.ask(v1::HoldersAsk { id: 1, ..Default::default() });
        asks.answer(1, Body::Failure("no".into()));
        asks.forget();
        assert_eq!(asks.take(), None);
        assert!(tokio::time::timeout(Duration::from_millis(1), asks.answered()).await.is_err());
    }
}
