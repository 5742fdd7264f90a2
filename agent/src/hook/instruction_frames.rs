//! Walks a thread's Python frames by the addresses of their instructions. The hook uses this walk for known stacks on
//! CPython 3.12 to 3.15.
//!
//! Guarantees: reads only two words of each frame. Prefetches are only hints.
//! Refuses: versions whose frames have no such address. `frames.rs` and `code_deaths.rs` handle the code at an address.

use super::frames::{DEPTH_MAX, Version, word};

/// Offsets in a frame of its instruction (`prev_instr`, `instr_ptr`) and of its caller. They are the same in 3.12 to
/// 3.15.
const INSTRUCTION: usize = 56;
const PREVIOUS: usize = 8;

/// Visits all frames, including frames without Python code, up to twice [`DEPTH_MAX`]. That covers the frames with
/// Python code that the other walk visits.
///
/// # Safety
/// As for [`places`].
#[inline(always)]
unsafe fn each_frame(innermost: usize, mut each: impl FnMut(usize)) {
    let (mut frame, mut left) = (innermost, 2 * DEPTH_MAX);
    while frame != 0 && left > 0 {
        each(frame);
        // SAFETY: promised by the caller.
        frame = unsafe { word(frame, PREVIOUS) };
        left -= 1;
    }
}

/// Folds the addresses of a thread's instructions, innermost first, into `key`; `None` when it has no frames.
///
/// While a code object lives, an address identifies both the object and the instruction. Neither the object nor the
/// frame's owner is read. Frames without Python code, where C code calls Python, have the address of the interpreter's
/// trampoline.
///
/// # Safety
/// As for [`super::frames::walk`]; the version also [has places](Version::has_places).
#[inline(always)]
pub unsafe fn places(
    version: Version,
    thread: usize,
    trail: &mut Trail,
    mut key: u64,
    mix: impl Fn(u64, u64) -> u64,
) -> Option<u64> {
    // SAFETY: promised by the caller.
    unsafe {
        let innermost = version.innermost_place(thread);
        if innermost == 0 {
            return None;
        }
        trail.fetch();
        each_frame(innermost, |frame| key = mix(key, word(frame, INSTRUCTION) as u64));
        trail.follow(innermost);
    }
    Some(key)
}

/// The cache lines on which frames were found. They are prefetched all at once. Without that, a walk waits for one line
/// after the other, because each frame leads to the next. The frames of a call are mostly at the addresses of the
/// previous call's frames. The prefetch is only a hint: lines of frames that have moved are fetched in vain.
pub struct Trail {
    lines: [usize; LINES],
    used: usize,
    walks: u32,
}

/// Number of lines that are remembered, for about 40 frames.
const LINES: usize = 64;
/// A trail is taken again after this many walks. Taking it costs a second walk of about 40 ns.
const WALKS_PER_TRAIL: u32 = 16;

impl Default for Trail {
    fn default() -> Self {
        Self { lines: [0; LINES], used: 0, walks: 0 }
    }
}

impl Trail {
    #[inline(always)]
    fn fetch(&self) {
        #[cfg(target_arch = "x86_64")]
        for &line in &self.lines[..self.used] {
            // SAFETY: a prefetch changes nothing and cannot fault, even for an invalid address.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line as *const i8) };
        }
    }

    /// # Safety
    /// As for [`places`].
    #[inline(always)]
    unsafe fn follow(&mut self, innermost: usize) {
        self.walks = self.walks.wrapping_add(1);
        if self.walks % WALKS_PER_TRAIL == 1 {
            // SAFETY: promised by the caller.
            unsafe { self.take(innermost) };
        }
    }

    /// # Safety
    /// As for [`places`].
    #[inline(never)]
    unsafe fn take(&mut self, innermost: usize) {
        let (mut used, mut last) = (0, 0);
        let lines = &mut self.lines;
        // SAFETY: promised by the caller.
        unsafe {
            each_frame(innermost, |frame| {
                for at in [frame + INSTRUCTION, frame + PREVIOUS] {
                    let line = at & !63; // of 64 bytes
                    if line != last && used < LINES {
                        (lines[used], last) = (line, line);
                        used += 1;
                    }
                }
            });
        }
        self.used = used;
    }
}
