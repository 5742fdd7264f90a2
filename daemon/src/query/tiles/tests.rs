//! Compares tiles with the events themselves, for arbitrary chunks, levels and earlier requests.

use memctl_analysis::{Birth, BlockMap};
use memctl_model::{
    Action, AllocatorSettings, DeviceIndex, DeviceInfo, Dropped, Event, KeyframeReason, Levels, Mark, Rollup,
    SessionEnd, SessionId, SessionInfo, SourceKind,
};
use memctl_proto::chunk::{ChunkMeta, Encoder};
use memctl_proto::item::Packed;
use proptest::prelude::*;

use super::*;
use crate::ingest::prepare::{Scale, prepare};
use crate::store::{Append, SqliteStore};

/// The time at which the recording begins.
const BEGIN_NS: u64 = 1_780_000_000_000_000_000;

/// Pseudo-random numbers.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Events that allocate and free blocks and segments.
pub(crate) fn events(seed: u64, count: usize) -> Vec<Event> {
    let (mut drawn, mut time_ns, mut live) = (Drawn(seed), BEGIN_NS, [0_u64; 64]);
    let mut events = Vec::with_capacity(count + 1);
    while events.len() < count {
        time_ns += drawn.below(3_000) * u64::from(drawn.below(9) > 0);
        let place = drawn.below(64);
        let mut push = |action, addr, size| events.push(Event { time_ns, action, addr, size, ..Event::default() });
        let addr = (place + 1) << 32;
        let is_segment = place < 4;
        match (is_segment, std::mem::take(&mut live[place as usize])) {
            (true, 0) => {
                live[place as usize] = (1 + drawn.below(9)) << 21;
                push(Action::SegmentAlloc, addr, live[place as usize]);
            }
            (true, size) => push(Action::SegmentFree, addr, size),
            (false, 0) => {
                live[place as usize] = (1 + drawn.below(4_096)) * 512;
                push(Action::Alloc, addr, live[place as usize]);
            }
            (false, size) => {
                push(Action::FreeRequested, addr, size);
                push(Action::FreeCompleted, addr, size);
            }
        }
    }
    events
}

fn info() -> SessionInfo {
    SessionInfo {
        source: SourceKind::Import,
        devices: vec![DeviceInfo::default()],
        resolution_ns: 1,
        ..SessionInfo::live(SessionId([7; 16]), "j", 1)
    }
}

/// A store with these events, and the levels after each of them.
pub(crate) struct TileStore {
    pub store: SqliteStore,
    levels: Vec<(u64, Levels)>,
}

/// Items in the form that an agent sends: chunks of `length` events, with a keyframe after every third chunk.
fn items(events: &[Event], length: usize, levels: &mut Vec<(u64, Levels)>) -> Vec<Packed> {
    let mut map = BlockMap::new(&AllocatorSettings::default());
    let (mut encoder, mut items, mut first_event) = (Encoder::new(1).unwrap(), Vec::new(), 0);
    for (at, chunk) in events.chunks(length).enumerate() {
        let start = map.levels();
        let mut rollup = Rollup { start, min: start, max: start, exact: true, ..Rollup::default() };
        for (index, event) in chunk.iter().enumerate() {
            encoder.push(event).unwrap();
            map.apply(event, Birth::default());
            let now = map.levels();
            levels.push((event.time_ns, now));
            let (allocated, reserved) = (now.allocated_bytes, now.reserved_bytes);
            let (min, max) = (&mut rollup.min, &mut rollup.max);
            if index == 0 {
                (*min, *max) = (now, now);
            }
            min.allocated_bytes = min.allocated_bytes.min(allocated);
            max.allocated_bytes = max.allocated_bytes.max(allocated);
            max.reserved_bytes = max.reserved_bytes.max(reserved);
        }
        rollup.end = map.levels();
        let meta = ChunkMeta { device: DeviceIndex(0), first_event, rollup };
        items.push(Packed::chunk(encoder.finish(&meta).unwrap().into()));
        first_event += chunk.len() as u64;
        if at % 3 == 2 {
            let time_ns = chunk.last().unwrap().time_ns;
            let keyframe = map.keyframe(DeviceIndex(0), first_event, time_ns, KeyframeReason::Periodic);
            items.push(Packed::keyframe(&keyframe));
        }
    }
    items
}

pub(crate) async fn append(store: &SqliteStore, first_seq: u64, items: &[Packed]) -> u64 {
    let key = store.open_session(&info(), 1).await.unwrap().key;
    let mut append = Append {
        session: key,
        items: Vec::new(),
        gaps: Vec::new(),
        durable_seq: first_seq - 1 + items.len() as u64,
        duplicates: 0,
        heard_ns: 1,
        devices: Vec::new(),
        epoch_ends: Vec::new(),
        end: None,
        dropped: Dropped::default(),
    };
    for (seq, packed) in (first_seq..).zip(items) {
        let prepared = prepare(key, &[0], &packed.clone().numbered(seq), &Scale::default()).unwrap();
        append.items.push(prepared.item);
        append.devices.extend(prepared.devices);
        append.end = prepared.end.or(append.end);
    }
    let durable_seq = append.durable_seq;
    store.append(vec![append]).await.unwrap();
    durable_seq + 1
}

pub(crate) async fn stored(events: &[Event], length: usize) -> TileStore {
    let (store, mut levels) = (SqliteStore::in_memory().await.unwrap(), Vec::new());
    let mut items = items(events, length, &mut levels);
    let produced = events.len() as u64;
    items.push(Packed::end(&SessionEnd { time_ns: u64::MAX >> 2, produced, ..SessionEnd::default() }));
    append(&store, 1, &items).await;
    TileStore { store, levels }
}

fn selection() -> v1::Selection {
    v1::Selection { job: "j".into(), ranks: vec![0], ..v1::Selection::default() }
}

impl TileStore {
    /// The expected slot, computed directly from the events; `None` if nothing was known.
    fn directly(&self, start_ns: u64, end_ns: u64) -> Option<[u64; COLUMNS.len()]> {
        let from = self.levels.partition_point(|(time, _)| *time < start_ns);
        let to = self.levels.partition_point(|(time, _)| *time < end_ns);
        let all = || self.levels[from.saturating_sub(1)..to].iter().map(|(_, levels)| levels);
        let allocated = || all().map(|levels| levels.allocated_bytes);
        let last = all().next_back()?;
        let reserved_max = all().map(|levels| levels.reserved_bytes).max()?;
        Some([allocated().min()?, allocated().max()?, last.allocated_bytes, reserved_max, last.reserved_bytes])
    }

    fn begin(&self) -> u64 {
        self.levels[0].0
    }

    fn end(&self) -> u64 {
        self.levels[self.levels.len() - 1].0
    }

    async fn tile(&self, tiles: &Tiles, place: Place) -> Tile {
        tiles.tile(&self.store, &selection(), place, None).await.unwrap()
    }

    /// Compares every slot of a tile with the events, and checks that no slot is missing.
    fn compare(&self, place: Place, tile: &Tile) {
        let (begin, end) = place.times_ns().unwrap();
        let exact = tile.head.detail == "events";
        assert_eq!(tile.head.count as usize, tile.slots.len());
        for slot in 0..SLOTS {
            let start = begin + slot * place.slot_ns();
            let at = slot.checked_sub(tile.head.first_slot).and_then(|at| tile.slots.get(at as usize));
            let direct = self.directly(start, start + place.slot_ns()).filter(|_| start <= self.end());
            match (at, direct) {
                (Some(listed), Some(direct)) if exact => assert_eq!(*listed, direct, "slot {slot} of {place:?}"),
                (Some(listed), Some(direct)) => {
                    assert!(
                        listed[0] <= direct[0] && listed[1] >= direct[1] && listed[3] >= direct[3],
                        "{slot} of {place:?}"
                    );
                }
                (None, None) => {}
                // A run or chunk that begins before the recording's first slot is placed where it begins.
                (listed, direct) => panic!("slot {slot} of {place:?} ({begin} to {end}): {listed:?} and {direct:?}"),
            }
        }
    }

    fn places(&self, level: u32) -> impl Iterator<Item = Place> {
        let length = SLOTS << level;
        (self.begin() / length..=self.end() / length).map(move |index| Place { level, index })
    }
}

fn now<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_tile_is_what_the_events_say(
        seed in any::<u64>(),
        count in 1_usize..6_000,
        length in 1_usize..900,
        level in 8_u32..24,
        fine in prop::sample::select(vec![0_u64, 700, 1 << 40]),
        outlined in prop::sample::select(vec![0_u64, 3_000, 1 << 40]),
    ) {
        now(async {
            let stored = stored(&events(seed, count), length).await;
            let bounds = Bounds { fine, outlined, marked: 0, stretch: 1_000 };
            let tiles = Tiles::bounded(bounds);
            // Tests the first tiles and the last one.
            let all: Vec<Place> = stored.places(level).collect();
            for place in all.iter().take(20).chain(all.last()).copied() {
                let mut tile = stored.tile(&tiles, place).await;
                stored.compare(place, &tile);
                // Each further request returns more detail, until the tile is complete.
                while tile.head.coarse_chunks > 0 {
                    assert!(!tile.head.is_final);
                    let better = stored.tile(&tiles, place).await;
                    assert!(better.head.coarse_chunks < tile.head.coarse_chunks);
                    stored.compare(place, &better);
                    tile = better;
                }
                assert!(tile.head.is_final);
                let again = stored.tile(&tiles, place).await;
                assert_eq!(again.bytes().unwrap(), tile.bytes().unwrap(), "what is final never changes");
            }
        });
    }
}

#[test]
fn a_tile_says_how_it_was_made() {
    now(async {
        let stored = stored(&events(1, 5_000), 250).await;
        let place = Place { level: 40, index: BEGIN_NS / (SLOTS << 40) };
        for (fine, outlined, detail) in [(5_100, 9_000, "events"), (4_000, 9_000, "runs"), (4_000, 4_500, "chunks")] {
            let tiles = Tiles::bounded(Bounds { fine, outlined, marked: 0, stretch: 500 });
            let tile = stored.tile(&tiles, place).await;
            // Two of 21 chunks were replayed for the first response.
            let chunks = stored.levels.len().div_ceil(250) as u64;
            assert_eq!(
                (tile.head.detail, tile.head.coarse_chunks),
                (detail, if detail == "runs" { chunks - 2 } else { 0 })
            );
            assert_eq!(tile.head.is_final, detail != "runs");
        }
    });
}

#[test]
fn a_tile_of_what_goes_on_changes_until_it_is_over() {
    now(async {
        let (store, mut levels) = (SqliteStore::in_memory().await.unwrap(), Vec::new());
        let events = events(5, 2_000);
        let items = items(&events, 500, &mut levels);
        let (tiles, level) = (Tiles::new(), 8);
        let place = Place { level, index: levels[990].0 / (SLOTS << level) };
        let asked = selection();
        let ask = || tiles.tile(&store, &asked, place, None);
        // The second chunk ends before the tile does. The tile has the data that has arrived, and no slot after it.
        let next = append(&store, 1, &items[..2]).await;
        let before = ask().await.unwrap();
        assert!(!before.head.is_final);
        let stored = TileStore { store: SqliteStore::in_memory().await.unwrap(), levels: levels[..1_000].to_vec() };
        stored.compare(place, &before);
        append(&store, next, &items[2..]).await;
        let after = ask().await.unwrap();
        let stored = TileStore { store: SqliteStore::in_memory().await.unwrap(), levels };
        stored.compare(place, &after);
        let is_past = stored.levels[1_500].0 >= place.times_ns().unwrap().1;
        assert_eq!(after.head.is_final, is_past);
        assert!(is_past, "a later chunk says that nothing more comes");
    });
}

#[test]
fn a_tile_has_its_marks_and_refuses_another_session() {
    now(async {
        let (store, events) = (SqliteStore::in_memory().await.unwrap(), events(9, 400));
        let mut items = items(&events, 400, &mut Vec::new());
        let mark = |at: usize, kind| Mark { time_ns: events[at].time_ns, kind };
        items.push(Packed::marks(&[mark(10, MarkKind::StepBegin(3)), mark(300, MarkKind::StepEnd(3))], 1));
        append(&store, 1, &items).await;
        let tiles = Tiles::new();
        let place = Place { level: 40, index: BEGIN_NS / (SLOTS << 40) };
        let tile = tiles.tile(&store, &selection(), place, None).await.unwrap();
        let kinds: Vec<&str> = tile.head.marks.iter().map(|mark| &*mark.kind).collect();
        assert_eq!((kinds, tile.head.marks_left_out), (vec!["step_begin", "step_end"], 0));
        assert!(tiles.tile(&store, &selection(), place, Some(&tile.head.session)).await.is_ok());
        let other = tiles.tile(&store, &selection(), place, Some("00")).await.unwrap_err().to_string();
        assert!(other.contains("without session="), "{other}");
    });
}
