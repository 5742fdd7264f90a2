//! Tests of reading: selections, orders, payloads, keyframes.

use std::sync::Arc;

use memctl_daemon::store::{
    HOLDERS_KEPT, HoldersIndex, HoldersRow, ItemPage, JOB_HOLDERS_BYTES, JOB_HOLDERS_KEPT, NewItem, PAGE_BYTES, Says,
    Selection, Store, WatchRow, Which,
};
use memctl_proto::v1::ItemKind;

use super::made::{NOW_NS, SECOND_NS, append, chunk, holders, item, keyframe, open, session};

/// Selections with bounds at, before and after the edges of the stored items.
fn selections(items: &[NewItem]) -> Vec<Selection> {
    let around = |values: Vec<u64>| -> Vec<u64> {
        let mut edges: Vec<u64> =
            values.iter().flat_map(|&value| [value.saturating_sub(1), value, value.saturating_add(1)]).collect();
        edges.extend([0, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX]);
        edges.sort_unstable();
        edges.dedup();
        edges
    };
    let times = around(items.iter().flat_map(|item| [item.index.first_ns, item.index.last_ns]).collect());
    let events = around(
        items.iter().flat_map(|item| [item.index.first_event, item.index.first_event + item.index.count]).collect(),
    );
    let mut all = vec![Selection::default()];
    // Every range of neighbours, and every range from one edge to the end. Empty and reversed ranges are included.
    let ranges = |edges: &[u64]| -> Vec<(u64, u64)> {
        let neighbours = edges.windows(2).flat_map(|pair| [(pair[0], pair[0]), (pair[0], pair[1]), (pair[1], pair[0])]);
        neighbours.chain(edges.iter().map(|&edge| (edge, u64::MAX))).collect()
    };
    all.extend(ranges(&times).into_iter().map(|range| Selection { times_ns: Some(range), ..Selection::default() }));
    all.extend(ranges(&events).into_iter().map(|range| Selection { events: Some(range), ..Selection::default() }));
    for (from, to) in [(0, 0), (0, 1), (1, 1), (1, 2), (2, 1), (2, 2), (3, u32::MAX), (u32::MAX, u32::MAX)] {
        all.push(Selection { epochs: Some((from, to)), ..Selection::default() });
        for &range in ranges(&events).iter().step_by(3) {
            let times_ns = Some((times[times.len() / 3], times[times.len() / 2]));
            all.push(Selection { epochs: Some((from, to)), events: Some(range), times_ns });
        }
    }
    all
}

pub async fn chunks_are_selected_as_rust_says(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let other = open(&*store, 2, "job", 1).await;
    let mut items: Vec<NewItem> = (1..=24).map(|seq| chunk(seq, (seq % 2) as u8)).collect();
    // One item is empty, and another has events and times that overlap its neighbours'.
    items[6].index.count = 0;
    items[9].index.last_ns += 25_000;
    items[9].index.count = 35;
    items[9].index.last_epoch = 2;
    store.append(vec![append(key, items.clone()), append(other, vec![chunk(1, 0)])]).await.unwrap();
    let mut selected = 0;
    for selection in selections(&items[4..12]) {
        for device in 0..3 {
            let rows = store.chunks(key, device, selection).await.unwrap();
            let expected: Vec<u64> = items
                .iter()
                .filter(|item| item.index.device == Some(device) && selection.overlaps(&item.index, true))
                .map(|item| item.seq)
                .collect();
            assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), expected, "{selection:?}");
            selected += expected.len();
        }
    }
    assert!(selected > 1000, "the selections select something: {selected}");
}

pub async fn items_are_selected_as_rust_says(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let mut items = Vec::new();
    for seq in 1..=30 {
        items.push(match seq % 3 {
            0 => chunk(seq, 0),
            1 => item(seq, ItemKind::SiteTables, None),
            _ => keyframe(seq, seq * 10),
        });
    }
    items[10].index.device = Some(1);
    store.append(vec![append(key, items.clone())]).await.unwrap();
    let mut selected = 0;
    for selection in selections(&items[8..14]) {
        for kind in [ItemKind::SiteTables, ItemKind::Keyframe, ItemKind::Marks, ItemKind::Chunk] {
            for device in [None, Some(0), Some(1)] {
                let rows = store.items(key, kind, device, selection).await.unwrap();
                let expected: Vec<u64> = items
                    .iter()
                    .filter(|item| item.kind == kind && !item.is_chunk())
                    .filter(|item| device.is_none() || item.index.device == device)
                    .filter(|item| selection.overlaps(&item.index, false))
                    .map(|item| item.seq)
                    .collect();
                assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), expected, "{kind:?} {selection:?}");
                assert!(rows.iter().all(|row| row.payload == items[row.seq as usize - 1].payload));
                selected += expected.len();
            }
        }
    }
    assert!(selected > 1000, "the selections select something: {selected}");
}

pub async fn payloads_come_in_the_order_asked_for(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let other = open(&*store, 2, "job", 1).await;
    store.append(vec![append(key, vec![chunk(2, 0), item(4, ItemKind::Marks, None), chunk(6, 0)])]).await.unwrap();
    store.append(vec![append(other, vec![chunk(3, 0)])]).await.unwrap();
    let asked = [6, 3, 2, 0, 4, 2, u64::MAX, i64::MAX as u64];
    let found: Vec<u64> = store.payloads(key, &asked).await.unwrap().into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(found, [6, 2, 4, 2]);
    let items = store.items_at(key, &[6, 4, 3, 2, 4, u64::MAX]).await.unwrap();
    assert_eq!(items.iter().map(|item| item.seq).collect::<Vec<_>>(), [4, 4], "chunks are not among them");
    assert_eq!(items[0].kind, ItemKind::Marks as i32);
    assert_eq!(store.payloads(key, &[]).await.unwrap(), []);
}

pub async fn items_come_after_a_number_and_as_many_as_asked_for(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let marks = |seq| item(seq, ItemKind::Marks, None);
    let items = vec![marks(1), chunk(2, 0), marks(3), item(4, ItemKind::Samples, None), marks(5), marks(8)];
    store.append(vec![append(key, items)]).await.unwrap();
    for (after, limit, expected) in
        [(0, 10, vec![1, 3, 5, 8]), (1, 2, vec![3, 5]), (5, 9, vec![8]), (u64::MAX, 9, vec![])]
    {
        let page = store.items_after(key, ItemKind::Marks, after, limit).await.unwrap();
        assert_eq!(page.looked_to, (page.items.len() == limit as usize).then_some(5), "after {after}");
        let found = page.items;
        assert_eq!(found.iter().map(|item| item.seq).collect::<Vec<_>>(), expected, "after {after}");
        assert!(found.iter().all(|item| item.payload == super::made::payload(item.seq, 50)));
    }
    assert_eq!(store.items_after(key, ItemKind::Chunk, 0, 9).await.unwrap(), ItemPage::default());
    assert_eq!(store.items_after(key + 1, ItemKind::Marks, 0, 9).await.unwrap(), ItemPage::default());
}

pub async fn items_come_after_a_number_and_no_more_than_a_page_may_have(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let large = |seq| NewItem { payload: vec![seq as u8; 6 << 20].into(), ..item(seq, ItemKind::Marks, None) };
    for seq in 1..=7 {
        store.append(vec![append(key, vec![large(seq)])]).await.unwrap();
    }
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let page = store.items_after(key, ItemKind::Marks, after, 64).await.unwrap();
        let bytes: usize = page.items.iter().map(|item| item.payload.len()).sum();
        assert!(bytes < PAGE_BYTES as usize + (6 << 20), "{bytes} bytes");
        assert!(page.items.iter().all(|item| item.payload == vec![item.seq as u8; 6 << 20]));
        seen.extend(page.items.iter().map(|item| item.seq));
        match page.looked_to {
            Some(looked_to) => after = looked_to,
            None => break,
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7]);
}

pub async fn the_keyframe_before_an_event(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let mut other_device = keyframe(9, 500);
    other_device.index.device = Some(1);
    let items = vec![keyframe(1, 0), chunk(2, 0), keyframe(3, 100), keyframe(4, 100), keyframe(5, 200), other_device];
    store.append(vec![append(key, items)]).await.unwrap();
    for (event, seq) in [(0, 1), (99, 1), (100, 4), (199, 4), (200, 5), (600, 5), (u64::MAX, 5)] {
        let found = store.keyframe_before(key, 0, event).await.unwrap().unwrap();
        assert_eq!((found.seq, found.kind), (seq, ItemKind::Keyframe as i32), "event {event}");
        assert_eq!(found.payload, super::made::payload(seq, 50));
    }
    assert_eq!(store.keyframe_before(key, 1, 499).await.unwrap(), None);
    assert_eq!(store.keyframe_before(key, 2, 499).await.unwrap(), None);
}

pub async fn a_watch_is_kept_with_its_session(store: Arc<dyn Store>) {
    let (one, other) = (open(&*store, 1, "job", 0).await, open(&*store, 2, "job", 1).await);
    assert_eq!(store.watch(one).await.unwrap(), None);
    let row = |seq, state: &'static [u8]| WatchRow { seq, form: "1 form".to_owned(), state: state.into() };
    let before = store.kept_bytes().await.unwrap()[0].1;
    store.put_watch(one, &row(u64::MAX, b"state")).await.unwrap();
    assert_eq!(store.watch(one).await.unwrap(), Some(row(u64::MAX, b"state")));
    store.put_watch(one, &row(7, b"\0another")).await.unwrap();
    assert_eq!(store.watch(one).await.unwrap(), Some(row(7, b"\0another")), "in the place of what was kept before");
    assert_eq!(store.watch(other).await.unwrap(), None);
    assert_eq!(store.kept_bytes().await.unwrap()[0].1, before + 8, "it counts");
    let job = store.job(&Which::written("job"), None).await.unwrap().unwrap().key;
    store.delete_job(job).await.unwrap();
    store.put_watch(one, &row(8, b"late")).await.unwrap();
    assert_eq!(store.watch(one).await.unwrap(), None, "of a session that is gone nothing is kept");
}

/// The stored answers of a job: sessions and times.
async fn kept_holders(store: &dyn Store, job: i64) -> Vec<(i64, u64)> {
    store.holders_kept(job).await.unwrap().into_iter().map(|kept| (kept.session, kept.asked_ns)).collect()
}

pub async fn answers_about_holders_are_kept_with_their_session(store: Arc<dyn Store>) {
    let (one, other) = (open(&*store, 1, "job", 0).await, open(&*store, 2, "job", 1).await);
    let elsewhere = open(&*store, 3, "elsewhere", 0).await;
    let job = store.job(&Which::written("job"), None).await.unwrap().unwrap().key;
    let before = store.kept_bytes().await.unwrap()[0].1;
    let rows = [holders(one, 3, 100), holders(other, 5, 0), holders(one, 9, 7), holders(elsewhere, 1, 1)];
    for row in &rows {
        store.put_holders(row).await.unwrap();
    }
    // The time of this answer is known, but nothing about its finding.
    let mut plain = holders(other, 11, 2);
    let HoldersIndex { finding, unasked, says, counted_epoch, .. } = &mut plain.index;
    (*finding, *unasked, *says, *counted_epoch) = (None, false, Says::NoHolder, None);
    store.put_holders(&plain).await.unwrap();
    let kept: Vec<HoldersRow> = rows[..3].iter().cloned().chain([plain]).collect();
    let indexes: Vec<HoldersIndex> = kept.iter().map(|row| row.index.clone()).collect();
    assert_eq!(store.holders_kept(job).await.unwrap(), indexes);
    for row in &kept {
        let read = store.holders(job, row.index.session, row.index.asked_ns).await.unwrap();
        assert_eq!(read.as_ref(), Some(row));
    }
    for (session, asked_ns) in [(one, 4), (other, 3), (elsewhere, 1), (99, 3)] {
        assert_eq!(store.holders(job, session, asked_ns).await.unwrap(), None);
    }
    let bytes: u64 = indexes.iter().map(|kept| kept.bytes).sum();
    assert_eq!(store.kept_bytes().await.unwrap()[0].1, before + bytes + 4 * 128, "they and their rows count");
    store.delete_job(job).await.unwrap();
    store.put_holders(&holders(one, 8, 0)).await.unwrap();
    assert_eq!(kept_holders(&*store, job).await, [], "of a session that is gone nothing is kept");
    let elsewhere_job = store.job(&Which::written("elsewhere"), None).await.unwrap().unwrap().key;
    assert_eq!(kept_holders(&*store, elsewhere_job).await, [(elsewhere, 1)]);
}

pub async fn the_latest_answer_about_holders_is_the_one_that_came_last(store: Arc<dyn Store>) {
    let (one, other) = (open(&*store, 1, "job", 0).await, open(&*store, 2, "job", 1).await);
    let job = store.job(&Which::written("job"), None).await.unwrap().unwrap().key;
    // The clock was wrong and was then corrected. Two answers arrive at the same moment.
    let wrong_ns = NOW_NS + (400 * 24 * 3_600 * SECOND_NS);
    for (session, asked_ns) in [(one, wrong_ns), (one, NOW_NS), (other, NOW_NS), (one, NOW_NS)] {
        store.put_holders(&holders(session, asked_ns, 1)).await.unwrap();
    }
    assert_eq!(
        kept_holders(&*store, job).await,
        [(one, wrong_ns), (one, wrong_ns + 1), (other, wrong_ns + 2), (one, wrong_ns + 3)]
    );
    // The newest answer is never removed in favour of older ones, neither within the session nor within the job.
    for _ in 0..HOLDERS_KEPT {
        store.put_holders(&holders(one, NOW_NS, 1)).await.unwrap();
    }
    let first_ns = wrong_ns + 4;
    let expected = (0..HOLDERS_KEPT as u64).map(|at| (one, first_ns + at));
    let kept = kept_holders(&*store, job).await;
    assert_eq!(kept, [(other, wrong_ns + 2)].into_iter().chain(expected).collect::<Vec<_>>());
    store.put_holders(&holders(other, u64::MAX, 1)).await.unwrap();
    store.put_holders(&holders(other, 7, 9)).await.unwrap();
    let kept = store.holders_kept(job).await.unwrap();
    let last = kept.last().unwrap();
    assert_eq!((last.session, last.asked_ns, last.bytes), (other, i64::MAX as u64, holders(0, 0, 9).index.bytes));
}

pub async fn a_job_keeps_so_many_answers_about_holders_and_so_many_bytes(store: Arc<dyn Store>) {
    let job = store.open_session(&session(1, "job", 0), NOW_NS).await.unwrap().job;
    let mut sessions = Vec::new();
    for rank in 0..8 {
        sessions.push(open(&*store, rank + 1, "job", rank).await);
    }
    let mut asked_ns = 0;
    for _ in 0..HOLDERS_KEPT {
        for session in &sessions {
            asked_ns += 1;
            store.put_holders(&holders(*session, asked_ns, 1)).await.unwrap();
        }
    }
    let kept = kept_holders(&*store, job).await;
    let expected = (asked_ns - JOB_HOLDERS_KEPT as u64 + 1)..=asked_ns;
    assert!(kept.iter().map(|(_, asked_ns)| *asked_ns).eq(expected), "the latest of all: {kept:?}");
    for _ in 0..100 {
        asked_ns += 1;
        store.put_holders(&holders(sessions[0], asked_ns, 64 << 10)).await.unwrap();
        let bytes: u64 = store.holders_kept(job).await.unwrap().iter().map(|kept| kept.bytes).sum();
        assert!(bytes <= JOB_HOLDERS_BYTES, "{bytes}");
    }
    let kept = kept_holders(&*store, job).await;
    assert_eq!((kept.len(), kept.last()), (63, Some(&(sessions[0], asked_ns))), "63 of 64 KiB and a little fit");
}
