//! The peak memory of reading, counted by the allocator itself. It is below the pickle's size, and for skipped values
//! little more than the memo. There is only one test, because it owns the process's allocator.

use crate::pickle;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use memctl_snapshot::{HELD_BYTES_MAX, Recording, load_from};
use pickle::*;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    // Relaxed: only a statistic. The test runs alone, so nothing is read while another thread counts.
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is passed to the system's allocator unchanged; only numbers are updated in addition.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // Relaxed: as in `grow`.
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads a snapshot; returns the peak above the memory held before.
fn peak_of(bytes: &[u8]) -> (Recording, usize) {
    // Relaxed: as in `grow`.
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let recording = load_from(bytes, HELD_BYTES_MAX, &mut |_| {}).unwrap();
    (recording, PEAK.load(Ordering::Relaxed) - before)
}

/// A trace as opcodes, with keys fetched from the memo as in CPython: `n` events of torch 2.11 without stacks.
fn trace(n: u64) -> Vec<u8> {
    let mut out = b"(".to_vec();
    for i in 0..n {
        out.extend(b"}\x94(h\x01h\x02h\x03\x8a\x06");
        out.extend(&(0x7f00_0000_0000 + i * 512).to_le_bytes()[..6]);
        out.extend(b"h\x04J\x00\x02\x10\x00h\x05K\x00h\x06\x8a\x07");
        out.extend(&(1_795_168_323_411_199 + i).to_le_bytes()[..7]);
        out.extend(b"h\x07\x8c\x00\x94h\x08]\x94u");
        if i % 1000 == 999 {
            out.extend(b"e(");
        }
    }
    out.push(b'e');
    out
}

fn whole(trace: &[u8], key: &[u8]) -> Vec<u8> {
    let words: [&[u8]; 8] = [b"action", b"alloc", b"addr", b"size", b"stream", b"time_us", b"user_metadata", b"frames"];
    let mut out = b"\x80\x04}\x94(".to_vec();
    // The words of the memo are the value of a key that is not read.
    out.extend(b"\x8c\x05words(");
    for word in words {
        out.extend([&[0x8c, word.len() as u8], word, b"\x94"].concat());
    }
    out.push(b't');
    for (key, content) in [(key, trace), (b"device_traces", b"")] {
        out.extend([&[0x8c, key.len() as u8], key, b"]]", content, b"a"].concat());
    }
    out.extend(b"u.");
    out
}

#[test]
fn memory_stays_below_the_file_and_skipped_events_and_strings_are_not_held() {
    let events = trace(500_000);
    let (skipped, skipped_peak) = peak_of(&whole(&events, b"host_traces"));
    assert_eq!(skipped.events(), 0);

    // The second `device_traces` of the file is empty and has precedence, as in Python; the first is read
    // nevertheless. Events without stacks are the smallest: 49 bytes of pickle each, of which 44 are held.
    let read = whole(&events, b"device_traces");
    let (_, read_peak) = peak_of(&read);
    assert!(read_peak < read.len(), "{read_peak} of {}", read.len());
    assert!(skipped_peak + 500_000 * 30 < read_peak, "{skipped_peak} against {read_peak}");

    // 256 MiB of one string in a few kilobytes of zstd.
    let mut bomb = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let megabyte = vec![b'x'; 1 << 20];
    std::io::Write::write_all(&mut bomb, b"\x80\x04}(\x8c\x03odd\x8d\x00\x00\x00\x10\x00\x00\x00\x00").unwrap();
    for _ in 0..256 {
        std::io::Write::write_all(&mut bomb, &megabyte).unwrap();
    }
    std::io::Write::write_all(&mut bomb, b"\x8c\x0ddevice_traces]u.").unwrap();
    let (recording, peak) = peak_of(&bomb.finish().unwrap());
    assert_eq!(recording.events(), 0);
    assert!(peak < 4 << 20, "{peak}");

    // The same snapshot, made by the writer that other tests use.
    let small = snapshot((0..3).map(|i| event("alloc", i, 1, i)).collect(), vec![]);
    assert_eq!(peak_of(&dumps(&small, Style::Python4)).0.events(), 3);
}
