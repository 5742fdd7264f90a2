//! `/api/v1/live`: sends the jobs with new data as server-sent events.
//!
//! Guarantees: a listener is notified only of jobs that its caller may see, and of each job at most once in [`REST`].
//! It is not notified of earlier changes, so it queries after it connects. At most [`LISTENERS_MAX`] clients listen at
//! a time, and at most half of them of one tenant. A client without a permit is refused and polls instead. A listener
//! ends with its connection, with the daemon, after [`LIVE_MAX`], and when its caller loses access.
//!
//! The data itself is not sent. Clients request it through the same gate.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::params::Params;
use super::trouble::Trouble;
use super::{Authentication, Room, plain};
use crate::access::Caller;
use crate::notify::{ChangedJob, Notifier};
use crate::permits::Permit;

/// The most browsers that listen at a time; this is a quarter of the port's connections.
pub const LISTENERS_MAX: usize = 64;
/// The shortest time between two events.
const REST: Duration = Duration::from_secs(1);
/// The interval of keep-alive writes, which detect a broken connection.
const BEAT: Duration = Duration::from_secs(20);
/// The longest life of a listener. Browsers reconnect by themselves, and a connection does not live much longer.
const LIVE_MAX: Duration = Duration::from_secs(240);

type Out = mpsc::Sender<Result<Bytes, Infallible>>;

/// The jobs with new data.
#[derive(Serialize)]
struct News<'a> {
    jobs: Vec<Job<'a>>,
}

#[derive(Serialize)]
struct Job<'a> {
    job: &'a str,
    run: u32,
    attempt: u32,
    tenant: &'a str,
}

/// Returns the stream of events.
pub async fn live(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Response, Trouble> {
    Params::of(&uri)?.takes(&[])?;
    let Some(permit) = room.listeners.take(caller.tenant_name()).await else {
        let most = room.listeners.of_a_tenant();
        let why = format!("too many listening browsers (the limit for one tenant is {most}); poll instead\n");
        return Ok(plain(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let (out, events) = mpsc::channel(1);
    tokio::spawn(listen(room.sources.notifier.clone(), room.auth.clone(), caller, out, permit));
    let head = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((head, Body::from_stream(ReceiverStream::new(events))).into_response())
}

async fn listen(notifier: Notifier, auth: Authentication, caller: Caller, out: Out, permit: Permit) {
    let unwanted = async {
        match &auth {
            Authentication::Gate(gate) => drop(gate.ended(&caller).await),
            Authentication::Key(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        // A client that does not read is not waited for either.
        () = tell(&notifier, &caller, &out) => {}
        () = unwanted => {}
        () = out.closed() => {}
        () = tokio::time::sleep(LIVE_MAX) => {}
    }
    drop(permit);
}

async fn tell(notifier: &Notifier, caller: &Caller, out: &Out) {
    let mut followed = notifier.follow();
    let mut seen = *followed.borrow_and_update();
    let mut text = String::from("retry: 2000\n\n");
    loop {
        if out.send(Ok(Bytes::from(text))).await.is_err() {
            return;
        }
        text = loop {
            match tokio::time::timeout(BEAT, followed.changed()).await {
                Err(_) => break ":\n\n".to_owned(),
                Ok(Err(_)) => return,
                Ok(Ok(())) => {}
            }
            // Notifications that arrive together are sent together. Data that arrives during this pause is included.
            tokio::time::sleep(REST).await;
            let latest = *followed.borrow_and_update();
            let event = event(notifier.since(seen), caller);
            seen = latest;
            if let Some(event) = event {
                break event;
            }
        };
    }
}

/// The event for a caller; `None` if there is nothing new that it may see.
fn event(news: Option<Vec<ChangedJob>>, caller: &Caller) -> Option<String> {
    let Some(news) = news else { return Some("event: all\ndata: {}\n\n".to_owned()) };
    let own = news.iter().filter(|changed| caller.scope.admits(&changed.tenant));
    let jobs: Vec<Job<'_>> = own
        .map(|changed| Job {
            job: &changed.job,
            run: changed.run,
            attempt: changed.attempt,
            tenant: changed.tenant.name(),
        })
        .collect();
    if jobs.is_empty() {
        return None;
    }
    // JSON on one line has no line break, which would end the event.
    serde_json::to_string(&News { jobs }).ok().map(|data| format!("event: jobs\ndata: {data}\n\n"))
}
