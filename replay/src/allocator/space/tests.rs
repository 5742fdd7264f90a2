//! Tests of the driver's address space: placements as observed on a device, and bounds.

use super::*;

const MIB: u64 = 1 << 20;
const TOP: u64 = FROM / MIB;

/// Places a segment as the driver would; returns its distance in MiB below the first address.
fn place(space: &mut Space, mib: u64) -> u64 {
    let place = space.find(mib * MIB);
    space.enter(place, mib * MIB);
    match place {
        Place::Hole(addr) | Place::Old(addr) | Place::New(Some(addr)) => TOP - addr / MIB,
        Place::New(None) => panic!("no address is left"),
    }
}

fn give_back(space: &mut Space, below: u64, mib: u64) {
    space.give_back((TOP - below) * MIB, mib * MIB);
}

/// The kinds of placements that were observed on an H100.
#[test]
fn chunks_are_filled_returned_and_placed_as_the_driver_does() {
    let mut one = Space::default();
    assert_eq!(place(&mut one, 20), 32);
    assert_eq!(place(&mut one, 2), 12, "into the chunk");
    assert_eq!(place(&mut one, 20), 64);
    assert_eq!(place(&mut one, 12), 44);
    assert_eq!(place(&mut one, 254), 320);
    assert_eq!(place(&mut one, 20), 352);
    give_back(&mut one, 64, 20);
    give_back(&mut one, 44, 12);
    assert_eq!(place(&mut one, 20), 384, "a gap of exactly its chunk is none");
    give_back(&mut one, 320, 254);
    assert_eq!(place(&mut one, 20), 64, "the upper end of a larger one: gaps join");
    assert_eq!(place(&mut one, 14), 96, "no hole is large enough: those of two chunks do not join");
    assert_eq!(place(&mut one, 2), 82, "the newest chunk");
}

#[test]
fn in_a_chunk_the_smallest_hole_is_taken() {
    let mut one = Space::default();
    let begins = [30, 2, 2, 2].map(|mib| place(&mut one, mib));
    assert_eq!(begins, [32, 2, 64, 62]);
    let rest = place(&mut one, 10);
    assert_eq!((rest, place(&mut one, 2)), (60, 50));
    give_back(&mut one, 60, 10);
    give_back(&mut one, 64, 2);
    assert_eq!(place(&mut one, 2), 64, "2 MiB, not 10");
}

#[test]
fn segments_right_below_each_other_have_no_chunks() {
    let mut one = Space::default();
    for n in 1..4 {
        one.adopt(FROM - n * 22 * MIB - 6 * MIB, 20 * MIB);
    }
    assert!(!one.has_chunks());
    assert_eq!((place(&mut one, 20), place(&mut one, 2)), (92, 94));
}

/// A program that releases its cache all the time, on a driver without chunks. Its segments come in other orders and
/// sizes each time.
#[test]
fn what_says_nothing_any_more_is_forgotten() {
    let mut one = Space::default();
    for round in 0..500 {
        let sizes: Vec<u64> = (0..20).map(|n| 2 + (n * 7 + round * 3) % 38 / 2 * 2).collect();
        let mut below = FROM - 6 * MIB;
        let mut made = Vec::new();
        for mib in sizes {
            below -= (mib + 2) * MIB;
            one.adopt(below, mib * MIB);
            made.push((below, mib * MIB));
        }
        made.into_iter().for_each(|(addr, size)| one.give_back(addr, size));
    }
    assert!(one.chunks.len() < 500, "{} chunks", one.chunks.len());
    assert_eq!(one.chunks.len(), one.begins.len());
}

#[test]
fn what_contradicts_itself_stays_in_bounds() {
    let mut one = Space::default();
    for (addr, mib) in [(0, 2), (2, 2), (40, 20), (30, 20), (4, 2), (64, 1)] {
        one.adopt(addr * MIB, mib * MIB);
    }
    assert_eq!(one.find(100 * MIB), Place::New(None));
    for (addr, mib) in [(40, 20), (0, 2), (64, 1), (2, 2), (7, 7)] {
        one.give_back(addr * MIB, mib * MIB);
    }
    assert_eq!(one.find(2 * MIB), one.find(2 * MIB));
}
