//! Alerts while a run goes on: one line in its terminal for each finding about its job.
//!
//! Guarantees: one line per finding, regardless of how often and by how many rules it is seen, and one more if it
//! becomes worse; only the first of several launchers prints it; requests stop once the principal lacks permission, and
//! no error disturbs the run. Never returns.

use std::collections::HashMap;
use std::time::Duration;

use memctl_answers::access::{Caller, Role};
use memctl_answers::alerts::{Alert, Alerts};
use memctl_answers::format::id::Id;
use memctl_answers::wire::from_wire;
use memctl_model::Severity;
use memctl_proto::v1;
use memctl_proto::v1::alerts_client::AlertsClient;
use tonic::Code;

use super::say;
use crate::args::Global;
use crate::client::caller;
use crate::connect::{self, WhenMissing};
use crate::exit::Outcome;
use crate::hosting;

/// Interval between requests: users need no faster notice.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Timeout of a request.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Prints alerts until dropped.
pub async fn alerts<T>(global: &Global, job: &str) -> T {
    let began_ns = hosting::now_ns();
    let mut said: HashMap<Id, Severity> = HashMap::new();
    // Warnings of these requests are suppressed; the end of the run reports them if they still hold.
    let quiet = Global { quiet: true, ..global.clone() };
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Ok(answer) = tokio::time::timeout(ANSWER_MAX, firing(&quiet)).await else { continue };
        let firing = match answer {
            Answer::Firing(alerts) => alerts,
            Answer::None => continue,
            // Repeated refused requests would fill the audit log.
            Answer::NotAllowed => std::future::pending().await,
        };
        for alert in firing {
            let is_own = alert.job == job && alert.fired_at.is_some_and(|fired| fired.0 >= began_ns);
            if is_own && is_news(&mut said, &alert) {
                say(global, &format!("{job}: {}", alert.finding.title));
            }
        }
    }
}

/// Whether a finding was not printed yet, or has become worse since. Several rules may select one.
fn is_news(said: &mut HashMap<Id, Severity>, alert: &Alert) -> bool {
    let now = alert.finding.severity;
    said.insert(alert.finding.id, now).is_none_or(|before| before < now)
}

/// The outcome of a request.
enum Answer {
    Firing(Vec<Alert>),
    /// The daemon does not respond now.
    None,
    /// The principal may write but not read.
    NotAllowed,
}

async fn firing(global: &Global) -> Answer {
    let connection = match connect::connect(global, WhenMissing::Refuse).await {
        Ok(connection) => connection,
        Err(failure) if failure.outcome == Outcome::NotAllowed => return Answer::NotAllowed,
        Err(_) => return Answer::None,
    };
    // The request of a caller that may not read would be refused, and the daemon's log would have a warning.
    if let Ok(Some(Caller { role: Role::Agent, .. })) = caller(&connection).await {
        connection.close().await;
        return Answer::NotAllowed;
    }
    let answer = AlertsClient::new(connection.asking()).list_alerts(v1::ListAlertsRequest { firing_only: true }).await;
    connection.close().await;
    match answer {
        // A response of another version cannot be parsed.
        Ok(answer) => from_wire(answer.get_ref()).map_or(Answer::None, |alerts: Alerts| Answer::Firing(alerts.alerts)),
        Err(status) if matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) => Answer::NotAllowed,
        Err(_) => Answer::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::alerts::tests::firing;

    #[test]
    fn a_finding_is_printed_once_and_again_where_it_becomes_worse() {
        let mut said = HashMap::new();
        let mut news = |id, severity| {
            let mut alert = Alert { id: Id(id), ..firing() };
            alert.finding.severity = severity;
            is_news(&mut said, &alert)
        };
        assert!(news(2, Severity::Warning));
        assert!(!news(2, Severity::Warning) && !news(3, Severity::Warning), "another rule selects it");
        assert!(news(3, Severity::Critical));
        assert!(!news(2, Severity::Critical));
    }
}
