//! Computes responses on separate threads, apart from the tasks that serve connections.
//!
//! Guarantees: a response holds a permit from before it is computed until it is sent. It is computed on a thread of its
//! own, so a replay of millions of events blocks neither ingest nor health checks nor shutdown. After its client has
//! disconnected, it ends at its next pause. A fault in it affects only this response, not others on the connection.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tonic::{Response, Status};

use crate::access::Caller;
use crate::job_data::ReadError;
use crate::listen::ResponseGuard;
use crate::permits::{Permit, Permits};
use crate::supervise;

/// How long to wait for a permit. A client in a terminal should wait rather than retry.
pub(super) const SLOT_WAIT: Duration = Duration::from_secs(20);

/// Takes a permit for a caller's response.
///
/// # Errors
/// No permit became free in time.
pub(crate) async fn permit(answers: &Permits, caller: &Caller) -> Result<Permit, Status> {
    let busy = || {
        let most = answers.of_a_tenant();
        Status::resource_exhausted(format!(
            "too many concurrent requests (the limit for one tenant is {most}); try again later"
        ))
    };
    answers.take(caller.tenant_name()).await.ok_or_else(busy)
}

/// Computes a response. The response keeps the permit until it is sent.
pub(super) async fn apart<T: Send + 'static>(
    permit: Option<Permit>,
    answer: impl Future<Output = Result<T, ReadError>> + Send + 'static,
) -> Result<Response<T>, Status> {
    Ok(with_permit(worked_out(answer).await?, permit))
}

/// A response that keeps a permit until it is sent.
pub(super) fn with_permit<T>(answer: T, permit: Option<Permit>) -> Response<T> {
    let mut response = Response::new(answer);
    if let Some(permit) = permit {
        response.extensions_mut().insert(ResponseGuard::new(permit));
    }
    response
}

async fn worked_out<T: Send + 'static>(
    answer: impl Future<Output = Result<T, ReadError>> + Send + 'static,
) -> Result<T, ReadError> {
    let runtime = Handle::current();
    // This is dropped together with the request.
    let (_asker, gone) = oneshot::channel::<()>();
    let work = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = gone => Err(ReadError::Fault("the client disconnected".to_owned())),
                answer = answer => answer,
            }
        })
    });
    work.await.unwrap_or_else(|error| Err(ReadError::Fault(supervise::words(error))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    use super::*;

    /// A response that computes endlessly, and pauses like a replay.
    async fn endless(rounds: Arc<AtomicU64>, ended: Arc<AtomicBool>) -> Result<(), ReadError> {
        struct EndFlag(Arc<AtomicBool>);
        impl Drop for EndFlag {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let _ended = EndFlag(ended);
        loop {
            let until = Instant::now() + Duration::from_millis(20);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            rounds.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_answer_holds_up_no_other_task_and_ends_with_its_asker() {
        let (rounds, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let asked = tokio::spawn(apart(None, endless(rounds.clone(), ended.clone())));
        while rounds.load(Ordering::Relaxed) < 2 {
            // This runtime's only thread remains responsive.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!ended.load(Ordering::Acquire));
        asked.abort();
        let over = async {
            while !ended.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), over).await.expect("it goes on without its asker");
    }

    #[tokio::test]
    async fn a_fault_is_an_error_of_its_answer() {
        let fault = apart::<()>(None, async { panic!("of this answer") }).await.unwrap_err();
        assert!(fault.message().contains("of this answer"), "{fault}");
    }
}
