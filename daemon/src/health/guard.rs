//! Refuses calls that need the store while it does not respond, including calls in progress.
//!
//! Guarantees: a caller waits only until the store is known to be unavailable, and gets UNAVAILABLE with the reason.
//! Agents' streams wait instead. A call is never refused for being slow.

use std::pin::Pin;
use std::task::{Context, Poll};

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

use super::Health;

/// Services whose calls all need the store.
const NEED_THE_STORE: [&str; 4] = ["/memctl.v1.Query/", "/memctl.v1.Page/", "/memctl.v1.Alerts/", "/memctl.v1.Access/"];

/// Awaits a response that needs the store. Returns the reason as soon as the store does not respond.
pub(crate) async fn while_the_store_answers<T>(health: &Health, answer: impl Future<Output = T>) -> Result<T, String> {
    tokio::select! {
        // A finished response takes precedence.
        biased;
        answer = answer => Ok(answer),
        fault = health.store_away() => Err(format!("the store does not answer: {fault}")),
    }
}

/// The guard; see the module.
#[derive(Clone)]
pub(crate) struct GuardLayer(pub(crate) Health);

impl<S> tower::Layer<S> for GuardLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { health: self.0.clone(), inner }
    }
}

/// A service behind the guard.
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    health: Health,
    inner: S,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Error: 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let needs = NEED_THE_STORE.iter().any(|service| path.starts_with(service));
        let (answer, health) = (self.inner.call(request), self.health.clone());
        Box::pin(async move {
            if !needs {
                return answer.await;
            }
            let answer = while_the_store_answers(&health, answer).await;
            answer.unwrap_or_else(|fault| Ok(Status::unavailable(fault).into_http()))
        })
    }
}
