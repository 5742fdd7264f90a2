//! What is found while a run goes on: one line in its terminal for each alert about its job.
//!
//! Guarantees: a line an alert, however often it is seen; only the first of several launchers says it; nothing is asked of
//! who may not be asked, and nothing goes wrong for the run. Refuses to end.

use std::collections::HashSet;
use std::time::Duration;

use memctl_proto::v1;
use memctl_proto::v1::alerts_client::AlertsClient;
use tonic::Code;

use super::say;
use crate::args::Global;
use crate::connect::{self, WhenMissing};
use crate::exit::Outcome;
use crate::seams;

/// Between two looks: a person who trains need not know it sooner.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Says it until it is dropped.
pub async fn alerts<T>(global: &Global, job: &str) -> T {
    let began_ns = seams::now_ns();
    let mut said: HashSet<String> = HashSet::new();
    // What a look meets on its way is told at the end of the run, where it is still so.
    let quiet = Global { quiet: true, ..global.clone() };
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Ok(answer) = tokio::time::timeout(ANSWER_MAX, firing(&quiet)).await else { continue };
        let firing = match answer {
            Answer::Firing(alerts) => alerts,
            Answer::None => continue,
            // Asked again and again, it would fill the audit log.
            Answer::NotAllowed => std::future::pending().await,
        };
        for alert in firing {
            let is_own = alert.job == job && alert.fired_ns.is_some_and(|fired| fired >= began_ns);
            if is_own && said.insert(alert.id) {
                say(global, &format!("{job}: {}", alert.title));
            }
        }
    }
}

/// What came of a look.
enum Answer {
    Firing(Vec<v1::Alert>),
    /// Nobody answers now.
    None,
    /// Whoever asks writes and does not read.
    NotAllowed,
}

async fn firing(global: &Global) -> Answer {
    let connection = match connect::connect(global, WhenMissing::Refuse).await {
        Ok(connection) => connection,
        Err(failure) if failure.outcome == Outcome::NotAllowed => return Answer::NotAllowed,
        Err(_) => return Answer::None,
    };
    let answer = AlertsClient::new(connection.asking()).list_alerts(v1::ListAlertsRequest { firing_only: true }).await;
    connection.close().await;
    match answer {
        Ok(answer) => Answer::Firing(answer.into_inner().alerts),
        Err(status) if matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) => Answer::NotAllowed,
        Err(_) => Answer::None,
    }
}
