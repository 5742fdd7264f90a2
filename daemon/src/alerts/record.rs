//! Encodes alerts and silences as records of the store: an alert as JSON, a silence as the protobuf message that
//! requests it.
//!
//! Guarantees: a round trip changes nothing. An alert that cannot be decoded is left unchanged, and so is an alert of a
//! newer memctl with an unknown phase or severity. Alerts of memctl 0.1.0, which stored protobuf, can be read. The
//! first byte distinguishes the two: JSON begins with `{`, and that message with the tag of its id.

use memctl_answers::format::id::Id;
use memctl_model::Severity;
use memctl_proto::v1;
use prost::Message as _;

use super::alert::{Alert, AlertedFinding, Delivery, Phase};
use crate::store::{AlertKind, AlertPut, AlertRecord};

/// An alert with the version of its record; 0 if it is not stored yet.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAlert {
    /// The alert.
    pub alert: Alert,
    /// Its record's version.
    pub version: u64,
}

/// Reads the record of an alert.
#[must_use]
pub fn read(record: &AlertRecord) -> Option<StoredAlert> {
    let alert = if record.body.starts_with(b"{") {
        serde_json::from_slice(&record.body).ok()
    } else {
        v1::AlertRecord010::decode(record.body.clone()).ok().and_then(of_0_1_0)
    };
    if alert.is_none() {
        tracing::warn!(
            id = format!("{:016x}", record.id),
            job = record.job,
            "an alert cannot be read by this memctl and is left unchanged"
        );
    }
    let tenant = record.tenant.clone();
    alert.map(|alert| StoredAlert { alert: Alert { id: record.id, tenant, ..alert }, version: record.version })
}

/// The change that stores this alert.
#[must_use]
pub fn put(alert: &Alert, expected_version: u64, due_ns: u64) -> AlertPut {
    // Serialization cannot fail here: there are no maps with odd keys and no writers. An empty record would be left
    // unchanged by readers.
    let body = serde_json::to_vec(alert).unwrap_or_default().into();
    let (tenant, job) = (alert.tenant.clone(), alert.job.clone());
    let record = AlertRecord { kind: AlertKind::Alert, id: alert.id, version: 0, tenant, job, due_ns, body };
    AlertPut { record, expected_version, remove: false }
}

/// The record of a new silence, whose id is `id`.
#[must_use]
pub fn put_silence(id: u64, silence: &v1::Silence) -> AlertPut {
    let (body, due_ns) = (silence.encode_to_vec().into(), silence.ends_ns);
    let (tenant, job) = (silence.tenant.clone(), String::new());
    let record = AlertRecord { kind: AlertKind::Silence, id, version: 0, tenant, job, due_ns, body };
    AlertPut { record, expected_version: 0, remove: false }
}

/// Reads the record of a silence; `None` if it is not one.
#[must_use]
pub fn read_silence(record: &AlertRecord) -> Option<v1::Silence> {
    let wire = v1::Silence::decode(record.body.clone()).ok()?;
    Some(v1::Silence { id: Id(record.id).to_string(), tenant: record.tenant.clone(), ..wire })
}

fn of_0_1_0(old: v1::AlertRecord010) -> Option<Alert> {
    let pairs = |labels: Vec<v1::Label>| labels.into_iter().map(|label| (label.key, label.value)).collect();
    let delivery = |old: v1::AlertDelivery010| Delivery {
        receiver: old.receiver,
        notified: phase(old.notified),
        notified_fired_ns: old.notified_fired_ns,
        notified_severity: severity(old.notified_severity),
        notified_ns: old.notified_ns,
        claimed_until_ns: old.claimed_until_ns,
        retry_ns: old.retry_ns,
        given_up: old.given_up,
        last_error: old.last_error,
    };
    Some(Alert {
        id: u64::from_str_radix(&old.id, 16).ok()?,
        tenant: old.tenant,
        rule: old.rule,
        job: old.job,
        // A record from before runs existed belongs to the first run.
        run: old.run.max(1),
        attempt: old.attempt,
        run_started_ns: old.run_started_ns,
        phase: phase(old.phase)?,
        finding: AlertedFinding {
            id: Id(u64::from_str_radix(&old.finding, 16).ok()?),
            kind: old.kind,
            severity: severity(old.severity)?,
            confidence: old.confidence,
            ranks: old.ranks,
            rank_count: old.rank_count,
            all_ranks: old.all_ranks,
            title: old.title,
            explanation: old.explanation,
            advice: old.advice,
        },
        labels: pairs(old.labels),
        annotations: pairs(old.annotations),
        receivers: old.receivers,
        job_labels: pairs(old.job_labels),
        since_ns: old.since_ns,
        fired_ns: old.fired_ns,
        resolved_ns: old.resolved_ns,
        seen_ns: old.seen_ns,
        missing_ns: old.missing_ns,
        fired_epochs: old.fired_epochs,
        seen_epochs: None,
        run_ended: old.run_ended,
        resolved_by: None,
        by_epoch: false,
        deliveries: old.deliveries.into_iter().map(delivery).collect(),
    })
}

fn phase(number: u32) -> Option<Phase> {
    Phase::ALL.get((number as usize).checked_sub(1)?).copied()
}

fn severity(number: u32) -> Option<Severity> {
    Severity::ALL.get((number as usize).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as memctl 0.1.0 stored it.
    const OLD: &[u8] = include_bytes!("alert_0_1_0.bin");

    fn record(body: &[u8]) -> AlertRecord {
        let (tenant, job, body) = ("team-a".into(), "vit".into(), body.to_vec().into());
        AlertRecord { kind: AlertKind::Alert, id: 0x0123_4567_89ab_cdef, version: 7, tenant, job, due_ns: 0, body }
    }

    #[test]
    fn an_alert_of_a_store_of_0_1_0_is_read_and_stored_as_json() {
        let pairs = |team: &str| vec![("team".to_owned(), team.to_owned()), ("a/b".to_owned(), "x".to_owned())];
        let at = |ns: u64| 1_795_168_320_000_000_000 + ns;
        let expected = Alert {
            id: 0x0123_4567_89ab_cdef,
            tenant: "team-a".into(),
            rule: "MemoryLeak".into(),
            job: "vit".into(),
            run: 3,
            attempt: 2,
            run_started_ns: at(0),
            phase: Phase::Firing,
            finding: AlertedFinding {
                id: Id(0xfedc_ba98_7654_3210),
                kind: "leak".into(),
                severity: Severity::Critical,
                confidence: 0.97,
                ranks: vec![0, 1, 300],
                rank_count: 128,
                all_ranks: true,
                title: "grows 3.0 MiB an epoch".into(),
                explanation: "why é".into(),
                advice: "what".into(),
            },
            labels: pairs("vision"),
            annotations: vec![("runbook".into(), "https://w".into())],
            receivers: vec!["hook".into(), "am".into()],
            job_labels: pairs("job"),
            since_ns: at(1),
            fired_ns: Some(at(2)),
            resolved_ns: None,
            seen_ns: at(3),
            missing_ns: Some(at(4)),
            fired_epochs: Some(4),
            seen_epochs: None,
            run_ended: true,
            resolved_by: None,
            by_epoch: false,
            deliveries: vec![
                Delivery {
                    receiver: "hook".into(),
                    notified: Some(Phase::Firing),
                    notified_fired_ns: at(2),
                    notified_severity: Some(Severity::Warning),
                    notified_ns: at(5),
                    claimed_until_ns: Some(at(6)),
                    retry_ns: None,
                    given_up: 1,
                    last_error: "HTTP 500".into(),
                },
                Delivery { receiver: "am".into(), retry_ns: Some(7), ..Delivery::default() },
            ],
        };
        let stored = read(&record(OLD)).unwrap();
        assert_eq!((&stored.alert, stored.version), (&expected, 7));
        let again = put(&stored.alert, 7, 9).record;
        assert!(again.body.starts_with(b"{"), "{:?}", again.body);
        assert_eq!(read(&again).unwrap().alert, expected);
    }

    #[test]
    fn what_is_of_a_newer_memctl_or_no_alert_is_left_alone() {
        // The phase is field 6, the severity field 9.
        let (phase, severity) = ([0x30, 2], [0x48, 3]);
        for (from, to) in [(phase, [0x30, 9]), (severity, [0x48, 9])] {
            let at = OLD.windows(2).position(|field| field == from).unwrap();
            let newer = [&OLD[..at], &to, &OLD[at + 2..]].concat();
            assert_eq!(read(&record(&newer)), None);
        }
        let text = put(&read(&record(OLD)).unwrap().alert, 0, 0).record.body;
        let text = String::from_utf8(text.to_vec()).unwrap();
        for newer in [text.replace("firing", "odd"), text.replace("critical", "odd"), text[..99].into(), String::new()]
        {
            assert_eq!(read(&record(newer.as_bytes())), None, "{newer}");
        }
        let wider = text.replacen('{', "{\"of_a_newer_memctl\":1,", 1);
        assert!(read(&record(wider.as_bytes())).is_some(), "{wider}");
    }
}
