//! The state machine of alerts: when an alert is pending, firing or resolved, and when each receiver is notified. Time
//! is a parameter.
//!
//! Guarantees: pure. An older run never changes the result of a later one. Judging the same run twice changes nothing
//! more. If a run ended with the finding, its alert fires until a later run is without the finding or `resolve_after`
//! passes. A resolved alert keeps the run in which its finding was last seen.
//!
//! A run does not prove that a finding is gone if it has just begun, if it has too little data to judge findings of this
//! kind, or if it began before the finding was last seen.

use memctl_analysis::proof_limits;
use memctl_model::{FindingKind, JobState};

use super::alert::{Alert, Delivery, JobFacts, Phase, Sighting};
use super::rules::{Receiver, ReceiverKind, Rules};

/// How long delivery of a resolved alert is retried if its receiver cannot be reached.
pub const RESOLVED_TRIED_NS: u64 = 3_600_000_000_000;
/// A running run is judged many times within this time. If it has not seen an alert's finding for longer, the alert no
/// longer belongs to it.
const HELD_NS: u64 = 300_000_000_000;
/// After a notification was given up, the next one is not tried before this time has passed.
pub const RETRY_NS: u64 = 300_000_000_000;

/// How long to wait after a notification was given up. A firing alert ends in Alertmanager unless it is sent again, so it is
/// sent again as soon as the next `resend` is due.
#[must_use]
pub fn retry_ns(receiver: &Receiver) -> u64 {
    match receiver.kind {
        ReceiverKind::Alertmanager { resend_ns, .. } => resend_ns.min(RETRY_NS),
        ReceiverKind::Webhook(_) | ReceiverKind::Command(_) => RETRY_NS,
    }
}

/// The run number of facts about all runs of a name, which were all deleted.
pub const EVERY_RUN: u32 = u32::MAX;

/// Whether an alert belongs to another run that still sees its finding. Several runs of one name may run at once.
fn is_of_another(alert: &Alert, job: &JobFacts, now_ns: u64) -> bool {
    let is_open = alert.phase != Phase::Resolved && !alert.run_ended;
    is_open && job.run != alert.run && job.run != EVERY_RUN && now_ns.saturating_sub(alert.seen_ns) < HELD_NS
}

/// Creates, keeps or fires the alert of a finding that was seen.
///
/// Returns `None` if there is nothing to keep, because the sighting is older than `resolve_after`.
#[must_use]
pub fn seen(known: Option<Alert>, sighting: &Sighting, job: &JobFacts, rules: &Rules, now_ns: u64) -> Option<Alert> {
    let is_older = |alert: &Alert| job.run_start() < alert.resolved_by.unwrap_or(alert.own_run());
    if known.as_ref().is_some_and(|alert| is_older(alert) || is_of_another(alert, job, now_ns)) {
        return known;
    }
    let ended = job.state != Some(JobState::Running);
    let seen_ns = if ended { job.ended_ns.unwrap_or(now_ns).min(now_ns) } else { now_ns };
    if now_ns.saturating_sub(seen_ns) >= rules.resolve_after_ns {
        return known;
    }
    let mut alert = sighting.alert.clone();
    alert.seen_ns = seen_ns;
    alert.run_ended = ended;
    if let Some(known) = known {
        // The end of a run is known exactly only after the run has ended.
        if !ended || known.own_run() != alert.own_run() {
            alert.seen_ns = seen_ns.max(known.seen_ns);
        }
        alert.deliveries = known.deliveries;
        alert.fired_ns = known.fired_ns;
        if known.phase != Phase::Resolved {
            alert.phase = known.phase;
            alert.since_ns = known.since_ns;
            alert.fired_epochs = known.fired_epochs;
        }
    }
    // The finding of a run that has ended will not disappear, so its alert fires without waiting.
    if alert.phase == Phase::Pending && (ended || now_ns.saturating_sub(alert.since_ns) >= sighting.for_ns) {
        fire(&mut alert, now_ns);
    }
    Some(alert)
}

fn fire(alert: &mut Alert, now_ns: u64) {
    alert.phase = Phase::Firing;
    // The time must be later than that of the previous firing, because it identifies the firing.
    alert.fired_ns = Some(alert.fired_ns.map_or(now_ns, |before| now_ns.max(before.saturating_add(1))));
    alert.resolved_ns = None;
    alert.fired_epochs = alert.seen_epochs;
}

/// Whether a run that goes on would show the finding of an alert from an earlier run, if the finding were still there:
/// it is past the epoch in which the alert fired, and has enough data to judge findings of this kind.
fn is_far_enough(alert: &Alert, job: &JobFacts) -> bool {
    let is_further = job.epochs.zip(alert.fired_epochs).is_some_and(|(done, fired)| done > fired);
    let kind = FindingKind::of_name(&alert.finding.kind);
    is_further && !kind.is_some_and(|kind| job.not_judged.contains(&kind))
}

/// Whether a run without an alert's finding would show it. A run with few epochs does not show what each epoch leaks, and
/// a run whose memory grows may have the same leak.
fn would_show(alert: &Alert, job: &JobFacts) -> bool {
    let Some(kind) = FindingKind::of_name(&alert.finding.kind) else { return true };
    let has_few_epochs = || job.epochs.is_none_or(|epochs| (epochs as usize) < proof_limits::LEAK_ENDS_MIN);
    let is_hidden = kind.fills() && (job.grows || (alert.by_epoch && has_few_epochs()));
    !is_hidden && !job.not_judged.contains(&kind)
}

fn resolve(mut alert: Alert, now_ns: u64) -> Alert {
    alert.phase = Phase::Resolved;
    alert.resolved_ns = Some(now_ns.max(alert.fired_ns.unwrap_or(0)));
    alert.missing_ns = None;
    alert
}

/// The alert of a job that was judged without the finding; `None` if it must be removed.
#[must_use]
pub fn missed(alert: Alert, job: &JobFacts, rules: &Rules, now_ns: u64) -> Option<Alert> {
    let (judged, known) = ((job.run, job.started_ns, job.attempt), (alert.run, alert.run_started_ns, alert.attempt));
    if judged < known || is_of_another(&alert, job, now_ns) {
        return Some(alert);
    }
    let later_run = job.run_start() > alert.own_run();
    match (alert.phase, job.state) {
        (Phase::Pending, _) => None,
        (Phase::Resolved, _) => Some(alert),
        (Phase::Firing, None) => Some(resolve(alert, now_ns)),
        (Phase::Firing, state) if later_run => {
            let is_enough = state == Some(JobState::Finished) || is_far_enough(&alert, job);
            // A run that ran at the same time may have run the same code, so it proves nothing.
            let is_proof = job.started_ns >= alert.seen_ns && is_enough && would_show(&alert, job);
            let resolved_by = Some(job.run_start());
            Some(if is_proof { resolve(Alert { resolved_by, ..alert }, now_ns) } else { alert })
        }
        // The run had ended and is running again. It is another run with the same number, and it has proved nothing
        // yet.
        (Phase::Firing, Some(JobState::Running)) if alert.run_ended => Some(alert),
        (Phase::Firing, Some(JobState::Running)) => {
            let missing_ns = alert.missing_ns.unwrap_or(now_ns);
            tick(Alert { missing_ns: Some(missing_ns), ..alert }, rules, now_ns)
        }
        (Phase::Firing, _) => Some(resolve(alert, now_ns)),
    }
}

/// Applies the passage of time to an alert; `None` if it must be removed.
#[must_use]
pub fn tick(mut alert: Alert, rules: &Rules, now_ns: u64) -> Option<Alert> {
    let unseen = now_ns.saturating_sub(alert.seen_ns) >= rules.resolve_after_ns;
    match (alert.phase, rules.rule(&alert.rule)) {
        (Phase::Pending, None) => None,
        (Phase::Pending, Some(_)) if unseen => None,
        (Phase::Pending, Some(rule)) => {
            if now_ns.saturating_sub(alert.since_ns) >= rule.for_ns {
                fire(&mut alert, now_ns);
            }
            Some(alert)
        }
        (Phase::Firing, None) => Some(resolve(alert, now_ns)),
        (Phase::Firing, Some(rule)) => {
            // A receiver that was added later gets the alerts that already fire.
            let is_new = |name: &&String| !alert.receivers.contains(*name);
            let new: Vec<String> = rule.receivers.iter().filter(is_new).cloned().collect();
            alert.receivers.extend(new);
            let gone = alert.missing_ns.is_some_and(|since| now_ns.saturating_sub(since) >= rules.keep_firing_ns);
            Some(if gone || unseen { resolve(alert, now_ns) } else { alert })
        }
        (Phase::Resolved, _) => {
            let forgotten_ns =
                alert.resolved_ns.unwrap_or(0).saturating_add(rules.resolve_after_ns.max(RESOLVED_TRIED_NS));
            (now_ns < forgotten_ns).then_some(alert)
        }
    }
}

/// Whether to notify a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// It is up to date.
    Nothing,
    /// It must be notified now.
    Now,
    /// It must be notified, but not before this time.
    At(u64),
}

/// Whether to notify a receiver of an alert, and when. `silenced_until_ns` is the end of the silence that covers it.
#[must_use]
pub fn wants(
    alert: &Alert,
    delivery: &Delivery,
    receiver: &Receiver,
    rules: &Rules,
    silenced_until_ns: Option<u64>,
    now_ns: u64,
) -> Want {
    let mut next_ns = match alert.phase {
        Phase::Pending => return Want::Nothing,
        Phase::Firing => {
            let known = delivery.notified == Some(Phase::Firing) && Some(delivery.notified_fired_ns) == alert.fired_ns;
            let worse = delivery.notified_severity.is_none_or(|sent| sent < alert.finding.severity);
            let repeat_ns = receiver.repeat_ns(rules.rule(&alert.rule).map_or(u64::MAX, |rule| rule.repeat_ns));
            let next_ns = if known && !worse { delivery.notified_ns.saturating_add(repeat_ns) } else { 0 };
            next_ns.max(silenced_until_ns.unwrap_or(0))
        }
        // A receiver that was not notified of the firing does not need the end either. A silence does not delay the
        // end.
        Phase::Resolved if delivery.notified == Some(Phase::Firing) => {
            let given_up_ns = alert.resolved_ns.unwrap_or(0).saturating_add(RESOLVED_TRIED_NS);
            if now_ns >= given_up_ns {
                return Want::Nothing;
            }
            0
        }
        Phase::Resolved => return Want::Nothing,
    };
    for not_before_ns in [delivery.retry_ns, delivery.claimed_until_ns].into_iter().flatten() {
        next_ns = next_ns.max(not_before_ns);
    }
    if next_ns <= now_ns { Want::Now } else { Want::At(next_ns) }
}

/// When an alert must be looked at next, if its finding is not seen before that.
#[must_use]
pub fn due_ns(alert: &Alert, rules: &Rules, silenced_until_ns: Option<u64>, now_ns: u64) -> u64 {
    let unseen_ns = alert.seen_ns.saturating_add(rules.resolve_after_ns);
    let own_ns = match (alert.phase, rules.rule(&alert.rule)) {
        (Phase::Pending, Some(rule)) => alert.since_ns.saturating_add(rule.for_ns).min(unseen_ns),
        (Phase::Firing, Some(_)) => {
            alert.missing_ns.map_or(u64::MAX, |since| since.saturating_add(rules.keep_firing_ns)).min(unseen_ns)
        }
        (Phase::Pending | Phase::Firing, None) => now_ns,
        (Phase::Resolved, _) => {
            alert.resolved_ns.unwrap_or(0).saturating_add(rules.resolve_after_ns.max(RESOLVED_TRIED_NS))
        }
    };
    let known = Delivery::default();
    let notified_ns = alert.receivers.iter().filter_map(|name| rules.receiver(name)).map(|receiver| {
        let delivery = alert.deliveries.iter().find(|delivery| delivery.receiver == receiver.name).unwrap_or(&known);
        match wants(alert, delivery, receiver, rules, silenced_until_ns, now_ns) {
            Want::Nothing => u64::MAX,
            Want::Now => now_ns,
            Want::At(at_ns) => at_ns,
        }
    });
    notified_ns.fold(own_ns, u64::min)
}

#[cfg(test)]
mod tests;
