//! Conversion of alerts and silences between memory, wire format and records of the store.
//!
//! Guarantees: a round trip changes nothing. An alert of a newer memctl with an unknown phase or severity is left alone,
//! as is one that does not decode.

use memctl_model::Severity;
use memctl_proto::v1;
use prost::Message as _;

use super::alert::{Alert, Delivery, Phase};
use super::silence::Silence;
use crate::store::{AlertKind, AlertPut, AlertRecord};

/// An alert with the version of its record; 0 if it is not stored yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The alert.
    pub alert: Alert,
    /// Its record's version.
    pub version: u64,
}

/// Reads the record of an alert.
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
    let tenant = record.tenant.clone();
    alert.map(|alert| Stored { alert: Alert { id: record.id, tenant, ..alert }, version: record.version })
}

/// The change that stores this alert.
#[must_use]
pub fn put(alert: &Alert, expected_version: u64, due_ns: u64) -> AlertPut {
    let body = to_wire(alert).encode_to_vec().into();
    let (tenant, job) = (alert.tenant.clone(), alert.job.clone());
    let record = AlertRecord { kind: AlertKind::Alert, id: alert.id, version: 0, tenant, job, due_ns, body };
    AlertPut { record, expected_version, remove: false }
}

fn pairs(labels: &[(String, String)]) -> Vec<v1::Label> {
    labels.iter().map(|(key, value)| v1::Label { key: key.clone(), value: value.clone() }).collect()
}

fn from_pairs(labels: Vec<v1::Label>) -> Vec<(String, String)> {
    labels.into_iter().map(|v1::Label { key, value }| (key, value)).collect()
}

const fn wire_phase(phase: Phase) -> v1::AlertPhase {
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
    let id = alert.id_text();
    let Alert {
        id: _,
        tenant,
        rule,
        job,
        run,
        attempt,
        run_started_ns,
        phase,
        finding,
        kind,
        severity,
        confidence,
        ranks,
        rank_count,
        all_ranks,
        title,
        explanation,
        advice,
        labels,
        annotations,
        receivers,
        job_labels,
        since_ns,
        fired_ns,
        resolved_ns,
        seen_ns,
        missing_ns,
        fired_epochs,
        run_ended,
        deliveries,
    } = alert.clone();
    v1::Alert {
        id,
        rule,
        job,
        run,
        attempt,
        run_started_ns,
        phase: wire_phase(phase) as i32,
        finding: format!("{finding:016x}"),
        kind,
        severity: v1::Severity::from(severity) as i32,
        confidence,
        ranks,
        rank_count,
        all_ranks,
        title,
        explanation,
        advice,
        labels: pairs(&labels),
        annotations: pairs(&annotations),
        receivers,
        since_ns,
        fired_ns,
        resolved_ns,
        seen_ns,
        missing_ns,
        fired_epochs,
        run_ended,
        deliveries: deliveries.into_iter().map(delivery).collect(),
        job_labels: pairs(&job_labels),
        silenced_by: String::new(),
        tenant,
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
        told: told.map_or(v1::AlertPhase::Unspecified, wire_phase) as i32,
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
    let v1::Alert {
        id,
        rule,
        job,
        run,
        attempt,
        run_started_ns,
        phase: _,
        finding,
        kind,
        severity: _,
        confidence,
        ranks,
        rank_count,
        all_ranks,
        title,
        explanation,
        advice,
        labels,
        annotations,
        receivers,
        since_ns,
        fired_ns,
        resolved_ns,
        seen_ns,
        missing_ns,
        fired_epochs,
        run_ended,
        deliveries,
        job_labels,
        // Part of a response, never stored.
        silenced_by: _,
        tenant,
    } = wire;
    Some(Alert {
        id: u64::from_str_radix(&id, 16).ok()?,
        tenant,
        rule,
        job,
        // A record from before there were runs: the first.
        run: run.max(1),
        attempt,
        run_started_ns,
        phase,
        finding: u64::from_str_radix(&finding, 16).ok()?,
        kind,
        severity,
        confidence,
        ranks,
        rank_count,
        all_ranks,
        title,
        explanation,
        advice,
        labels: from_pairs(labels),
        annotations: from_pairs(annotations),
        receivers,
        job_labels: from_pairs(job_labels),
        since_ns,
        fired_ns,
        resolved_ns,
        seen_ns,
        missing_ns,
        fired_epochs,
        run_ended,
        deliveries: deliveries.into_iter().map(from_delivery).collect(),
    })
}

fn from_delivery(wire: v1::AlertDelivery) -> Delivery {
    let (told, told_severity) = (from_phase(wire.told()), from_severity(wire.told_severity()));
    let v1::AlertDelivery {
        receiver,
        told: _,
        told_fired_ns,
        told_severity: _,
        told_ns,
        claimed_until_ns,
        retry_ns,
        given_up,
        last_error,
    } = wire;
    Delivery { receiver, told, told_fired_ns, told_severity, told_ns, claimed_until_ns, retry_ns, given_up, last_error }
}

/// The record of a new silence.
#[must_use]
pub fn put_silence(silence: &Silence) -> AlertPut {
    let (id, due_ns) = (silence.id, silence.ends_ns);
    let body = silence_to_wire(silence).encode_to_vec().into();
    let (tenant, job) = (silence.tenant.clone(), String::new());
    let record = AlertRecord { kind: AlertKind::Silence, id, version: 0, tenant, job, due_ns, body };
    AlertPut { record, expected_version: 0, remove: false }
}

/// Reads the record of a silence; `None` if it is not one.
#[must_use]
pub fn read_silence(record: &AlertRecord) -> Option<Silence> {
    let wire = v1::Silence::decode(record.body.clone()).ok()?;
    Some(Silence { id: record.id, tenant: record.tenant.clone(), ..silence_from_wire(wire) })
}

/// A silence for the wire.
#[must_use]
pub fn silence_to_wire(silence: &Silence) -> v1::Silence {
    let Silence { id, tenant, job, kind, rule, ranks, labels, created_ns, ends_ns, author, comment } = silence.clone();
    let (id, labels) = (format!("{id:016x}"), pairs(&labels));
    v1::Silence { id, job, kind, rule, ranks, labels, created_ns, ends_ns, author, comment, tenant }
}

/// A silence from the wire: a stored one, or a requested one, which has no id yet.
#[must_use]
pub fn silence_from_wire(wire: v1::Silence) -> Silence {
    let v1::Silence { id, job, kind, rule, ranks, labels, created_ns, ends_ns, author, comment, tenant } = wire;
    let id = u64::from_str_radix(&id, 16).unwrap_or(0);
    Silence { id, tenant, job, kind, rule, ranks, labels: from_pairs(labels), created_ns, ends_ns, author, comment }
}
