//! Tests of alerts and silences: compare and set, selections, limits.

use std::sync::Arc;

use memctl_daemon::store::{AlertKind, AlertPut, AlertRecord, AlertSelection, PutOutcome, Store, StoreError};

fn record(kind: AlertKind, id: u64, job: &str, due_ns: u64) -> AlertRecord {
    AlertRecord {
        kind,
        id,
        version: 1,
        tenant: "default".into(),
        job: job.into(),
        due_ns,
        body: id.to_le_bytes().to_vec().into(),
    }
}

fn put(record: &AlertRecord, expected_version: u64) -> AlertPut {
    AlertPut { record: record.clone(), expected_version, remove: false }
}

async fn one(store: &dyn Store, change: AlertPut) -> PutOutcome {
    store.put_alert_records(&[change]).await.unwrap().remove(0)
}

async fn ids(store: &dyn Store, selection: AlertSelection<'_>) -> Vec<u64> {
    store.alert_records(selection).await.unwrap().iter().map(|record| record.id).collect()
}

pub async fn a_record_is_changed_by_who_knows_its_version(store: Arc<dyn Store>) {
    let all = AlertSelection::All(AlertKind::Alert);
    assert_eq!(ids(&*store, all).await, [0_u64; 0]);
    let first = record(AlertKind::Alert, u64::MAX, "job", 7);
    assert_eq!(one(&*store, put(&first, 0)).await, PutOutcome::Done);
    assert_eq!(one(&*store, put(&first, 0)).await, PutOutcome::Conflict, "it is there");
    assert_eq!(store.alert_records(all).await.unwrap(), std::slice::from_ref(&first));
    let changed = AlertRecord { job: "other".into(), due_ns: 9, body: vec![0, 255].into(), ..first };
    assert_eq!(one(&*store, put(&changed, 2)).await, PutOutcome::Conflict);
    assert_eq!(one(&*store, put(&changed, 1)).await, PutOutcome::Done);
    assert_eq!(store.alert_records(all).await.unwrap(), [AlertRecord { version: 2, ..changed.clone() }]);
    // The same number among the silences is a different record.
    let silence = record(AlertKind::Silence, u64::MAX, "", 1);
    assert_eq!(one(&*store, put(&silence, 0)).await, PutOutcome::Done);
    let remove = |expected_version| AlertPut { record: changed.clone(), expected_version, remove: true };
    assert_eq!(one(&*store, remove(1)).await, PutOutcome::Conflict);
    assert_eq!(one(&*store, remove(2)).await, PutOutcome::Done);
    assert_eq!(one(&*store, remove(2)).await, PutOutcome::Conflict);
    assert_eq!(ids(&*store, all).await, [0_u64; 0]);
    assert_eq!(ids(&*store, AlertSelection::All(AlertKind::Silence)).await, [u64::MAX]);
}

pub async fn records_are_selected(store: Arc<dyn Store>) {
    let puts: Vec<AlertPut> = [(1, "a", 30), (2, "b", 10), (3, "a", 20), (4, "a", u64::MAX)]
        .map(|(id, job, due_ns)| put(&record(AlertKind::Alert, id, job, due_ns), 0))
        .into();
    assert_eq!(store.put_alert_records(&puts).await.unwrap(), [PutOutcome::Done; 4]);
    one(&*store, put(&record(AlertKind::Silence, 5, "a", 0), 0)).await;
    assert_eq!(ids(&*store, AlertSelection::OfJob { tenant: "default", job: "a" }).await, [1, 3, 4]);
    assert_eq!(ids(&*store, AlertSelection::OfJob { tenant: "default", job: "A" }).await, [0_u64; 0]);
    assert_eq!(ids(&*store, AlertSelection::Ids(&[4, 9, 2])).await, [4, 2]);
    assert_eq!(ids(&*store, AlertSelection::Due { before_ns: 29, limit: 9 }).await, [2, 3]);
    assert_eq!(ids(&*store, AlertSelection::Due { before_ns: 30, limit: 2 }).await, [2, 3]);
    let far = AlertSelection::Due { before_ns: 1 << 62, limit: 9 };
    assert_eq!(ids(&*store, far).await, [2, 3, 1], "the end of time is never due");
}

pub async fn of_many_at_once_one_wins(store: Arc<dyn Store>) {
    for round in 0..10_u64 {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move {
                    // The records are in both orders, so that the store would deadlock if it took them in the given
                    // order.
                    let mut puts: Vec<AlertPut> =
                        (1..=4).map(|id| put(&record(AlertKind::Alert, id, "job", 0), round)).collect();
                    if round % 2 == 0 {
                        puts.reverse();
                    }
                    store.put_alert_records(&puts).await.unwrap()
                })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            won += task.await.unwrap().into_iter().filter(|outcome| *outcome == PutOutcome::Done).count();
        }
        assert_eq!(won, 4, "each change of round {round} was made once");
    }
}

pub async fn what_is_too_large_is_refused_and_what_is_too_much_is_full(store: Arc<dyn Store>) {
    for wrong in [
        AlertRecord { body: vec![0; (256 << 10) + 1].into(), ..record(AlertKind::Alert, 1, "job", 0) },
        record(AlertKind::Alert, 1, &"j".repeat(257), 0),
        record(AlertKind::Alert, 1, "a\0b", 0),
    ] {
        let refused = store.put_alert_records(&[put(&wrong, 0)]).await.unwrap_err();
        assert!(matches!(refused, StoreError::Refused { .. }), "{refused}");
    }
    assert_eq!(ids(&*store, AlertSelection::OfJob { tenant: "default", job: "a\0b" }).await, [0_u64; 0]);
    // A tenant gets only as many records as remain free for others, so there is always room for a new tenant.
    let most = AlertKind::Silence.most();
    let done = async |tenant: &str, first: u64, count: u64| {
        let of = |id| AlertRecord { tenant: tenant.into(), ..record(AlertKind::Silence, id, "", 0) };
        let puts: Vec<AlertPut> = (first..first + count).map(|id| put(&of(id), 0)).collect();
        let outcomes = store.put_alert_records(&puts).await.unwrap();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, PutOutcome::Done | PutOutcome::Full)));
        outcomes.iter().filter(|outcome| **outcome == PutOutcome::Done).count() as u64
    };
    assert_eq!(done("default", 0, most).await, most / 2);
    assert_eq!(done("second", 10_000, most).await, most / 4);
    assert_eq!(done("third", 20_000, 100).await, 100);
    assert_eq!(done("default", 30_000, 1).await, 0);
    assert_eq!(ids(&*store, AlertSelection::All(AlertKind::Silence)).await.len() as u64, most / 2 + most / 4 + 100);
    // Existing records can still be changed.
    assert_eq!(one(&*store, put(&record(AlertKind::Silence, 1, "", 0), 1)).await, PutOutcome::Done);
}
