//! Tests of the state machine, case by case and for arbitrary sequences. Time is a number.

use memctl_model::{Finding, FindingKind, JobState, Severity};
use proptest::prelude::*;

use super::*;
use crate::alerts::alert::{AlertedFinding, sightings};

const S: u64 = 1_000_000_000;
const RULES: &str = r#"
default_rules = false
resolve_after = "24h"
keep_firing_for = "60s"
[[receiver]]
name = "hook"
type = "webhook"
url = "http://h"
[[receiver]]
name = "am"
type = "alertmanager"
url = "http://a"
[[rule]]
name = "Slow"
kinds = ["leak"]
for = "30s"
repeat = "1h"
[[rule]]
name = "Quick"
kinds = ["oom"]
"#;

fn rules() -> Rules {
    Rules::parse(RULES, "r").unwrap()
}

fn finding(kind: FindingKind) -> Finding {
    Finding { title: "t".into(), ..Finding::new(kind, Severity::Warning, 1.0, vec![0]) }
}

fn job(state: Option<JobState>, started_ns: u64, epochs: Option<u32>) -> JobFacts {
    JobFacts {
        tenant: "default".into(),
        name: "j".into(),
        run: 1,
        attempt: 0,
        labels: Vec::new(),
        state,
        started_ns,
        ended_ns: None,
        epochs,
        imported: false,
        not_judged: Vec::new(),
        grows: false,
    }
}

/// Applies one judgement, with the finding or without it.
fn judged(known: Option<Alert>, kind: Option<FindingKind>, job: &JobFacts, now_ns: u64) -> Option<Alert> {
    let rules = rules();
    match kind {
        Some(kind) => {
            let sightings = sightings(&rules, job, &[finding(kind)], now_ns);
            seen(known, &sightings[0], job, &rules, now_ns)
        }
        None => known.and_then(|alert| missed(alert, job, &rules, now_ns)),
    }
}

const LEAK: Option<FindingKind> = Some(FindingKind::Leak);
const OOM: Option<FindingKind> = Some(FindingKind::Oom);

fn firing(run_ns: u64) -> Alert {
    let alert = judged(None, OOM, &job(Some(JobState::Running), run_ns, Some(4)), run_ns + S).unwrap();
    assert_eq!((alert.phase, alert.fired_ns, alert.fired_epochs), (Phase::Firing, Some(run_ns + S), Some(4)));
    alert
}

#[test]
fn it_is_pending_until_it_was_there_long_enough() {
    let running = job(Some(JobState::Running), 1, None);
    let alert = judged(None, LEAK, &running, 100 * S).unwrap();
    assert_eq!((alert.phase, due_ns(&alert, &rules(), None, 100 * S)), (Phase::Pending, 130 * S));
    let still = judged(Some(alert.clone()), LEAK, &running, 129 * S).unwrap();
    assert_eq!((still.phase, still.since_ns), (Phase::Pending, 100 * S));
    assert_eq!(judged(Some(still.clone()), LEAK, &running, 130 * S).unwrap().phase, Phase::Firing);
    // Without a further judgement the last one remains valid.
    assert_eq!(tick(still.clone(), &rules(), 130 * S).unwrap().phase, Phase::Firing);
    // The finding disappeared before the alert fired, so the alert is removed and the wait begins again.
    assert_eq!(judged(Some(still.clone()), None, &running, 129 * S), None);
    // The finding of a run that has ended does not wait.
    assert_eq!(judged(Some(still), LEAK, &job(Some(JobState::Failed), 1, None), 101 * S).unwrap().phase, Phase::Firing);
}

#[test]
fn in_a_run_that_goes_on_it_resolves_after_a_while_without_it() {
    let running = job(Some(JobState::Running), 1, Some(9));
    let missing = judged(Some(firing(1)), None, &running, 100 * S).unwrap();
    assert_eq!((missing.phase, missing.missing_ns), (Phase::Firing, Some(100 * S)));
    assert_eq!(due_ns(&missing, &rules(), Some(u64::MAX), 100 * S), 160 * S);
    let back = judged(Some(missing.clone()), OOM, &running, 130 * S).unwrap();
    assert_eq!((back.phase, back.missing_ns, back.fired_ns), (Phase::Firing, None, Some(1 + S)));
    let gone = tick(missing, &rules(), 160 * S).unwrap();
    assert_eq!((gone.phase, gone.resolved_ns), (Phase::Resolved, Some(160 * S)));
    let again = judged(Some(gone), OOM, &running, 170 * S).unwrap();
    assert_eq!((again.phase, again.fired_ns), (Phase::Firing, Some(170 * S)));
    assert_eq!(
        judged(Some(firing(1)), None, &job(Some(JobState::Finished), 1, None), 9 * S).unwrap().phase,
        Phase::Resolved
    );
}

#[test]
fn a_run_that_is_deleted_takes_its_own_alerts_with_it_and_no_later_ones() {
    let after = |alert: &Alert, gone: &JobFacts| judged(Some(alert.clone()), None, gone, 99 * S).unwrap().phase;
    let (alert, gone) = (firing(5), |run_ns| job(None, run_ns, None));
    assert_eq!(after(&alert, &gone(5)), Phase::Resolved);
    assert_eq!(after(&alert, &gone(6)), Phase::Resolved, "everything up to a later one is gone");
    assert_eq!(after(&alert, &gone(4)), Phase::Firing, "only an earlier run is");
    let second = Alert { attempt: 1, ..alert };
    assert_eq!(after(&second, &gone(5)), Phase::Firing, "an earlier attempt that began with it");
    assert_eq!(after(&second, &JobFacts { attempt: 1, ..gone(5) }), Phase::Resolved);
}

#[test]
fn after_its_run_it_fires_until_a_later_run_did_without_it() {
    let left = judged(Some(firing(1)), OOM, &job(Some(JobState::Finished), 1, Some(6)), 50 * S).unwrap();
    assert!(left.run_ended);
    let later = |state, epochs| judged(Some(left.clone()), None, &job(state, 60 * S, epochs), 70 * S).unwrap().phase;
    assert_eq!(later(Some(JobState::Running), Some(0)), Phase::Firing, "it has just begun");
    assert_eq!(later(Some(JobState::Running), Some(4)), Phase::Firing, "not further than where it fired");
    assert_eq!(later(Some(JobState::Running), Some(5)), Phase::Resolved);
    let unsure = JobFacts { not_judged: vec![FindingKind::Oom], ..job(Some(JobState::Running), 60 * S, Some(5)) };
    assert_eq!(judged(Some(left.clone()), None, &unsure, 70 * S).unwrap().phase, Phase::Firing, "it is not judged yet");
    assert_eq!(later(Some(JobState::Running), None), Phase::Firing);
    assert_eq!(later(Some(JobState::Failed), Some(2)), Phase::Firing, "it proved nothing");
    assert_eq!(later(Some(JobState::Lost), None), Phase::Firing);
    assert_eq!(later(Some(JobState::Finished), None), Phase::Resolved);
    // A second run that cannot be distinguished from the first: it must finish.
    let same = |state| judged(Some(left.clone()), None, &job(state, 1, Some(9)), 70 * S).unwrap();
    assert_eq!((same(Some(JobState::Running)), same(Some(JobState::Finished)).phase), (left.clone(), Phase::Resolved));
    // An older run does not change the result of a later one.
    let fixed = judged(Some(left.clone()), None, &job(Some(JobState::Finished), 60 * S, None), 70 * S).unwrap();
    for kind in [OOM, None] {
        assert_eq!(
            judged(Some(fixed.clone()), kind, &job(Some(JobState::Finished), 1, None), 80 * S),
            Some(fixed.clone())
        );
    }
    // It also resolves once enough time has passed.
    let day = 24 * 3_600 * S;
    assert_eq!(tick(left.clone(), &rules(), 50 * S + day - 1).unwrap().phase, Phase::Firing);
    let over = tick(left, &rules(), 50 * S + day).unwrap();
    assert_eq!(over.phase, Phase::Resolved);
    assert_eq!(tick(over, &rules(), 50 * S + 2 * day), None, "and forgotten");
    // A daemon that starts and judges an old job again does not raise the alert again.
    let old = JobFacts { ended_ns: Some(50 * S), ..job(Some(JobState::Finished), 1, None) };
    assert_eq!(judged(None, OOM, &old, 50 * S + day), None);
}

#[test]
fn a_later_run_that_would_not_show_the_leak_resolves_nothing() {
    let left = judged(Some(firing(1)), OOM, &job(Some(JobState::Finished), 1, Some(6)), 50 * S).unwrap();
    let finding = AlertedFinding { kind: FindingKind::Leak.name().to_owned(), ..left.finding.clone() };
    let left = Alert { by_epoch: true, finding, ..left };
    let later = |facts: JobFacts| judged(Some(left.clone()), None, &facts, 70 * S).unwrap().phase;
    let run = |epochs| job(Some(JobState::Finished), 60 * S, Some(epochs));
    assert_eq!(later(run(3)), Phase::Firing, "three epochs do not show what each epoch leaks");
    assert_eq!(later(JobFacts { grows: true, ..run(9) }), Phase::Firing, "its memory grows");
    assert_eq!(later(JobFacts { not_judged: vec![FindingKind::Leak], ..run(9) }), Phase::Firing);
    assert_eq!(later(run(9)), Phase::Resolved);
}

#[test]
fn an_alert_that_fires_between_two_judgements_knows_its_epoch() {
    let pending = judged(None, LEAK, &job(Some(JobState::Running), 1, Some(6)), 100 * S).unwrap();
    let fired = tick(pending, &rules(), 130 * S).unwrap();
    assert_eq!((fired.phase, fired.fired_epochs), (Phase::Firing, Some(6)));
    let left = judged(Some(fired), LEAK, &job(Some(JobState::Finished), 1, Some(8)), 140 * S).unwrap();
    let later = |epochs| judged(Some(left.clone()), None, &job(Some(JobState::Running), 150 * S, epochs), 160 * S);
    assert_eq!(later(Some(6)).unwrap().phase, Phase::Firing);
    assert_eq!(later(Some(7)).unwrap().phase, Phase::Resolved);
}

#[test]
fn alertmanager_gets_a_firing_alert_again_before_it_ends_there() {
    let rules = rules();
    let [hook, am] = ["hook", "am"].map(|name| rules.receiver(name).unwrap());
    let ReceiverKind::Alertmanager { resend_ns, .. } = am.kind else { panic!("not an Alertmanager") };
    assert_eq!((retry_ns(hook), retry_ns(am)), (RETRY_NS, resend_ns));
}

#[test]
fn a_receiver_that_is_added_later_gets_alerts_that_fire() {
    let more = RULES.replace(
        "[[rule]]\nname = \"Slow\"",
        "[[receiver]]\nname = \"new\"\ntype = \"webhook\"\nurl = \"http://n\"\n[[rule]]\nname = \"Slow\"",
    );
    let rules = Rules::parse(&more, "r").unwrap();
    let alert = tick(firing(S), &rules, 3 * S).unwrap();
    assert_eq!(alert.receivers, ["hook", "am", "new"]);
    let wants = |name: &str, alert: &Alert| {
        wants(alert, &alert.clone().delivery_mut(name).clone(), rules.receiver(name).unwrap(), &rules, None, 3 * S)
    };
    assert_eq!(wants("new", &alert), Want::Now);
    assert_eq!(due_ns(&alert, &rules, None, 3 * S), 3 * S);
    // It is not notified of one that is resolved.
    assert_eq!(wants("new", &resolve(alert, 4 * S)), Want::Nothing);
}

#[test]
fn receivers_are_notified_once_again_and_at_the_end() {
    let rules = rules();
    let (hook, am) = (rules.receiver("hook").unwrap(), rules.receiver("am").unwrap());
    let alert = firing(1);
    let fired_ns = alert.fired_ns.unwrap();
    let at = |alert: &Alert, delivery: &Delivery, receiver, silenced, now| {
        wants(alert, delivery, receiver, &rules, silenced, now)
    };
    let nothing = Delivery::default();
    assert_eq!(at(&alert, &nothing, hook, None, 9 * S), Want::Now);
    assert_eq!(at(&alert, &nothing, hook, Some(99 * S), 9 * S), Want::At(99 * S), "silenced");
    let claimed = Delivery { claimed_until_ns: Some(20 * S), ..Delivery::default() };
    assert_eq!(at(&alert, &claimed, hook, None, 9 * S), Want::At(20 * S), "another daemon has the claim");
    assert_eq!(at(&alert, &claimed, hook, None, 20 * S), Want::Now, "the claim has expired");
    let severity = Some(Severity::Warning);
    let sent = Delivery {
        notified: Some(Phase::Firing),
        notified_fired_ns: fired_ns,
        notified_severity: severity,
        notified_ns: 9 * S,
        ..Delivery::default()
    };
    assert_eq!(at(&alert, &sent, hook, None, 10 * S), Want::At(9 * S + 4 * 3_600 * S));
    assert_eq!(at(&alert, &sent, am, None, 10 * S), Want::At(69 * S));
    let worse =
        Alert { finding: AlertedFinding { severity: Severity::Critical, ..alert.finding.clone() }, ..alert.clone() };
    assert_eq!(at(&worse, &sent, hook, None, 10 * S), Want::Now);
    let failed = Delivery { retry_ns: Some(50 * S), ..Delivery::default() };
    assert_eq!(at(&alert, &failed, hook, None, 10 * S), Want::At(50 * S));
    let over = judged(Some(alert), None, &job(Some(JobState::Finished), 1, None), 20 * S).unwrap();
    assert_eq!(at(&over, &sent, hook, Some(99 * S), 20 * S), Want::Now, "a silence does not delay the end");
    assert_eq!(at(&over, &nothing, hook, None, 20 * S), Want::Nothing);
    assert_eq!(
        at(&over, &Delivery { notified: Some(Phase::Resolved), ..sent.clone() }, hook, None, 20 * S),
        Want::Nothing
    );
    assert_eq!(at(&over, &sent, hook, None, 20 * S + RESOLVED_TRIED_NS), Want::Nothing);
}

#[test]
fn rules_that_are_gone_take_their_alerts_along() {
    let none = Rules::parse("default_rules = false", "r").unwrap();
    assert_eq!(tick(firing(1), &none, 9 * S).unwrap().phase, Phase::Resolved);
    let pending = judged(None, LEAK, &job(Some(JobState::Running), 1, None), 9 * S).unwrap();
    assert_eq!(tick(pending, &none, 10 * S), None);
}

#[test]
fn an_imported_job_raises_nothing_unless_asked_to() {
    let imported = JobFacts { imported: true, ..job(Some(JobState::Finished), 1, None) };
    assert_eq!(sightings(&rules(), &imported, &[finding(FindingKind::Oom)], 9), []);
    let wanted = Rules { imported: true, ..rules() };
    assert_eq!(sightings(&wanted, &imported, &[finding(FindingKind::Oom)], 9).len(), 1);
}

#[test]
fn an_alert_stays_small_whatever_a_finding_holds() {
    let large = Finding {
        ranks: (0..100_000).collect(),
        title: "é".repeat(1 << 20),
        explanation: "x".repeat(1 << 20),
        advice: "y".repeat(1 << 20),
        ..finding(FindingKind::Oom)
    };
    let labels = (0..1_000).map(|at| (format!("l{at}"), "v".repeat(1 << 16))).collect();
    let facts = JobFacts { labels, ..job(Some(JobState::Running), 1, None) };
    let sightings = sightings(&rules(), &facts, &[large.clone(), large], 9);
    assert_eq!(sightings.len(), 1, "one fingerprint, one alert");
    let put = crate::alerts::record::put(&sightings[0].alert, 0, 0);
    assert!(put.record.body.len() < 32 << 10, "{}", put.record.body.len());
    assert_eq!(sightings[0].alert.rank_list(), "0-63, … (100000 ranks)");
    let back = crate::alerts::record::read(&put.record).unwrap();
    assert_eq!(back.alert, sightings[0].alert);
}

proptest! {
    /// For any sequence of inputs, states are consistent, times are ordered, and judging again changes nothing more. An
    /// alert that needs nothing now is due later.
    #[test]
    fn any_course_is_consistent(steps in proptest::collection::vec((0_u8..8, 0_u64..4, 0_u64..40_000), 1..60)) {
        let rules = rules();
        let mut now_ns = 100 * S;
        let mut alert: Option<Alert> = None;
        for (what, run, wait_s) in steps {
            now_ns += wait_s * S;
            let states = [Some(JobState::Running), Some(JobState::Finished), Some(JobState::Failed), Some(JobState::Lost), Some(JobState::Running)];
            let facts = job(states[(what % 5) as usize], 1 + run, Some(u32::from(what)));
            let before = alert.clone();
            alert = match what {
                0..4 => judged(alert, LEAK, &facts, now_ns),
                4..7 => judged(alert, None, &facts, now_ns),
                _ => alert.and_then(|alert| tick(alert, &rules, now_ns)),
            };
            let Some(after) = &alert else { continue };
            prop_assert_eq!(after.phase == Phase::Resolved, after.resolved_ns.is_some());
            prop_assert!(after.phase == Phase::Pending || after.fired_ns.is_some());
            prop_assert!(after.resolved_ns.is_none_or(|at| at >= after.fired_ns.unwrap()));
            if let Some(before) = before {
                prop_assert!(before.phase != Phase::Firing || after.phase != Phase::Pending, "it cannot be unsaid");
                prop_assert!(after.fired_ns >= before.fired_ns && after.run_started_ns >= before.run_started_ns);
            }
            if what < 4 {
                prop_assert_eq!(judged(alert.clone(), LEAK, &facts, now_ns), alert.clone());
            }
            let settled = alert.clone().and_then(|alert| tick(alert, &rules, now_ns));
            prop_assert_eq!(settled.clone().and_then(|alert| tick(alert, &rules, now_ns)), settled.clone());
            if let Some(settled) = settled {
                let silenced = due_ns(&settled, &rules, Some(u64::MAX), now_ns);
                let sent = settled.phase == Phase::Resolved || silenced > now_ns;
                prop_assert!(sent, "nothing is due at {now_ns}: {settled:?}");
            }
        }
    }
}

#[test]
fn runs_that_go_on_at_once_do_not_take_or_resolve_each_others_alerts() {
    let of_run = |run, state| JobFacts { run, ..job(state, 10 * u64::from(run), Some(9)) };
    let first = firing(10);
    // Another run of the same name, which began later, is clean or has the same finding.
    let second = of_run(2, Some(JobState::Finished));
    assert_eq!(judged(Some(first.clone()), None, &second, 99 * S).unwrap(), first);
    assert_eq!(judged(Some(first.clone()), OOM, &of_run(2, Some(JobState::Running)), 99 * S).unwrap(), first);
    // Deleting the second run does not affect the first run's alert; deleting all runs does.
    assert_eq!(judged(Some(first.clone()), None, &of_run(2, None), 99 * S).unwrap(), first);
    let everything = JobFacts { run: EVERY_RUN, ..job(None, u64::MAX, None) };
    assert_eq!(judged(Some(first.clone()), None, &everything, 99 * S).unwrap().phase, Phase::Resolved);
    // After the first run has ended with the finding, or has gone silent, a run that began after that resolves the
    // alert. A run that began before the finding was last seen proves nothing. The alert keeps its own run.
    let third = JobFacts { started_ns: 60 * S, ..of_run(3, Some(JobState::Finished)) };
    let ended_at = |ended_ns| JobFacts { ended_ns, ..of_run(1, Some(JobState::Failed)) };
    let ended = judged(Some(first.clone()), OOM, &ended_at(Some(50 * S)), 55 * S).unwrap();
    for left in [ended, first] {
        assert_eq!(judged(Some(left.clone()), None, &second, 400 * S).unwrap(), left);
        let resolved = judged(Some(left), None, &third, 400 * S).unwrap();
        assert_eq!((resolved.phase, resolved.run), (Phase::Resolved, 1));
        // A restarted daemon judges the first run again; this raises nothing.
        assert_eq!(judged(Some(resolved.clone()), OOM, &ended_at(None), 500 * S).unwrap(), resolved);
    }
    // If the end of a run was noticed late, its finding counts as seen until the run ended.
    let seen_late = judged(Some(firing(10)), OOM, &of_run(1, Some(JobState::Running)), 70 * S).unwrap();
    let ended = judged(Some(seen_late), OOM, &ended_at(Some(50 * S)), 71 * S).unwrap();
    assert_eq!(judged(Some(ended), None, &third, 99 * S).unwrap().phase, Phase::Resolved);
}
