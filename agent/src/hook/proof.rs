//! Finds out whether frames and code objects lie as a layout says, before any pointer that it gives is followed.
//!
//! An interpreter that was built in another way (a patched one, a debug build) may have anything where this one's frames
//! have a pointer. So memory is asked for through the kernel, which refuses an address instead of ending the process,
//! and what is found there has to be what the interpreter says of itself: the code object's address and the instruction
//! of every frame; of every code object the addresses of its names and of its line table, the text of its names, and
//! the line that Python gives for the frame.
//! Refuses: to run on the hot path; it costs a few system calls a frame, once a session.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};

use super::frames::{self, CodeParts, DEPTH_MAX, Guard, Version};
use crate::python::lines;

/// Bytes of a thread state that are looked at.
const THREAD_BYTES: usize = 128;
/// Bytes of a str's head.
const TEXT_HEAD_BYTES: usize = 72;

/// A frame as the interpreter itself shows it, innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Shown {
    /// Address of the code object.
    pub code: usize,
    /// `f_lasti`, in bytes.
    pub lasti: u32,
    /// `f_lineno`.
    pub line: Option<u32>,
    /// Address and text of `co_filename`.
    pub file: (usize, String),
    /// Of `co_qualname`; of `co_name` before 3.11.
    pub name: (usize, String),
    /// Address of `co_linetable`.
    pub table: usize,
    /// `co_firstlineno`.
    pub first_line: u32,
}

/// Whether the frames of the calling thread, whose state is `thread`, are these.
#[must_use]
pub fn frames_agree(version: Version, thread: usize, expected: &[(usize, u32)]) -> bool {
    let Some(mut asked) = Asked::new() else { return false };
    if thread == 0 || expected.is_empty() || !asked.can_read(thread, THREAD_BYTES) {
        return false;
    }
    let (mut seen, mut agrees) = (0, true);
    let mut guard = Proof { asked: &mut asked, expected, at: 0, refused: false };
    // SAFETY: the thread's own state can be read as far as it is looked at; whatever it leads to is asked for first.
    unsafe {
        frames::walk_guarded(version, thread, &mut guard, |frame| {
            agrees &= expected.get(seen) == Some(&(frame.code, frame.lasti));
            seen += 1;
        });
    }
    agrees && !guard.refused && seen == expected.len().min(DEPTH_MAX)
}

/// Whether the parts of a frame's code object are where they are looked for, and give its line.
#[must_use]
pub fn parts_agree(version: Version, python: (u8, u8), shown: &Shown) -> bool {
    let Some(mut asked) = Asked::new() else { return false };
    if !asked.can_read(shown.code, frames::CODE_BYTES) {
        return false;
    }
    // SAFETY: the interpreter named the code object and the caller holds it; its head can be read.
    let parts = unsafe { CodeParts::of(version, shown.code) };
    parts.addresses() == [shown.file.0, shown.name.0, shown.table]
        && parts.first_line == shown.first_line
        && [&shown.file, &shown.name].into_iter().all(|text| text_agrees(&mut asked, &parts, text))
        && line_agrees(&parts, python, shown)
}

fn text_agrees(asked: &mut Asked, parts: &CodeParts, (address, text): &(usize, String)) -> bool {
    let characters = text.chars().count();
    // Its length first: where that is wrong, so would be the end of what is read. (At most 4 bytes a character.)
    if !asked.can_read(*address, TEXT_HEAD_BYTES) || !asked.can_read(*address, 40 + characters) {
        return false;
    }
    // SAFETY: a str that the interpreter named; its head can be read.
    let length = unsafe { frames::word(*address, 16) };
    let mut room = vec![0; text.len() + 4];
    // SAFETY: as above, and its length is known to be right.
    length == characters
        && unsafe { parts.text(*address, &mut room) } == text.len()
        && room.starts_with(text.as_bytes())
}

fn line_agrees(parts: &CodeParts, python: (u8, u8), shown: &Shown) -> bool {
    // Longer tables than this are code that somebody generated; their lines are not compared.
    let mut table = vec![0; 64 << 10];
    match parts.table(&mut table) {
        0 => true,
        length => lines::line(python, shown.first_line, &table[..length], shown.lasti) == shown.line,
    }
}

/// Lets a walk go on only where memory can be read, and as long as it meets the code objects that are expected.
struct Proof<'a> {
    asked: &'a mut Asked,
    expected: &'a [(usize, u32)],
    at: usize,
    refused: bool,
}

impl Guard for Proof<'_> {
    fn may_read(&mut self, address: usize, bytes: usize) -> bool {
        let may = self.asked.can_read(address, bytes);
        self.refused |= !may;
        may
    }

    fn is_code(&mut self, code: usize) -> bool {
        let is = self.expected.get(self.at).is_some_and(|expected| expected.0 == code);
        self.at += 1;
        self.refused |= !is;
        is
    }
}

/// Whether memory can be read, by having the kernel copy it into a pipe.
struct Asked {
    from: PipeReader,
    to: PipeWriter,
}

impl Asked {
    fn new() -> Option<Self> {
        let (from, to) = std::io::pipe().ok()?;
        Some(Self { from, to })
    }

    fn can_read(&mut self, address: usize, bytes: usize) -> bool {
        // A pipe takes a page at once; nothing that is asked for is larger.
        let bytes = bytes.min(4_096);
        if address == 0 || address.checked_add(bytes).is_none() {
            return false;
        }
        // SAFETY: the kernel reads it, not this program: memory that is not there is an error, `EFAULT`.
        let written =
            unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&self.to), address as *const libc::c_void, bytes) };
        let Ok(written) = usize::try_from(written) else { return false };
        let mut room = [0; 4_096];
        self.from.read_exact(&mut room[..written.min(4_096)]).is_ok() && written == bytes && self.to.flush().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_refused() {
        let mut asked = Asked::new().unwrap();
        let here = [1_u64; 16];
        assert!(asked.can_read(here.as_ptr() as usize, 128));
        for address in [0, 1, 16, 0x10_0000, usize::MAX - 3, usize::MAX, 0xdead_beef_dead_beef] {
            assert!(!asked.can_read(address, 8), "{address:x}");
        }
        // SAFETY: a mapping of our own: one page that can be read and one that cannot.
        unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                8_192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(map.byte_add(4_096), 4_096, libc::PROT_NONE), 0);
            assert!(asked.can_read(map as usize + 4_000, 96));
            assert!(!asked.can_read(map as usize + 4_000, 97));
            assert!(asked.can_read(map as usize, 8), "what was half copied does not stay in the pipe");
            libc::munmap(map, 8_192);
        }
    }
}
