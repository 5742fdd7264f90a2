//! Tests of the messages, as text.

use super::*;
use crate::alerts::alert::{JobFacts, sightings};
use crate::alerts::rules::Rules;
use memctl_model::{Finding, FindingKind, JobState};

fn notice(title: &str, phase: Phase) -> Notice {
    let rules = "[[rule]]\nname = \"MemoryLeak\"\nkinds = [\"leak\"]\nlabels = { pager = \"yes\" }\nannotations = { runbook = \"https://w\" }";
    let rules = Rules { job_labels: vec!["team/a".into(), "job".into()], ..Rules::parse(rules, "r").unwrap() };
    let finding = Finding {
        title: title.into(),
        explanation: "why".into(),
        ..Finding::new(FindingKind::Leak, Severity::Warning, 1.0, vec![0, 1, 3])
    };
    let job = JobFacts {
        tenant: "default".into(),
        name: "vit".into(),
        run: 1,
        attempt: 2,
        labels: vec![("team/a".into(), "v".into()), ("job".into(), "forged".into()), ("other".into(), "x".into())],
        state: Some(JobState::Running),
        started_ns: 1,
        ended_ns: None,
        epochs: None,
        imported: false,
        not_judged: Vec::new(),
        grows: false,
    };
    let mut alert = sightings(&rules, &job, &[finding], 1_795_168_320_000_000_000).remove(0).alert;
    alert.phase = phase;
    alert.fired_ns = Some(1_795_168_320_000_000_000);
    alert.resolved_ns = (phase == Phase::Resolved).then_some(1_795_168_380_500_000_000);
    Notice { alert, replaces: None }
}

#[test]
fn the_webhook_has_alertmanagers_fields() {
    let shrinks = notice("shrinks \"\u{1b}\n", Phase::Resolved);
    let id = shrinks.alert.id_text();
    let labels = json!({
        "alertname": "MemoryLeak", "tenant": "default", "job": "vit", "kind": "leak", "severity": "warning",
        "fingerprint": id, "pager": "yes", "team_a": "v",
    });
    let annotations = json!({
        "summary": "shrinks \"\u{1b}\n", "description": "why", "ranks": "0-1,3", "run": "vit#1", "runbook": "https://w"
    });
    let expected = json!({
        "version": "4",
        "groupKey": format!(
            "{{}}:{{alertname=\"MemoryLeak\", fingerprint=\"{id}\", job=\"vit\", kind=\"leak\", tenant=\"default\"}}"
        ),
        "truncatedAlerts": 0,
        "status": "resolved",
        "receiver": "hook",
        "groupLabels": {
            "alertname": "MemoryLeak", "fingerprint": id, "job": "vit", "kind": "leak", "tenant": "default",
        },
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "https://w",
        "alerts": [{
            "status": "resolved",
            "labels": labels,
            "annotations": annotations,
            "startsAt": "2026-11-20T09:52:00Z",
            "endsAt": "2026-11-20T09:53:00.5Z",
            "generatorURL": "https://w",
            "fingerprint": id,
        }],
    });
    let sent = webhook(&shrinks, "hook", "https://w");
    assert_eq!(sent, expected);
    assert!(sent.to_string().is_ascii() || sent.to_string().contains("\\u001b"));
    let firing = webhook(&notice("grows", Phase::Firing), "hook", "");
    assert_eq!((&firing["status"], &firing["alerts"][0]["endsAt"]), (&"firing".into(), &"0001-01-01T00:00:00Z".into()));
}

#[test]
fn a_group_is_one_alert_of_one_tenant_at_any_severity() {
    let key = |notice: &Notice| webhook(notice, "hook", "")["groupKey"].clone();
    let leak = notice("grows", Phase::Firing);
    let with = |change: fn(&mut Alert)| {
        let mut notice = leak.clone();
        change(&mut notice.alert);
        key(&notice)
    };
    assert_eq!(with(|alert| alert.finding.severity = Severity::Critical), key(&leak));
    assert_eq!(key(&notice("shrinks", Phase::Resolved)), key(&leak));
    let others = [with(|alert| alert.tenant = "team-b".into()), with(|alert| alert.id ^= 1)];
    assert!(others.iter().all(|other| *other != key(&leak)), "{others:?}");
}

#[test]
fn alertmanager_hears_when_it_ends_and_what_it_replaces() {
    let now_ns = 1_795_168_330_000_000_000;
    let worse = Notice { replaces: Some(Severity::Info), ..notice("grows", Phase::Firing) };
    let sent = alertmanager(&[worse, notice("grows", Phase::Resolved)], "", 60_000_000_000, now_ns);
    let of = |at: usize| (sent[at]["labels"]["severity"].clone(), sent[at]["endsAt"].clone());
    assert_eq!(of(0), (json!("info"), json!("2026-11-20T09:52:10Z")));
    assert_eq!(of(1), (json!("warning"), json!("2026-11-20T09:53:10Z")));
    assert_eq!(of(2), (json!("warning"), json!("2026-11-20T09:53:00.5Z")));
    assert!(sent[0].get("generatorURL").is_none());
    assert!(alertmanager(&[notice("g", Phase::Firing)], "http://w", 1, 1)[0]["generatorURL"] == "http://w");
}
