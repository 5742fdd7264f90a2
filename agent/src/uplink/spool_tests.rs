//! Tests of the spool. Appended items are read back, also after a crash at any byte. The limit holds. Acknowledged
//! segments are deleted.

use std::fs;

use memctl_model::{DeviceInfo, SessionId};
use proptest::prelude::*;

use super::*;

/// A session for tests of spool and outbox.
pub fn session() -> SessionInfo {
    SessionInfo { rank: 1, devices: vec![DeviceInfo::default()], ..SessionInfo::live(SessionId([7; 16]), "j", 1) }
}

fn item(seq: u64, bytes: usize) -> v1::Item {
    v1::Item { seq, kind: 1, payload: vec![seq as u8; bytes].into(), unpacked_bytes: 0 }
}

fn contents(spool: &mut Spool) -> Vec<v1::Item> {
    let places: Vec<_> = spool.places().collect();
    places.into_iter().map(|(seq, place)| spool.read(place, seq).unwrap()).collect()
}

fn segment_file(folder: &Path) -> PathBuf {
    segment_paths(&folder.join(session().id.to_string())).unwrap().into_values().next().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_crash_at_any_byte_keeps_the_whole_records_before_it(sizes in proptest::collection::vec(0_usize..300, 1..12), cut in 0.0..1.0) {
        let folder = tempfile::tempdir().unwrap();
        let items: Vec<v1::Item> = sizes.iter().enumerate().map(|(index, &bytes)| item(index as u64 + 1, bytes)).collect();
        let mut ends = Vec::new();
        {
            let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
            for item in &items {
                let place = spool.append(item).unwrap();
                ends.push(place.offset + u64::from(place.bytes));
            }
            prop_assert_eq!(&contents(&mut spool), &items);
        }
        let file = segment_file(folder.path());
        let len = fs::metadata(&file).unwrap().len();
        let kept = (len as f64 * cut) as u64;
        OpenOptions::new().write(true).open(&file).unwrap().set_len(kept).unwrap();
        let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
        let whole = ends.iter().filter(|&&end| end <= kept).count();
        prop_assert_eq!(&contents(&mut spool), &items[..whole]);
        // The spool continues after the cut.
        let next = item(99, 10);
        spool.append(&next).unwrap();
        prop_assert_eq!(contents(&mut spool).pop(), Some(next));
    }
}

#[test]
fn a_flipped_byte_ends_the_segment_there() {
    let folder = tempfile::tempdir().unwrap();
    let second = {
        let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
        spool.append(&item(1, 50)).unwrap();
        spool.append(&item(2, 50)).unwrap()
    };
    let file = segment_file(folder.path());
    let mut bytes = fs::read(&file).unwrap();
    bytes[second.offset as usize + 20] ^= 1;
    fs::write(&file, bytes).unwrap();
    let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
    assert_eq!(contents(&mut spool), [item(1, 50)]);
}

#[test]
fn a_segment_without_a_header_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    {
        let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
        spool.append(&item(1, 5)).unwrap();
    }
    let file = segment_file(folder.path());
    fs::write(&file, b"nonsense").unwrap();
    let spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
    assert_eq!(spool.places().count(), 0);
    assert!(!file.exists());
}

#[test]
fn its_limit_holds_and_acknowledged_segments_give_room_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path(), &session(), 20 << 20).unwrap();
    let mut last = 0;
    while spool.append(&item(last + 1, 1 << 20)).is_some() {
        last += 1;
    }
    assert!(last >= 18 && spool.bytes() <= 20 << 20, "{last} items, {} bytes", spool.bytes());
    spool.forget(last - 1);
    assert!(spool.bytes() < 9 << 20, "only the open segment is left, {} bytes", spool.bytes());
    assert!(spool.append(&item(last + 1, 1 << 20)).is_some());
    assert_eq!(spool.places().map(|(seq, _)| seq).collect::<Vec<_>>(), [last, last + 1]);
}

#[test]
fn one_owner_and_orphans_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
    spool.append(&item(1, 5)).unwrap();
    assert!(Spool::open(folder.path(), &session(), u64::MAX).is_err(), "a second owner");
    assert!(Spool::orphans(folder.path()).is_empty(), "its owner lives");
    drop(spool);
    let mut orphans = Spool::orphans(folder.path());
    assert_eq!(orphans.len(), 1);
    assert_eq!(orphans[0].session(), &session());
    orphans[0].forget(1);
    drop(orphans);
    assert!(Spool::orphans(folder.path()).is_empty(), "delivered spools leave nothing behind");
}

#[test]
fn a_tail_torn_at_any_byte_is_delivered_up_to_the_tear() {
    let folder = tempfile::tempdir().unwrap();
    let items: Vec<v1::Item> = (1..=4).map(|seq| item(seq, 20)).collect();
    let mut ends = Vec::new();
    {
        let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
        for item in &items {
            let place = spool.append(item).unwrap();
            ends.push(place.offset + u64::from(place.bytes));
        }
    }
    let file = segment_file(folder.path());
    let whole = fs::read(&file).unwrap();
    let header = ends[0] as usize - 8 - items[0].encoded_len();
    // The file is truncated, or has its full length with the bytes that a disk leaves when the rest was never written.
    for (tear, filling) in (header..=whole.len()).flat_map(|tear| [(tear, None), (tear, Some(0)), (tear, Some(0xff))]) {
        let mut torn = whole[..tear].to_vec();
        if let Some(byte) = filling {
            torn.resize(whole.len() + 100, byte);
        }
        fs::write(&file, &torn).unwrap();
        let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
        // A byte that is the same as the filling is not damaged.
        let same = torn.iter().zip(&whole).take_while(|(left, right)| left == right).count();
        let kept = ends.iter().filter(|&&end| end as usize <= same).count();
        assert_eq!(contents(&mut spool), items[..kept], "torn at {tear}, {filling:?}");
        spool.append(&item(9, 5)).unwrap();
        assert_eq!(contents(&mut spool).len(), kept + 1);
    }
}

#[test]
fn what_was_written_is_synced_once() {
    use std::sync::atomic::{AtomicU32, Ordering};

    let folder = tempfile::tempdir().unwrap();
    let (files, folders) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut spool = Spool::open(folder.path(), &session(), u64::MAX).unwrap();
    let counts = (files.clone(), folders.clone());
    spool.sync = Arc::new(move |file| {
        let count = if file.metadata()?.is_dir() { &counts.1 } else { &counts.0 };
        // Relaxed: one thread.
        count.fetch_add(1, Ordering::Relaxed);
        file.sync_data()
    });
    let window = crate::uplink::window::Window::new(1, Some(spool));
    let synced = || (files.load(Ordering::Relaxed), folders.load(Ordering::Relaxed));
    window.sync();
    assert_eq!(synced(), (0, 0), "nothing was written");
    let push = || {
        let packed = memctl_proto::item::Packed::chunk(vec![7; 5 << 20].into());
        window.push(crate::uplink::outgoing::Outgoing { packed, events: 1 }, &|| None)
    };
    window.set_linked(false);
    push();
    push();
    assert!(!window.is_synced());
    window.sync();
    assert_eq!(synced(), (1, 1), "a segment and its name");
    window.sync();
    assert_eq!(synced(), (1, 1), "it is there already");
    push();
    push();
    window.sync();
    assert_eq!(synced(), (2, 2), "a full segment, and the next one");
    push();
    window.close();
    assert!(window.is_synced(), "the end is synced without being asked");
    assert_eq!(synced(), (3, 3));
}
