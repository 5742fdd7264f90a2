//! Alerts as the wire and the store have them, and as records of the store.
//!
//! Guarantees: what goes out comes back the same; an alert of a newer memctl with a phase or severity that is not known here
//! is left alone, as is one that does not decode.

use memctl_model::Severity;
use memctl_proto::v1;
use prost::Message as _;

use super::alert::{Alert, Delivery, Phase};
use crate::store::{AlertKind, AlertPut, AlertRecord};

/// An alert with the version of its record; 0 for one that is not stored yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The alert.
    pub alert: Alert,
    /// Its record's version.
    pub version: u64,
}

/// Reads a record.
#[must_use]
pub fn read(record: &AlertRecord) -> Option<Stored> {
    let alert = v1::Alert::decode(record.body.clone()).ok().and_then(from_wire);
    if alert.is_none() {
        tracing::warn!(
            id = format!("{:016x}", record.id),
            job = record.job,
            "an alert cannot be read by this memctl and is left unchanged"
        );
    }
    alert.map(|alert| Stored { alert: Alert { id: record.id, ..alert }, version: record.version })
}

/// The change of a record to this alert.
#[must_use]
pub fn put(alert: &Alert, expected_version: u64, due_ns: u64) -> AlertPut {
    let body = to_wire(alert).encode_to_vec().into();
    let record = AlertRecord { kind: AlertKind::Alert, id: alert.id, version: 0, job: alert.job.clone(), due_ns, body };
    AlertPut { record, expected_version, remove: false }
}

fn pairs(labels: &[(String, String)]) -> Vec<v1::Label> {
    labels.iter().map(|(key, value)| v1::Label { key: key.clone(), value: value.clone() }).collect()
}

fn from_pairs(labels: Vec<v1::Label>) -> Vec<(String, String)> {
    labels.into_iter().map(|v1::Label { key, value }| (key, value)).collect()
}

const fn phase(phase: Phase) -> v1::AlertPhase {
    match phase {
        Phase::Pending => v1::AlertPhase::Pending,
        Phase::Firing => v1::AlertPhase::Firing,
        Phase::Resolved => v1::AlertPhase::Resolved,
    }
}

const fn from_phase(phase: v1::AlertPhase) -> Option<Phase> {
    match phase {
        v1::AlertPhase::Pending => Some(Phase::Pending),
        v1::AlertPhase::Firing => Some(Phase::Firing),
        v1::AlertPhase::Resolved => Some(Phase::Resolved),
        v1::AlertPhase::Unspecified => None,
    }
}

const fn from_severity(severity: v1::Severity) -> Option<Severity> {
    match severity {
        v1::Severity::Info => Some(Severity::Info),
        v1::Severity::Warning => Some(Severity::Warning),
        v1::Severity::Critical => Some(Severity::Critical),
        v1::Severity::Unspecified => None,
    }
}

/// An alert for the wire.
#[must_use]
pub fn to_wire(alert: &Alert) -> v1::Alert {
    let alert = alert.clone();
    v1::Alert {
        id: alert.id_text(),
        rule: alert.rule,
        job: alert.job,
        attempt: alert.attempt,
        run_started_ns: alert.run_started_ns,
        phase: phase(alert.phase) as i32,
        finding: format!("{:016x}", alert.finding),
        kind: alert.kind,
        severity: v1::Severity::from(alert.severity) as i32,
        confidence: alert.confidence,
        ranks: alert.ranks,
        rank_count: alert.rank_count,
        all_ranks: alert.all_ranks,
        title: alert.title,
        explanation: alert.explanation,
        advice: alert.advice,
        labels: pairs(&alert.labels),
        annotations: pairs(&alert.annotations),
        receivers: alert.receivers,
        since_ns: alert.since_ns,
        fired_ns: alert.fired_ns,
        resolved_ns: alert.resolved_ns,
        seen_ns: alert.seen_ns,
        missing_ns: alert.missing_ns,
        fired_epochs: alert.fired_epochs,
        run_ended: alert.run_ended,
        deliveries: alert.deliveries.into_iter().map(delivery).collect(),
        job_labels: pairs(&alert.job_labels),
        silenced_by: String::new(),
    }
}

fn delivery(delivery: Delivery) -> v1::AlertDelivery {
    let Delivery {
        receiver,
        told,
        told_fired_ns,
        told_severity,
        told_ns,
        claimed_until_ns,
        retry_ns,
        given_up,
        last_error,
    } = delivery;
    v1::AlertDelivery {
        receiver,
        told: told.map_or(v1::AlertPhase::Unspecified, phase) as i32,
        told_fired_ns,
        told_severity: told_severity.map_or(v1::Severity::Unspecified, Into::into) as i32,
        told_ns,
        claimed_until_ns,
        retry_ns,
        given_up,
        last_error,
    }
}

/// An alert from the wire, if this memctl knows its phase and severity.
#[must_use]
pub fn from_wire(wire: v1::Alert) -> Option<Alert> {
    let (phase, severity) = (from_phase(wire.phase())?, from_severity(wire.severity())?);
    Some(Alert {
        id: u64::from_str_radix(&wire.id, 16).ok()?,
        rule: wire.rule,
        job: wire.job,
        attempt: wire.attempt,
        run_started_ns: wire.run_started_ns,
        phase,
        finding: u64::from_str_radix(&wire.finding, 16).ok()?,
        kind: wire.kind,
        severity,
        confidence: wire.confidence,
        ranks: wire.ranks,
        rank_count: wire.rank_count,
        all_ranks: wire.all_ranks,
        title: wire.title,
        explanation: wire.explanation,
        advice: wire.advice,
        labels: from_pairs(wire.labels),
        annotations: from_pairs(wire.annotations),
        receivers: wire.receivers,
        job_labels: from_pairs(wire.job_labels),
        since_ns: wire.since_ns,
        fired_ns: wire.fired_ns,
        resolved_ns: wire.resolved_ns,
        seen_ns: wire.seen_ns,
        missing_ns: wire.missing_ns,
        fired_epochs: wire.fired_epochs,
        run_ended: wire.run_ended,
        deliveries: wire.deliveries.into_iter().map(from_delivery).collect(),
    })
}

fn from_delivery(wire: v1::AlertDelivery) -> Delivery {
    Delivery {
        told: from_phase(wire.told()),
        told_severity: from_severity(wire.told_severity()),
        receiver: wire.receiver,
        told_fired_ns: wire.told_fired_ns,
        told_ns: wire.told_ns,
        claimed_until_ns: wire.claimed_until_ns,
        retry_ns: wire.retry_ns,
        given_up: wire.given_up,
        last_error: wire.last_error,
    }
}
