//! Verifies that frames and code objects have the expected layout, before the hook follows a pointer from them.
//!
//! An interpreter that was built differently (a patched one, a debug build) may have other data where this layout has a
//! pointer. The kernel therefore checks each address first: it returns an error for a bad address, and the process
//! continues. The result must match what the interpreter itself reports. For every frame this is the code object's
//! address, the instruction and the line. For every code object this is the addresses of its names and line table, and
//! the text of its names.
//! Refuses: to run on the hot path. It costs a few system calls per frame, once per session.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};

use super::frames::{self, CodeParts, DEPTH_MAX, Guard, Version};
use crate::python::lines;

/// Bytes of a thread state that are read.
const THREAD_BYTES: usize = 128;
/// Bytes of a str's head that are read.
const TEXT_HEAD_BYTES: usize = 72;

/// A frame as the interpreter itself reports it, innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct InterpreterFrame {
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

/// Whether the frames of the calling thread, whose state is `thread`, are the `expected` ones.
#[must_use]
pub fn frames_agree(version: Version, thread: usize, expected: &[(usize, u32)]) -> bool {
    let Some(mut asked) = PipeProbe::new() else { return false };
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

/// Whether the parts of a frame's code object are at the expected places, and the line table gives the frame's line.
#[must_use]
pub fn parts_agree(version: Version, python: (u8, u8), shown: &InterpreterFrame) -> bool {
    let Some(mut asked) = PipeProbe::new() else { return false };
    if !asked.can_read(shown.code, frames::CODE_BYTES) {
        return false;
    }
    // SAFETY: the interpreter reported the code object, and the caller holds it. Its head can be read.
    let parts = unsafe { CodeParts::of(version, shown.code) };
    parts.addresses() == [shown.file.0, shown.name.0, shown.table]
        && parts.first_line == shown.first_line
        && [&shown.file, &shown.name].into_iter().all(|text| text_agrees(&mut asked, &parts, text))
        && line_agrees(&parts, python, shown)
}

fn text_agrees(asked: &mut PipeProbe, parts: &CodeParts, (address, text): &(usize, String)) -> bool {
    let characters = text.chars().count();
    // The text's size is checked first. (A character has at most 4 bytes.)
    if !asked.can_read(*address, TEXT_HEAD_BYTES) || !asked.can_read(*address, 40 + characters) {
        return false;
    }
    // SAFETY: the interpreter reported this str, and its head can be read.
    let length = unsafe { frames::word(*address, 16) };
    let mut room = vec![0; text.len() + 4];
    // SAFETY: as above, and the length is the reported one.
    length == characters
        && unsafe { parts.text(*address, &mut room) } == text.len()
        && room.starts_with(text.as_bytes())
}

fn line_agrees(parts: &CodeParts, python: (u8, u8), shown: &InterpreterFrame) -> bool {
    // Longer tables belong to generated code. Their lines are not compared.
    let mut table = vec![0; 64 << 10];
    match parts.table(&mut table) {
        0 => true,
        length => lines::line(python, shown.first_line, &table[..length], shown.lasti) == shown.line,
    }
}

/// Lets a walk continue only while memory is readable and the code objects are the expected ones.
struct Proof<'a> {
    asked: &'a mut PipeProbe,
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
struct PipeProbe {
    from: PipeReader,
    to: PipeWriter,
}

impl PipeProbe {
    fn new() -> Option<Self> {
        let (from, to) = std::io::pipe().ok()?;
        Some(Self { from, to })
    }

    fn can_read(&mut self, address: usize, bytes: usize) -> bool {
        // A pipe takes one page at a time. No check is larger.
        let bytes = bytes.min(4_096);
        if address == 0 || address.checked_add(bytes).is_none() {
            return false;
        }
        // SAFETY: the kernel reads the memory, not this program. Unmapped memory gives the error `EFAULT`.
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
        let mut asked = PipeProbe::new().unwrap();
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
