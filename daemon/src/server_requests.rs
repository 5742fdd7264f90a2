//! Requests to processes for holders, over the streams of their sessions. A query submits a request, and the stream's
//! own task sends it and returns the response.
//!
//! Guarantees: a stream has one request at a time, and only agents that announced support get one. The caller waits for
//! a limited time; neither the stream nor its agent ever waits for the caller. A response is accepted only for the
//! pending request, only once, and only if it is valid.
//! Refuses: responses without a request.

use std::sync::Arc;
use std::time::Duration;

use memctl_proto::convert::holders::checked;
use memctl_proto::v1;
use memctl_proto::v1::HolderSearch;
use memctl_proto::v1::holders_answer::Body;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// The reason why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The session is not streaming to this daemon.
    #[error("it is not streaming to this daemon")]
    Gone,
    /// The stream ended before the response.
    #[error("it ended, or its connection broke, before it answered")]
    Left,
    /// Its agent does not support the request.
    #[error("its agent is too old for this request; install the memctl-agent of this daemon's version there")]
    TooOld,
    /// The user who started it forbids it.
    #[error("it was started with --no-holders, MEMCTL_HOLDERS=off or attach(holders=False), which forbid it")]
    Forbidden,
    /// It is not a Python process.
    #[error("it is not a Python process, so no Python object holds its memory")]
    NotPython,
    /// Another request is pending.
    #[error("it is being asked already; ask again in a moment")]
    Busy,
    /// The interpreter runs code that lets no other thread run, the search is not finished, or the process ended.
    #[error(
        "it did not answer in {0:?}: a search goes on in small slices while the program lets other Python threads run; ask again in a moment"
    )]
    NoAnswer(Duration),
    /// The agent's error message.
    #[error("{0}")]
    Failed(String),
}

/// A request, and the channel for its response.
struct Pending {
    stacks: Vec<u32>,
    budget_ms: u32,
    wait: Duration,
    answer: oneshot::Sender<Result<v1::HoldersFound, String>>,
}

/// The support for such requests that the hello of a session announces.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// Whether its process can be queried.
    pub search: HolderSearch,
    /// Whether the daemon may query it without a user's request.
    pub unasked: bool,
}

impl From<HolderSearch> for Readiness {
    fn from(search: HolderSearch) -> Self {
        Self { search, unasked: false }
    }
}

/// The callers' end of a stream's line.
#[derive(Clone)]
pub struct Line {
    readiness: Readiness,
    asks: mpsc::Sender<Pending>,
    alone: Arc<Semaphore>,
}

/// The stream's end of a stream's line.
pub struct AskReceiver {
    asks: mpsc::Receiver<Pending>,
    next: u64,
    under_way: Option<(u64, oneshot::Sender<Result<v1::HoldersFound, String>>)>,
}

/// The two ends of a stream's line. `first` is the number of its first request. Numbers of one session's streams
/// differ.
#[must_use]
pub fn line(readiness: Readiness, first: u64) -> (Line, AskReceiver) {
    let (sender, asks) = mpsc::channel(1);
    (
        Line { readiness, asks: sender, alone: Arc::new(Semaphore::new(1)) },
        AskReceiver { asks, next: first, under_way: None },
    )
}

impl Line {
    /// Whether the process can be queried, and the daemon may do so without a user's request.
    #[must_use]
    pub fn may_be_asked_unasked(&self) -> bool {
        self.readiness.unasked && self.readiness.search == HolderSearch::Ready
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask(&self, stacks: Vec<u32>, budget_ms: u32, wait: Duration) -> Result<v1::HoldersFound, AskError> {
        match self.readiness.search {
            HolderSearch::Ready => {}
            HolderSearch::Unspecified => return Err(AskError::TooOld),
            HolderSearch::Forbidden => return Err(AskError::Forbidden),
            HolderSearch::NotPython => return Err(AskError::NotPython),
        }
        // The permit is released on drop, regardless of the outcome.
        let _alone = self.alone.try_acquire().map_err(|_| AskError::Busy)?;
        let (answer, answered) = oneshot::channel();
        let pending = Pending { stacks, budget_ms, wait, answer };
        self.asks.try_send(pending).map_err(|error| match error {
            // The stream's task has not taken an abandoned request yet.
            mpsc::error::TrySendError::Full(_) => AskError::Busy,
            mpsc::error::TrySendError::Closed(_) => AskError::Gone,
        })?;
        match tokio::time::timeout(wait, answered).await {
            Ok(Ok(Ok(found))) => Ok(found),
            Ok(Ok(Err(words))) => Err(AskError::Failed(words)),
            Ok(Err(_)) => Err(AskError::Left),
            Err(_) => Err(AskError::NoAnswer(wait)),
        }
    }
}

impl AskReceiver {
    /// The next request to send. If no callers are left, it never returns.
    pub async fn next(&mut self) -> v1::HoldersAsk {
        loop {
            let Some(Pending { stacks, budget_ms, wait, answer }) = self.asks.recv().await else {
                std::future::pending::<()>().await;
                continue;
            };
            if answer.is_closed() {
                continue;
            }
            let id = self.next;
            self.next = self.next.wrapping_add(1);
            self.under_way = Some((id, answer));
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            return v1::HoldersAsk { id, stacks, budget_ms, wait_ms };
        }
    }

    /// Drops a request that could not be sent, which informs the caller at once.
    pub fn unsent(&mut self) {
        self.under_way = None;
    }

    /// Handles the agent's response.
    pub fn heard(&mut self, answer: v1::HoldersAnswer) {
        let v1::HoldersAnswer { id, body } = answer;
        let Some((_, asker)) = self.under_way.take_if(|(asked, _)| *asked == id) else {
            tracing::debug!(id, "ignored an answer without a request");
            return;
        };
        let found = match body {
            Some(Body::Found(found)) => {
                checked(found).map_err(|error| format!("its agent's answer is refused: {error}"))
            }
            Some(Body::Failure(words)) => Err(words.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect()),
            None => Err("its agent answered nothing".to_owned()),
        };
        // The caller may have stopped waiting.
        let _ = asker.send(found);
    }
}

/// The most characters of an agent's message that are passed on.
const WORDS_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    fn found(blocks: u32) -> Option<Body> {
        Some(Body::Found(v1::HoldersFound { asked_blocks: blocks, ..Default::default() }))
    }

    #[tokio::test]
    async fn an_ask_comes_back_with_its_answer() {
        let (line, mut asked) = line(HolderSearch::Ready.into(), 40);
        let serving = async {
            let ask = asked.next().await;
            assert_eq!((ask.id, ask.stacks.as_slice(), ask.budget_ms, ask.wait_ms), (40, &[3, 4][..], 50, 60_000));
            asked.heard(v1::HoldersAnswer { id: 39, body: found(1) });
            asked.heard(v1::HoldersAnswer { id: 40, body: found(2) });
            asked.heard(v1::HoldersAnswer { id: 40, body: found(3) });
            assert!(asked.under_way.is_none());
        };
        let (answer, ()) = tokio::join!(line.ask(vec![3, 4], 50, WAIT), serving);
        assert_eq!(answer.unwrap().asked_blocks, 2, "neither another ask's answer nor a second one");
    }

    #[tokio::test]
    async fn an_agent_that_cannot_be_asked_is_not() {
        for (search, error) in [
            (HolderSearch::Unspecified, AskError::TooOld),
            (HolderSearch::Forbidden, AskError::Forbidden),
            (HolderSearch::NotPython, AskError::NotPython),
        ] {
            let (line, mut asked) = line(search.into(), 1);
            assert_eq!(line.ask(vec![1], 1, WAIT).await, Err(error));
            assert!(asked.asks.try_recv().is_err());
        }
    }

    #[tokio::test]
    async fn what_an_agent_says_wrongly_is_an_error() {
        for (body, words) in [
            (None, "answered nothing"),
            (found(257), "refused"),
            (Some(Body::Failure("freed\u{1b}[31m".into())), "freed[31m"),
        ] {
            let (line, mut asked) = line(HolderSearch::Ready.into(), 1);
            let serving = async {
                let id = asked.next().await.id;
                asked.heard(v1::HoldersAnswer { id, body });
            };
            let (answer, ()) = tokio::join!(line.ask(vec![1], 1, WAIT), serving);
            let error = answer.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[tokio::test]
    async fn one_asks_at_a_time_and_who_goes_makes_room() {
        let (line, mut asked) = line(HolderSearch::Ready.into(), 1);
        {
            let mut first = std::pin::pin!(line.ask(vec![1], 1, WAIT));
            assert!(tokio::time::timeout(Duration::from_millis(1), &mut first).await.is_err());
            assert_eq!(line.ask(vec![1], 1, WAIT).await, Err(AskError::Busy));
        }
        // The caller stops waiting before its request is sent.
        assert!(tokio::time::timeout(Duration::from_millis(1), asked.next()).await.is_err());
        let serving = async {
            let id = asked.next().await.id;
            asked.heard(v1::HoldersAnswer { id, body: found(2) });
        };
        let (answer, ()) = tokio::join!(line.ask(vec![1], 1, WAIT), serving);
        assert!(answer.is_ok());
        assert_eq!(line.ask(vec![1], 1, Duration::ZERO).await, Err(AskError::NoAnswer(Duration::ZERO)));
        drop(asked);
        assert_eq!(line.ask(vec![1], 1, WAIT).await, Err(AskError::Gone));
    }

    #[tokio::test]
    async fn a_process_that_ends_while_it_is_asked_has_left() {
        let (line, asked) = line(HolderSearch::Ready.into(), 1);
        let mut answer = std::pin::pin!(line.ask(vec![1], 1, WAIT));
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut answer).await.is_err());
        drop(asked);
        assert_eq!(answer.await, Err(AskError::Left));
    }

    #[test]
    fn only_who_allows_it_and_can_be_asked_is_asked_unasked() {
        for (search, unasked, may) in [
            (HolderSearch::Ready, true, true),
            (HolderSearch::Ready, false, false),
            (HolderSearch::Forbidden, true, false),
            (HolderSearch::NotPython, true, false),
        ] {
            assert_eq!(line(Readiness { search, unasked }, 1).0.may_be_asked_unasked(), may, "{search:?}");
        }
    }
}
