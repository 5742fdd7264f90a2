//! Tests of appends: atomic, repeated, small and large.
//! (Over 400 lines: each case is independent.)

use std::sync::Arc;

use memctl_daemon::store::{
    Append, DeviceUpdate, Gap, ItemRow, NewItem, Selection, SessionRow, Store, StoreError, Which,
};
use memctl_model::Dropped;
use memctl_proto::v1::ItemKind;

use super::made::{self, NOW_NS, append, chunk, item, keyframe, open, payload};

/// The only session of the only job.
async fn row(store: &dyn Store) -> SessionRow {
    let job = store.job(&Which::Latest, None).await.unwrap().unwrap();
    store.sessions(job.key).await.unwrap().remove(0)
}

/// Seqs of all chunks of a device.
async fn chunk_seqs(store: &dyn Store, session: i64, device: u8) -> Vec<u64> {
    store.chunks(session, device, Selection::default()).await.unwrap().iter().map(|chunk| chunk.seq).collect()
}

fn mixed() -> Vec<NewItem> {
    vec![chunk(1, 0), item(2, ItemKind::Marks, None), keyframe(3, 10), chunk(4, 1)]
}

pub async fn an_append_is_there_with_its_sums(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let mut sent = append(key, mixed());
    (sent.duplicates, sent.heard_ns) = (2, NOW_NS + 3);
    sent.dropped = Dropped { ring_full: 5, spool_full: 6, shutdown: 7 };
    store.append(vec![sent]).await.unwrap();
    let session = row(&*store).await;
    assert_eq!((session.durable_seq, session.events, session.stored_bytes), (4, 20, 300));
    assert_eq!((session.duplicates, session.missing_items, session.heard_ns), (2, 0, NOW_NS + 3));
    assert_eq!(session.dropped, Dropped { ring_full: 5, spool_full: 6, shutdown: 7 });
    assert_eq!((session.end, session.expired_events), (None, 0));
    for sent in mixed() {
        assert_eq!(store.payloads(key, &[sent.seq]).await.unwrap(), [(sent.seq, sent.payload.clone())]);
        if sent.is_chunk() {
            let chunks = store.chunks(key, sent.index.device.unwrap(), Selection::default()).await.unwrap();
            assert_eq!(chunks.len(), 1);
            assert_eq!((chunks[0].seq, chunks[0].index, Some(chunks[0].levels)), (sent.seq, sent.index, sent.levels));
            assert_eq!(chunks[0].payload_bytes, 100);
        } else {
            let items = store.items(key, sent.kind, None, Selection::default()).await.unwrap();
            let expected = ItemRow {
                seq: sent.seq,
                kind: sent.kind as i32,
                payload: sent.payload,
                unpacked_bytes: 80,
                index: sent.index,
            };
            assert_eq!(items, [expected]);
        }
    }
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.jobs, totals.sessions, totals.events, totals.stored_bytes), (1, 1, 20, 300));
    assert_eq!((totals.duplicates, totals.missing_items, totals.expired_events), (2, 0, 0));
    // Counts of dropped events only rise, each independently.
    let mut later = append(key, vec![chunk(5, 0)]);
    later.dropped = Dropped { ring_full: 4, spool_full: 60, shutdown: 7 };
    later.heard_ns = NOW_NS;
    store.append(vec![later]).await.unwrap();
    let session = row(&*store).await;
    assert_eq!(session.dropped, Dropped { ring_full: 5, spool_full: 60, shutdown: 7 });
    assert_eq!(session.heard_ns, NOW_NS + 3);
}

/// An append with some data of every kind.
fn everything(key: i64) -> Append {
    let mut sent = append(key, vec![chunk(3, 0), item(4, ItemKind::Samples, None)]);
    sent.gaps = vec![Gap { first: 1, last: 2 }];
    sent.duplicates = 1;
    sent.devices =
        vec![DeviceUpdate { device: 0, events: 10, ooms: 1, epochs: 1, steps: 2, ..DeviceUpdate::default() }];
    sent.epoch_ends = vec![made::epoch_end(0, 1, 4)];
    sent.end = Some(made::end(10));
    sent
}

pub async fn sending_again_changes_nothing(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let job = store.job(&Which::Latest, None).await.unwrap().unwrap().key;
    let mut seen = None;
    for _ in 0..3 {
        store.append(vec![everything(key), everything(key)]).await.unwrap();
        let now = (
            store.sessions(job).await.unwrap(),
            store.devices(job).await.unwrap(),
            store.epoch_ends(job).await.unwrap(),
            store.gaps(job).await.unwrap(),
            store.totals().await.unwrap(),
        );
        assert_eq!(now, seen.unwrap_or_else(|| now.clone()));
        seen = Some(now);
    }
    let session = row(&*store).await;
    assert_eq!((session.events, session.stored_bytes, session.duplicates, session.missing_items), (10, 150, 1, 2));
    assert_eq!(chunk_seqs(&*store, key, 0).await, [3]);
}

pub async fn an_overlap_counts_what_is_new(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    store.append(vec![append(key, vec![chunk(1, 0), chunk(2, 0)])]).await.unwrap();
    let mut overlapping = append(key, vec![chunk(2, 0), chunk(3, 0)]);
    overlapping.devices = [(2, 1), (3, 2)]
        .map(|(seq, steps)| DeviceUpdate {
            seq,
            device: 0,
            events: 10,
            ooms: seq % 2,
            epochs: 1,
            steps,
            ..DeviceUpdate::default()
        })
        .into();
    overlapping.epoch_ends = vec![made::epoch_end(0, 1, 2), made::epoch_end(0, 2, 3)];
    store.append(vec![overlapping]).await.unwrap();
    let session = row(&*store).await;
    assert_eq!((session.durable_seq, session.events, session.stored_bytes), (3, 30, 300));
    assert_eq!(chunk_seqs(&*store, key, 0).await, [1, 2, 3]);
    let device = store.devices(session.job).await.unwrap().remove(0);
    assert_eq!((device.events, device.ooms, device.epochs, device.steps), (10, 1, 1, 2), "only the figures of item 3");
    let ends = store.epoch_ends(session.job).await.unwrap();
    assert_eq!(ends.iter().map(|end| end.epoch).collect::<Vec<_>>(), [2]);
    // Items above the stated durable seq are stored too, and they are not stored twice.
    let mut ahead = append(key, vec![chunk(5, 0), chunk(6, 0)]);
    ahead.durable_seq = 3;
    store.append(vec![ahead]).await.unwrap();
    store.append(vec![append(key, vec![chunk(4, 0), chunk(5, 0), chunk(6, 0), chunk(7, 0)])]).await.unwrap();
    let session = row(&*store).await;
    assert_eq!((session.durable_seq, session.events, session.stored_bytes), (7, 70, 700));
    assert_eq!(chunk_seqs(&*store, key, 0).await, [1, 2, 3, 4, 5, 6, 7]);
    // The durable seq never decreases.
    let mut back = append(key, Vec::new());
    back.durable_seq = 2;
    store.append(vec![back]).await.unwrap();
    assert_eq!(row(&*store).await.durable_seq, 7);
}

pub async fn all_or_nothing(store: Arc<dyn Store>) {
    let good = open(&*store, 1, "job", 0).await;
    let bad = open(&*store, 2, "job", 1).await;
    let before = store.totals().await.unwrap();
    let mut wrong = append(bad, vec![chunk(1, 0), chunk(2, 0)]);
    wrong.items[1].index.last_ns = u64::MAX;
    for appends in [
        vec![append(good, mixed()), wrong.clone()],
        vec![wrong, append(good, mixed())],
        vec![append(good, mixed()), append(good + 1_000, mixed())],
    ] {
        store.append(appends).await.unwrap_err();
        assert_eq!(store.totals().await.unwrap(), before);
        assert_eq!(chunk_seqs(&*store, good, 0).await, [0_u64; 0]);
        assert_eq!(store.payloads(good, &[1, 2, 3, 4]).await.unwrap(), []);
    }
    // The store continues to work, and the same items can be stored.
    store.append(vec![append(good, mixed())]).await.unwrap();
    assert_eq!(chunk_seqs(&*store, good, 0).await, [1]);
}

pub async fn a_missing_session_is_named(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let error =
        store.append(vec![append(key, vec![chunk(1, 0)]), append(key + 9, vec![chunk(1, 0)])]).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSession { .. }), "{error}");
    assert_eq!(error.session(), Some(key + 9));
}

pub async fn nothing_comes_after_the_end(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let mut last = append(key, vec![chunk(1, 0), item(2, ItemKind::End, None)]);
    last.end = Some(made::end(10));
    store.append(vec![last.clone()]).await.unwrap();
    let error = store.append(vec![append(key, vec![chunk(3, 0)])]).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert_eq!(error.session(), Some(key));
    // The session may be heard from later, and its first end stays.
    store.append(vec![append(key, Vec::new())]).await.unwrap();
    last.end = Some(made::end(99));
    store.append(vec![last]).await.unwrap();
    let session = row(&*store).await;
    assert_eq!((session.end, session.events), (Some(made::end(10)), 10));
}

pub async fn impossible_items_are_refused(store: Arc<dyn Store>) {
    const BEYOND: u64 = i64::MAX as u64 + 1;
    type Spoil = fn(&mut Append);
    let key = open(&*store, 1, "job", 0).await;
    let spoils: [(&str, Spoil); 14] = [
        ("seq 0", |sent| sent.items[0].seq = 0),
        ("seq twice", |sent| sent.items[1].seq = 1),
        ("seq beyond", |sent| sent.items[1].seq = BEYOND),
        ("durable beyond", |sent| sent.durable_seq = BEYOND),
        ("first time", |sent| sent.items[0].index.first_ns = BEYOND),
        ("last time", |sent| sent.items[0].index.last_ns = BEYOND),
        ("first event", |sent| sent.items[0].index.first_event = BEYOND),
        ("event count", |sent| sent.items[0].index.count = i64::MAX as u64),
        ("event overflow", |sent| (sent.items[0].index.first_event, sent.items[0].index.count) = (u64::MAX, 2)),
        ("chunk without levels", |sent| sent.items[0].levels = None),
        ("chunk without device", |sent| sent.items[0].index.device = None),
        ("device 64", |sent| sent.items[0].index.device = Some(64)),
        ("gap backwards", |sent| sent.gaps = vec![Gap { first: 2, last: 1 }]),
        ("gap above durable", |sent| sent.gaps = vec![Gap { first: 1, last: u64::MAX }]),
    ];
    for (what, spoil) in spoils {
        let mut sent = append(key, vec![chunk(1, 0), item(2, ItemKind::Marks, None)]);
        sent.items[0].index.first_event = 1;
        sent.check().unwrap();
        spoil(&mut sent);
        sent.check().expect_err(what);
        let error = store.append(vec![sent]).await.expect_err(what);
        assert!(matches!(error, StoreError::Refused { session, .. } if session == key), "{what}: {error}");
    }
    assert_eq!(store.totals().await.unwrap().stored_bytes, 0);
}

pub async fn the_largest_figures_survive(store: Arc<dyn Store>) {
    const LAST: u64 = i64::MAX as u64;
    let key = open(&*store, 1, "job", 0).await;
    let mut largest = NewItem { seq: LAST, ..chunk(1, 63) };
    largest.index.first_ns = LAST;
    largest.index.last_ns = LAST;
    (largest.index.first_event, largest.index.count) = (LAST - 1, 1);
    (largest.index.first_epoch, largest.index.last_epoch) = (u32::MAX, u32::MAX);
    (largest.index.first_step, largest.index.last_step) = (u64::MAX - 1, u64::MAX);
    let levels = largest.levels.as_mut().unwrap();
    levels.allocated_end = u64::MAX;
    levels.reserved_end = u64::MAX - 1;
    levels.allocated_min = LAST + 1;
    levels.allocated_max = u64::MAX - 2;
    levels.reserved_max = u64::MAX - 3;
    levels.ooms = u64::MAX - 4;
    levels.dropped_before = u64::MAX - 5;
    let mut sent = append(key, vec![largest.clone()]);
    sent.gaps = vec![Gap { first: 1, last: LAST - 1 }];
    sent.dropped = Dropped { ring_full: u64::MAX, spool_full: LAST + 1, shutdown: u64::MAX - 1 };
    sent.devices = vec![DeviceUpdate {
        device: 63,
        events: LAST,
        latest: Some(made::latest(u64::MAX)),
        device_used_bytes: Some(u64::MAX),
        alloc_retries: Some(LAST + 1),
        ..DeviceUpdate::default()
    }];
    let mut end = made::epoch_end(63, u32::MAX, u64::MAX);
    end.time_ns = LAST;
    sent.epoch_ends = vec![end.clone()];
    store.append(vec![sent]).await.unwrap();

    let session = row(&*store).await;
    assert_eq!((session.durable_seq, session.missing_items), (LAST, LAST - 1));
    assert_eq!(session.dropped, Dropped { ring_full: u64::MAX, spool_full: LAST + 1, shutdown: u64::MAX - 1 });
    let chunks = store.chunks(key, 63, Selection::default()).await.unwrap();
    assert_eq!((chunks[0].seq, chunks[0].index, Some(chunks[0].levels)), (LAST, largest.index, largest.levels));
    assert_eq!(store.payloads(key, &[LAST, u64::MAX]).await.unwrap(), [(LAST, largest.payload)]);
    let devices = store.devices(session.job).await.unwrap();
    let device = devices.iter().find(|row| row.info.index.0 == 63).unwrap();
    assert_eq!((device.events, device.latest), (LAST, Some(made::latest(u64::MAX))));
    assert_eq!((device.device_used_bytes, device.alloc_retries), (Some(u64::MAX), Some(LAST + 1)));
    end.session = key;
    assert_eq!(store.epoch_ends(session.job).await.unwrap(), [end]);
    for selection in [
        Selection { times_ns: Some((LAST, u64::MAX)), ..Selection::default() },
        Selection { epochs: Some((u32::MAX, u32::MAX)), ..Selection::default() },
        Selection { events: Some((LAST - 1, u64::MAX)), ..Selection::default() },
    ] {
        assert_eq!(store.chunks(key, 63, selection).await.unwrap().len(), 1, "{selection:?}");
    }
    for selection in [
        Selection { times_ns: Some((LAST + 1, u64::MAX)), ..Selection::default() },
        Selection { events: Some((u64::MAX, u64::MAX)), ..Selection::default() },
        Selection { events: Some((LAST, LAST)), ..Selection::default() },
    ] {
        assert_eq!(store.chunks(key, 63, selection).await.unwrap().len(), 0, "{selection:?}");
    }
}

pub async fn sums_stop_at_their_limit(store: Arc<dyn Store>) {
    const LAST: u64 = i64::MAX as u64;
    let key = open(&*store, 1, "job", 0).await;
    for seq in [1, 2] {
        let mut huge = chunk(seq, 0);
        (huge.index.first_event, huge.index.count) = (0, LAST);
        let mut sent = append(key, vec![huge]);
        sent.duplicates = u64::MAX;
        let update =
            DeviceUpdate { device: 0, events: u64::MAX, ooms: u64::MAX, epochs: LAST, steps: 9, ..Default::default() };
        sent.devices = vec![update.clone(), update];
        store.append(vec![sent]).await.unwrap();
    }
    let session = row(&*store).await;
    assert_eq!((session.events, session.duplicates), (LAST, LAST));
    let device = store.devices(session.job).await.unwrap().remove(0);
    assert_eq!((device.events, device.ooms, device.epochs, device.steps), (LAST, LAST, LAST, 36));
    // Two such sessions exceed 63 bits together; the sum is still correct.
    let other = open(&*store, 2, "job", 1).await;
    let mut huge = chunk(1, 0);
    (huge.index.first_event, huge.index.count) = (0, LAST);
    store.append(vec![append(other, vec![huge])]).await.unwrap();
    assert_eq!(store.totals().await.unwrap().events, 2 * LAST);
    let gone = store.delete_job(session.job).await.unwrap();
    assert_eq!((gone.events, gone.chunks), (2 * LAST, 3));
}

pub async fn gaps_are_counted_once(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let mut sent = append(key, vec![chunk(3, 0), chunk(10, 0)]);
    sent.gaps = vec![Gap { first: 1, last: 2 }, Gap { first: 4, last: 9 }];
    for _ in 0..2 {
        store.append(vec![sent.clone()]).await.unwrap();
    }
    // A gap that begins below the durable seq is cut there. An append without items counts too.
    let mut next = append(key, Vec::new());
    (next.gaps, next.durable_seq) = (vec![Gap { first: 9, last: 12 }], 12);
    for _ in 0..2 {
        store.append(vec![next.clone()]).await.unwrap();
    }
    // An item that arrives late is already recorded as missing.
    store.append(vec![append(key, vec![chunk(5, 0)])]).await.unwrap();
    let session = row(&*store).await;
    assert_eq!((session.missing_items, session.durable_seq, session.events), (10, 12, 20));
    let gap = |first, last| (key, Gap { first, last });
    assert_eq!(store.gaps(session.job).await.unwrap(), [gap(1, 2), gap(4, 9), gap(11, 12)]);
    assert_eq!(store.totals().await.unwrap().missing_items, 10);
}

pub async fn devices_add_and_replace(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let first = DeviceUpdate {
        seq: 1,
        device: 0,
        events: 10,
        ooms: 1,
        epochs: 2,
        steps: 3,
        latest: Some(made::latest(5)),
        device_used_bytes: Some(7),
        alloc_retries: None,
        expandable: Some(true),
    };
    let second = DeviceUpdate { device: 0, events: 1, alloc_retries: Some(4), ..DeviceUpdate::default() };
    // The session did not announce this device.
    let stranger = DeviceUpdate { device: 9, steps: 1, ..DeviceUpdate::default() };
    let mut sent = append(key, vec![chunk(1, 0)]);
    sent.devices = vec![first, second.clone()];
    store.append(vec![sent]).await.unwrap();
    let mut sent = append(key, vec![chunk(2, 0)]);
    sent.devices = vec![DeviceUpdate { latest: Some(made::latest(8)), ..second }, stranger];
    store.append(vec![sent]).await.unwrap();
    let devices = store.devices(row(&*store).await.job).await.unwrap();
    assert_eq!(devices.len(), 2);
    let known = &devices[0];
    assert_eq!((known.session, &known.info), (key, &made::device(0)));
    assert_eq!((known.events, known.ooms, known.epochs, known.steps), (12, 1, 2, 3));
    assert_eq!((known.latest, known.device_used_bytes, known.alloc_retries), (Some(made::latest(8)), Some(7), Some(4)));
    let unknown = &devices[1];
    assert_eq!((unknown.info.index.0, &unknown.info.uuid, unknown.steps, unknown.latest), (9, &None, 1, None));
}

pub async fn segments_say_what_is_in_force(store: Arc<dyn Store>) {
    // The setting is exported. It is in effect once one segment is expandable; only ordinary segments mean that it is
    // not.
    for (id, exported, seen, in_force) in [
        (1, true, &[None][..], true),
        (2, true, &[Some(false)], false),
        (3, true, &[Some(false), Some(true)], true),
        (4, false, &[None, Some(true), Some(false)], true),
        (5, false, &[Some(false)], false),
    ] {
        let mut info = made::session(id, &format!("job-{id}"), 0);
        info.settings.expandable_segments = exported;
        let opened = store.open_session(&info, NOW_NS).await.unwrap();
        for (number, expandable) in (1..).zip(seen) {
            let mut sent = append(opened.key, vec![chunk(number, 0)]);
            sent.devices = vec![DeviceUpdate { seq: number, expandable: *expandable, ..DeviceUpdate::default() }];
            store.append(vec![sent]).await.unwrap();
        }
        let row = store.sessions(opened.job).await.unwrap().remove(0);
        assert_eq!((row.info.settings.expandable_segments, row.overruled), (in_force, exported && !in_force), "{id}");
    }
}

pub async fn epoch_ends_are_replaced(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let mut sent = append(key, vec![chunk(1, 0)]);
    sent.epoch_ends = vec![made::epoch_end(1, 0, 1), made::epoch_end(0, 2, 2), made::epoch_end(0, 1, 3)];
    store.append(vec![sent]).await.unwrap();
    let mut sent = append(key, vec![chunk(2, 0)]);
    sent.epoch_ends = vec![made::epoch_end(0, 2, 4), made::epoch_end(0, 2, 5)];
    store.append(vec![sent]).await.unwrap();
    let ends = store.epoch_ends(row(&*store).await.job).await.unwrap();
    let expected = [made::epoch_end(0, 1, 3), made::epoch_end(0, 2, 5), made::epoch_end(1, 0, 1)];
    let expected = expected.map(|end| memctl_daemon::store::EpochEndRow { session: key, ..end });
    assert_eq!(ends, expected);
}

pub async fn many_sessions_in_one_transaction(store: Arc<dyn Store>) {
    let mut appends = Vec::new();
    for id in 0..40 {
        let key = open(&*store, id, if id % 2 == 0 { "even" } else { "odd" }, id).await;
        appends.push(append(key, vec![chunk(1, 0), item(2, ItemKind::Stacks, None)]));
        appends.push(append(key, vec![chunk(3, 0)]));
    }
    appends.reverse();
    // The later half of each session is stored first, and its durable seq already makes the earlier half durable.
    store.append(appends.clone()).await.unwrap();
    assert_eq!(store.totals().await.unwrap().events, 40 * 10);
    appends.reverse();
    store.append(appends).await.unwrap();
    assert_eq!(store.totals().await.unwrap().events, 40 * 10);
}

pub async fn many_append_at_once(store: Arc<dyn Store>) {
    let mut keys = Vec::new();
    for id in 0..4 {
        keys.push(open(&*store, id, "job", id).await);
    }
    // Each session has two senders, each with all items. The second sender finds them stored.
    let tasks: Vec<_> = (0..8)
        .map(|sender| {
            let (store, keys) = (store.clone(), keys.clone());
            tokio::spawn(async move {
                for first in (1..60).step_by(3) {
                    let appends =
                        keys.iter().cycle().skip(sender).take(4).map(|&key| {
                            append(key, (first..first + 3).map(|seq| chunk(seq, (seq % 2) as u8)).collect())
                        });
                    store.append(appends.collect()).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for &key in &keys {
        let mut seqs = chunk_seqs(&*store, key, 0).await;
        seqs.extend(chunk_seqs(&*store, key, 1).await);
        seqs.sort_unstable();
        assert_eq!(seqs, (1..61).collect::<Vec<u64>>());
    }
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.events, totals.stored_bytes), (4 * 600, 4 * 6000));
}

pub async fn large_payloads_survive(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let sizes = [4 << 20, 0, 1, 65_536, 8 << 20, (4 << 20) - 1];
    let items: Vec<_> =
        (1..).zip(sizes).map(|(seq, len)| NewItem { payload: payload(seq, len), ..chunk(seq, 0) }).collect();
    store.append(vec![append(key, items.clone())]).await.unwrap();
    let seqs: Vec<u64> = (1..=6).collect();
    let back = store.payloads(key, &seqs).await.unwrap();
    assert!(back.into_iter().map(|(_, payload)| payload).eq(items.iter().map(|item| item.payload.clone())));
    assert_eq!(row(&*store).await.stored_bytes, sizes.iter().sum::<usize>() as u64);
    let mut too_large = chunk(7, 0);
    too_large.payload = payload(7, (8 << 20) + 1);
    let error = store.append(vec![append(key, vec![too_large])]).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
}

pub async fn ten_thousand_items(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let items: Vec<_> =
        (1..=10_000).map(|seq| if seq % 4 == 0 { item(seq, ItemKind::Marks, None) } else { chunk(seq, 0) }).collect();
    store.append(vec![append(key, items)]).await.unwrap();
    assert_eq!(chunk_seqs(&*store, key, 0).await.len(), 7_500);
    let marks = store.items(key, ItemKind::Marks, None, Selection::default()).await.unwrap();
    assert!(marks.iter().map(|row| row.seq).eq((1..=2_500).map(|n| n * 4)));
    let seqs: Vec<u64> = (1..=10_000).rev().collect();
    let payloads = store.payloads(key, &seqs).await.unwrap();
    assert!(payloads.iter().all(|(seq, bytes)| *bytes == payload(*seq, if seq % 4 == 0 { 50 } else { 100 })));
    assert!(payloads.into_iter().map(|(seq, _)| seq).eq(seqs));
}

pub async fn a_caller_that_goes_away_leaves_all_or_nothing(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let mut stored = 0;
    for round in 0..40_u64 {
        let first = stored + 1;
        let sent = append(key, (first..first + 20).map(|seq| chunk(seq, 0)).collect());
        // The future is polled a number of times and then dropped, so the transaction stops at any point.
        let polls = round;
        let mut future = Box::pin(store.append(vec![sent]));
        let mut left = polls;
        std::future::poll_fn(|cx| {
            if left == 0 {
                return std::task::Poll::Ready(());
            }
            left -= 1;
            match future.as_mut().poll(cx) {
                std::task::Poll::Ready(_) => std::task::Poll::Ready(()),
                std::task::Poll::Pending => std::task::Poll::Pending,
            }
        })
        .await;
        drop(future);
        // The next writer works, and it finds only complete appends.
        store.append(vec![append(key, Vec::new())]).await.unwrap();
        let session = row(&*store).await;
        stored = session.durable_seq;
        assert_eq!(stored % 20, 0);
        assert_eq!(session.events, stored * 10);
        assert_eq!(chunk_seqs(&*store, key, 0).await.len() as u64, stored);
    }
    store.append(vec![append(key, vec![chunk(stored + 1, 0)])]).await.unwrap();
    assert_eq!(row(&*store).await.durable_seq, stored + 1);
}
