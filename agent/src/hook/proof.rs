//! Verifies that frames and code objects are laid out as expected, before a pointer from them is followed.
//!
//! An interpreter that was built differently (a patched one, a debug build) may have anything where this layout has a
//! pointer. So memory is read through the kernel, which returns an error for a bad address instead of ending the
//! process, and the result has to match what the interpreter itself reports: the code object's address and the
//! instruction of every frame; the addresses of every code object's names and line table, the text of its names, and
//! the line that Python reports for the frame.
//! Refuses: to run on the hot path; it costs a few system calls a frame, once a session.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};

use super::frames::{self, CodeParts, DEPTH_MAX, Guard, Version};
use crate::python::lines;

/// Bytes of a thread state that are read.
const THREAD_BYTES: usize = 128;
/// Bytes of a str's head.
const TEXT_HEAD_BYTES: usize = 72;

/// A frame as the interpreter itself reports it, innermost first.
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
    /// Address and text of `co_qualname`; of `co_name` before 3.11.
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
    // SAFETY: the part of the thread's own state that is read is readable; all other memory is checked first.
    unsafe {
        frames::walk_guarded(version, thread, &mut guard, |frame| {
            agrees &= expected.get(seen) == Some(&(frame.code, frame.lasti));
            seen += 1;
        });
    }
    agrees && !guard.refused && seen == expected.len().min(DEPTH_MAX)
}

/// Whether the parts of a frame's code object are where the layout expects them, and give its line.
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
    // Its length first: if it is wrong, the end of the read would be, too. (At most 4 bytes a character.)
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
    // Longer tables belong to generated code; their lines are not compared.
    let mut table = vec![0; 64 << 10];
    match parts.table(&mut table) {
        0 => true,
        length => lines::line(python, shown.first_line, &table[..length], shown.lasti) == shown.line,
    }
}

/// Lets a walk continue only where memory is readable, and while it meets the expected code objects.
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

/// Checks whether memory is readable by having the kernel copy it into a pipe.
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
        // A pipe takes a page at once; no check is larger.
        let bytes = bytes.min(4_096);
        if address == 0 || address.checked_add(bytes).is_none() {
            return false;
        }
        // SAFETY: the kernel reads it, not this program: unmapped memory is an error, `EFAULT`.
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
        // SAFETY: our own mapping: one readable page and one that is not.
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
