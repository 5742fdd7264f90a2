//! Tests of the outbox: order, bounds, acknowledgement, and its behaviour when nothing is taken from it.

use std::sync::Arc;

use memctl_model::SessionEnd;
use memctl_proto::item::Packed;
use memctl_proto::v1::ItemKind;

use super::*;

fn outgoing(bytes: usize, events: u64) -> Outgoing {
    Outgoing { packed: Packed { kind: ItemKind::Chunk, payload: vec![1; bytes].into(), unpacked_bytes: 0 }, events }
}

fn now() -> Option<Instant> {
    Some(Instant::now())
}

fn never() -> Option<Instant> {
    None
}

#[test]
fn items_are_numbered_kept_and_forgotten_when_acknowledged() {
    let window = Window::new(1 << 20, None);
    for events in 1..=3 {
        assert_eq!(window.push(outgoing(100, events), &never), Pushed::AtOnce);
    }
    assert_eq!(window.after(0).unwrap().unwrap().seq, 1);
    assert_eq!(window.after(2).unwrap().unwrap().seq, 3);
    assert_eq!(window.after(3).unwrap(), None);
    assert_eq!(window.counts().waiting_events, 6);
    window.ack(2);
    let counts = window.counts();
    assert_eq!((counts.acked_events, counts.waiting_events, counts.acked_seq), (3, 3, 2));
    assert_eq!(window.after(0).unwrap().unwrap().seq, 3);
    window.ack(3);
    assert!(window.is_drained());
    assert_eq!(window.counts().waiting_bytes, 0);
}

#[test]
fn a_daemon_that_knows_more_than_was_made_is_not_resumed() {
    let window = Window::new(1 << 20, None);
    window.push(outgoing(10, 5), &never);
    assert!(!window.resume(2), "another agent recorded this session");
    assert!(window.resume(1));
    assert!(window.is_drained());
}

#[test]
fn a_full_outbox_waits_and_goes_on_when_there_is_room() {
    let window = Arc::new(Window::new(250, None));
    window.push(outgoing(100, 1), &never);
    window.push(outgoing(100, 1), &never);
    assert_eq!(window.push(outgoing(100, 9), &now), Pushed::Abandoned, "full, and the deadline is now");
    assert_eq!(window.counts().abandoned_events, 9);
    let waiting = {
        let window = window.clone();
        std::thread::spawn(move || window.push(outgoing(100, 1), &never))
    };
    while !waiting.is_finished() {
        window.ack(1);
    }
    // The push may run after the acknowledgement. Then there was room at once.
    assert_ne!(waiting.join().unwrap(), Pushed::Abandoned);
    assert_eq!(window.counts().last_seq, 4, "the abandoned one used up a number");
}

#[test]
fn without_a_link_everything_unacknowledged_is_spooled_and_survives() {
    let folder = tempfile::tempdir().unwrap();
    let session = crate::uplink::spool::tests_session();
    {
        let window = Window::new(1 << 20, Some(Spool::open(folder.path(), &session, u64::MAX).unwrap()));
        window.push(outgoing(100, 1), &never);
        assert_eq!(window.counts().spooled_bytes, 0, "linked, and there is room in memory");
        window.set_linked(false);
        assert!(window.counts().spooled_bytes > 0);
        window.push(outgoing(100, 1), &never);
        assert_eq!(window.close(), 0, "everything is in the spool");
    }
    let spool = Spool::orphans(folder.path()).pop().unwrap();
    let window = Window::recovered(spool);
    assert_eq!(window.after(0).unwrap().unwrap().seq, 1);
    assert_eq!(window.after(1).unwrap().unwrap().seq, 2);
    window.ack(2);
    assert!(window.is_drained());
    assert_eq!(window.counts().spooled_bytes, 0);
}

#[test]
fn memory_is_bounded_and_the_spool_takes_the_rest_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let session = crate::uplink::spool::tests_session();
    let window = Window::new(500, Some(Spool::open(folder.path(), &session, 1 << 20).unwrap()));
    for _ in 0..50 {
        assert_eq!(window.push(outgoing(100, 1), &now), Pushed::AtOnce);
    }
    assert!(window.lock().memory_bytes <= 500);
    let mut seq = 0;
    while let Some(item) = window.after(seq).unwrap() {
        assert_eq!(item.seq, seq + 1);
        seq = item.seq;
    }
    assert_eq!(seq, 50);
}

#[test]
fn a_closed_outbox_counts_what_it_gives_up() {
    let window = Window::new(1 << 20, None);
    window.push(outgoing(100, 4), &never);
    let end = Outgoing { packed: Packed::end(&SessionEnd::default()), events: 0 };
    window.push(end, &never);
    assert_eq!(window.close(), 4);
    let counts = window.counts();
    assert_eq!((counts.abandoned_events, counts.abandoned_items), (4, 2));
    assert_eq!((counts.waiting_events, counts.waiting_bytes), (0, 0));
    assert!(window.is_drained());
}

#[test]
fn an_acknowledgement_after_the_end_finds_its_counts_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let session = crate::uplink::spool::tests_session();
    let window = Window::new(1 << 20, Some(Spool::open(folder.path(), &session, u64::MAX).unwrap()));
    window.push(outgoing(100, 4), &never);
    assert_eq!(window.close(), 0, "it is in the spool");
    window.ack(1);
    assert!(window.is_drained());
    assert_eq!(window.lock().memory_bytes, 0);
}

#[test]
fn a_push_that_waits_hears_of_a_deadline_set_meanwhile() {
    let window = Arc::new(Window::new(150, None));
    window.push(outgoing(100, 1), &never);
    let deadline = Arc::new(Mutex::new(None));
    let waiting = {
        let (window, deadline) = (window.clone(), deadline.clone());
        std::thread::spawn(move || window.push(outgoing(100, 3), &|| *deadline.lock().unwrap()))
    };
    *deadline.lock().unwrap() = Some(Instant::now());
    assert_eq!(waiting.join().unwrap(), Pushed::Abandoned);
    assert_eq!(window.counts().abandoned_events, 3);
    assert_eq!(window.counts().last_seq, 2, "its number is used up");
}

#[test]
fn what_the_spool_cannot_take_is_in_the_last_word_which_it_takes_in_any_case() {
    let folder = tempfile::tempdir().unwrap();
    let session = crate::uplink::spool::tests_session();
    {
        let window = Window::new(1 << 20, Some(Spool::open(folder.path(), &session, 2_000).unwrap()));
        window.push(outgoing(1_000, 4), &never);
        window.push(outgoing(3_000, 5), &never);
        let end = SessionEnd { produced: 9, ..SessionEnd::default() };
        window.push_last(Packed::end(&end));
        assert_eq!(window.close(), 5);
        assert_eq!((window.counts().abandoned_events, window.counts().waiting_events), (5, 4));
    }
    let window = Window::recovered(Spool::orphans(folder.path()).pop().unwrap());
    assert_eq!(window.after(0).unwrap().unwrap().seq, 1);
    let last = window.after(1).unwrap().unwrap();
    assert_eq!(last.seq, 3, "what is missing shows");
    let Content::End(end) = Packed::from_item(&last).unwrap().open().unwrap() else { panic!("another kind") };
    assert_eq!((end.produced, end.dropped.spool_full, end.dropped.shutdown), (9, 5, 0));
}

#[test]
fn the_last_word_finds_room_where_nothing_else_does() {
    let window = Window::new(150, None);
    window.push(outgoing(100, 4), &never);
    assert_eq!(window.push(outgoing(100, 4), &now), Pushed::Abandoned);
    window.push_last(Packed::end(&SessionEnd::default()));
    assert_eq!(window.after(1).unwrap().unwrap().seq, 3);
    window.ack(3);
    assert!(window.is_drained());
    assert_eq!(window.counts().waiting_bytes, 0);
}

#[test]
fn what_comes_after_it_was_given_up_is_on_disk_with_the_last_word() {
    let folder = tempfile::tempdir().unwrap();
    let session = crate::uplink::spool::tests_session();
    {
        let window = Window::new(1 << 20, Some(Spool::open(folder.path(), &session, u64::MAX).unwrap()));
        assert_eq!(window.close(), 0, "there was nothing yet");
        assert_eq!(window.push(outgoing(100, 4), &never), Pushed::AtOnce);
        window.push_last(Packed::end(&SessionEnd::default()));
        assert_eq!(window.close(), 0);
    }
    let window = Window::recovered(Spool::orphans(folder.path()).pop().unwrap());
    let kinds = [0, 1].map(|seq| window.after(seq).unwrap().unwrap().kind());
    assert_eq!(kinds, [ItemKind::Chunk, ItemKind::End]);
}
