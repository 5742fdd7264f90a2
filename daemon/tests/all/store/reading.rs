//! Reading: what a selection selects, orders, payloads, keyframes.

use std::sync::Arc;

use memctl_daemon::store::{HOLDERS_KEPT, HoldersRow, ItemPage, NewItem, PAGE_BYTES, Selection, Store, WatchRow};
use memctl_proto::v1::ItemKind;

use super::made::{append, chunk, item, keyframe, open};

/// Selections with bounds at, before and behind the edges of what is stored.
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
    // Every range of neighbours and every range from one edge to the end, which includes empty and reversed ones.
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
    // An empty one, and one whose events and times overlap its neighbours'.
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
    let job = store.job(Some("job"), None).await.unwrap().unwrap().key;
    store.delete_job(job).await.unwrap();
    store.put_watch(one, &row(8, b"late")).await.unwrap();
    assert_eq!(store.watch(one).await.unwrap(), None, "of a session that is gone nothing is kept");
}

pub async fn answers_about_holders_are_kept_with_their_session(store: Arc<dyn Store>) {
    let (one, other) = (open(&*store, 1, "job", 0).await, open(&*store, 2, "job", 1).await);
    let job = store.job(Some("job"), None).await.unwrap().unwrap().key;
    let row = |session, asked_ns, answer: &'static [u8]| HoldersRow { session, asked_ns, answer: answer.into() };
    let before = store.kept_bytes().await.unwrap()[0].1;
    for (session, asked_ns) in [(other, 5), (one, 9), (one, 3)] {
        store.put_holders(&row(session, asked_ns, b"\0answer")).await.unwrap();
    }
    store.put_holders(&row(one, 9, b"later")).await.unwrap();
    let kept = store.holders(job).await.unwrap();
    assert_eq!(kept, [row(one, 3, b"\0answer"), row(one, 9, b"later"), row(other, 5, b"\0answer")]);
    assert_eq!(store.kept_bytes().await.unwrap()[0].1, before + 19, "they count");
    // The oldest of a session goes where there are too many, and no other's.
    for asked_ns in 10..10 + HOLDERS_KEPT as u64 {
        store.put_holders(&row(one, asked_ns, b"x")).await.unwrap();
    }
    let kept: Vec<(i64, u64)> =
        store.holders(job).await.unwrap().into_iter().map(|row| (row.session, row.asked_ns)).collect();
    let expected = (10..10 + HOLDERS_KEPT as u64).map(|asked_ns| (one, asked_ns)).chain([(other, 5)]);
    assert_eq!(kept, expected.collect::<Vec<_>>());
    store.delete_job(job).await.unwrap();
    store.put_holders(&row(one, 8, b"late")).await.unwrap();
    assert!(store.holders(job).await.unwrap().is_empty(), "of a session that is gone nothing is kept");
}
