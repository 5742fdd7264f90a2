//! Delivers notifications: one worker per receiver, behind a bounded queue.
//!
//! Guarantees: no caller waits for a receiver. If the queue is full, the caller gets the message back at once. Queued
//! messages are claimed in the store. A message is retried with growing, random pauses while its claim lasts, and never
//! after that. Its outcome is always reported. A slow receiver does not delay another, and the messages of one tenant
//! leave room for those of others.

mod command;
mod http;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memctl_model::{Backoff, Severity};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::alert::{Alert, Phase};
use super::notice::{self, Notice};
use super::rules::{Receiver, ReceiverKind, Rules};
use crate::clock::now_ns;

/// The most alerts in one message to Alertmanager.
const ALERTS_MAX: usize = 64;
/// The most messages that wait for Alertmanager.
const QUEUE: usize = 16;
/// The most messages that wait for another receiver. Each has only one alert.
const QUEUE_OF_SINGLE: usize = 64;
/// A firing alert ends in Alertmanager after this many times `resend`, unless it is sent again.
const ENDS_AFTER_RESENDS: u64 = 4;

/// How often and how fast a message is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Attempts in all.
    pub attempts: u32,
    /// Pauses between them.
    pub pauses: Backoff,
}

impl Default for Pace {
    fn default() -> Self {
        Self { attempts: 5, pauses: Backoff { first: Duration::from_secs(1), most: Duration::from_secs(15) } }
    }
}

impl Pace {
    /// How long all attempts may take, given the timeout of each.
    #[must_use]
    pub fn longest(&self, timeout: Duration) -> Duration {
        (timeout + self.pauses.most) * self.attempts
    }

    fn pause(&self, attempt: u32) -> Duration {
        // If no randomness is available, the pause is the longest. It is never less than half of that, because a
        // receiver that restarts needs a few seconds.
        let draw = f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        self.pauses.wait(attempt, 0.5 + draw / 2.0)
    }
}

/// Why a message was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The reason as text.
    pub reason: String,
    /// Whether another attempt may succeed.
    pub passing: bool,
}

impl Failed {
    pub(super) fn passing(reason: String) -> Self {
        Self { reason, passing: true }
    }
}

/// A message for one receiver.
#[derive(Debug)]
pub struct Message {
    /// The tenant that owns the alerts.
    pub tenant: String,
    /// Its alerts, [`Notifier::alerts_max`] at most.
    pub notices: Vec<Notice>,
    /// The end of the claim; nothing is sent after it.
    pub claimed_until_ns: u64,
}

/// One alert of a message, as it was sent to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The alert.
    pub id: u64,
    /// The phase that was sent.
    pub phase: Phase,
    /// The firing that it was about.
    pub fired_ns: u64,
    /// The severity that was sent.
    pub severity: Severity,
}

impl From<&Alert> for Notification {
    fn from(alert: &Alert) -> Self {
        Self {
            id: alert.id,
            phase: alert.phase,
            fired_ns: alert.fired_ns.unwrap_or(0),
            severity: alert.finding.severity,
        }
    }
}

/// The outcome of a message.
#[derive(Debug)]
pub struct Outcome {
    /// The receiver's name.
    pub receiver: String,
    /// The tenant that owns the alerts.
    pub tenant: String,
    /// Its alerts.
    pub sent: Vec<Notification>,
    /// Whether it was delivered, or why not.
    pub result: Result<(), Failed>,
}

enum Target {
    Webhook(http::Peer),
    Alertmanager(http::Peer, u64),
    Command(Vec<String>),
    /// The receiver cannot be used, for this reason.
    Unusable(String),
}

/// One receiver, ready to be notified.
pub struct Notifier {
    name: String,
    kind: &'static str,
    timeout: Duration,
    external_url: String,
    target: Target,
}

impl Notifier {
    /// A receiver of these rules. If it cannot be set up, every attempt fails with the reason.
    #[must_use]
    pub fn new(receiver: &Receiver, rules: &Rules) -> Self {
        let target = match &receiver.kind {
            ReceiverKind::Webhook(http) => http::Peer::new(http, "").map(Target::Webhook),
            ReceiverKind::Alertmanager { http, resend_ns } => {
                http::Peer::new(http, "/api/v2/alerts").map(|peer| Target::Alertmanager(peer, *resend_ns))
            }
            ReceiverKind::Command(command) => Ok(Target::Command(command.clone())),
        };
        Self {
            name: receiver.name.clone(),
            kind: receiver.kind_name(),
            timeout: Duration::from_nanos(receiver.timeout_ns),
            external_url: rules.external_url.clone(),
            target: target.unwrap_or_else(Target::Unusable),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `webhook`, `alertmanager` or `command`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The most alerts in one message. A webhook's message has one status, which is true for one alert only.
    #[must_use]
    pub fn alerts_max(&self) -> usize {
        match &self.target {
            Target::Alertmanager(..) => ALERTS_MAX,
            Target::Webhook(_) | Target::Command(_) | Target::Unusable(_) => 1,
        }
    }

    /// The most messages that wait for it.
    fn queue(&self) -> usize {
        if self.alerts_max() == 1 { QUEUE_OF_SINGLE } else { QUEUE }
    }

    /// The timeout of one attempt.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Notifies the receiver once of at most [`Self::alerts_max`] alerts and returns its response.
    ///
    /// # Errors
    /// The reason why the receiver did not accept the message.
    pub async fn tell(&self, notices: &[Notice]) -> Result<String, Failed> {
        let Some(first) = notices.first() else { return Ok(String::new()) };
        let webhook = || notice::webhook(first, &self.name, &self.external_url).to_string().into_bytes();
        match &self.target {
            Target::Webhook(peer) => peer.post(webhook(), self.timeout).await,
            Target::Alertmanager(peer, resend_ns) => {
                let lasts_ns = resend_ns.saturating_mul(ENDS_AFTER_RESENDS);
                let body = notice::alertmanager(notices, &self.external_url, lasts_ns, now_ns());
                peer.post(body.to_string().into_bytes(), self.timeout).await
            }
            Target::Command(command) => command::run(command, &webhook(), self.timeout).await.map_err(Failed::passing),
            Target::Unusable(reason) => Err(Failed { reason: reason.clone(), passing: false }),
        }
    }
}

/// A receiver's queue and the task that empties it.
pub struct Worker {
    /// The receiver.
    pub notifier: Arc<Notifier>,
    queue: mpsc::Sender<Message>,
    waiting: Arc<Waiting>,
    task: JoinHandle<()>,
}

/// How many messages of each tenant are in a queue.
struct Waiting {
    /// The queue's length.
    room: usize,
    counts: Mutex<BTreeMap<String, usize>>,
}

impl Waiting {
    fn new(room: usize) -> Self {
        Self { room, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more message, unless that would take the room of other tenants. A tenant may use at most half of the
    /// room that others leave.
    fn enter(&self, tenant: &str) -> bool {
        let mut counts = self.counts();
        let own = counts.get(tenant).copied().unwrap_or(0);
        let fits = own < self.room.saturating_sub(counts.values().sum());
        if fits {
            counts.insert(tenant.to_owned(), own + 1);
        }
        fits
    }

    fn leave(&self, tenant: &str) {
        let mut counts = self.counts();
        if let Some(count) = counts.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(tenant);
            }
        }
    }
}

impl Worker {
    /// Starts a worker. The outcomes of its messages are sent to `outcomes`.
    #[must_use]
    pub fn start(notifier: Arc<Notifier>, pace: Pace, outcomes: mpsc::Sender<Outcome>) -> Self {
        let (queue, messages) = mpsc::channel(notifier.queue());
        let waiting = Arc::new(Waiting::new(notifier.queue()));
        let task = tokio::spawn(work(notifier.clone(), pace, messages, waiting.clone(), outcomes));
        Self { notifier, queue, waiting, task }
    }

    /// Queues a message, unless the queue has no room for this tenant or the worker has ended.
    ///
    /// # Errors
    /// The message is returned.
    pub fn take(&self, message: Message) -> Result<(), Message> {
        if !self.waiting.enter(&message.tenant) {
            return Err(message);
        }
        self.queue.try_send(message).map_err(|error| {
            let (mpsc::error::TrySendError::Full(message) | mpsc::error::TrySendError::Closed(message)) = error;
            self.waiting.leave(&message.tenant);
            message
        })
    }

    /// Ends the worker, even while it is sending.
    pub fn abort(&self) {
        self.task.abort();
    }
}

async fn work(
    notifier: Arc<Notifier>,
    pace: Pace,
    mut messages: mpsc::Receiver<Message>,
    waiting: Arc<Waiting>,
    outcomes: mpsc::Sender<Outcome>,
) {
    while let Some(message) = messages.recv().await {
        waiting.leave(&message.tenant);
        let result = tried(&notifier, pace, &message).await;
        let sent = message.notices.iter().map(|notice| Notification::from(&notice.alert)).collect();
        let outcome = Outcome { receiver: notifier.name.clone(), tenant: message.tenant, sent, result };
        if outcomes.send(outcome).await.is_err() {
            return;
        }
    }
}

async fn tried(notifier: &Notifier, pace: Pace, message: &Message) -> Result<(), Failed> {
    let mut last = Failed::passing("it waited too long in the queue".into());
    for attempt in 0..pace.attempts.max(1) {
        let ends_ns = now_ns().saturating_add(notifier.timeout.as_nanos() as u64);
        if ends_ns > message.claimed_until_ns {
            return Err(last);
        }
        match notifier.tell(&message.notices).await {
            Ok(answer) => {
                tracing::debug!(
                    receiver = notifier.name,
                    alerts = message.notices.len(),
                    attempt,
                    answer,
                    "alerts delivered"
                );
                return Ok(());
            }
            Err(failed) => last = failed,
        }
        tracing::debug!(receiver = notifier.name, attempt, reason = last.reason, "alerts not delivered");
        if !last.passing {
            break;
        }
        if attempt + 1 < pace.attempts {
            tokio::time::sleep(pace.pause(attempt)).await;
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_room_for_a_tenant_that_has_nothing_in_it() {
        let waiting = Waiting::new(QUEUE);
        assert_eq!((0..QUEUE).filter(|_| waiting.enter("many")).count(), QUEUE / 2);
        assert_eq!((0..QUEUE).filter(|_| waiting.enter("other")).count(), QUEUE / 4);
        assert!(waiting.enter("third") && waiting.enter("fourth") && !waiting.enter("many"));
        for _ in 0..QUEUE / 2 {
            waiting.leave("many");
        }
        assert!(waiting.enter("many"));
        waiting.leave("nobody");
    }
}
