//! The dictionary in a region. The hook appends each code object, stack and autograd node that it meets for the first
//! time.
//!
//! Guarantees: an entry is visible completely or not at all. Ids follow the order of the entries.
//! Refuses: several writers at once (the hook holds its latch while it writes), and to trust a length that it reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Region;

/// The number of bytes that are written.
#[repr(C)]
pub struct Control {
    length: AtomicU64,
}

#[cfg(test)]
impl Control {
    /// Acts like a broken trainer.
    pub(super) fn set_length_for_test(&self, length: u64) {
        self.length.store(length, Ordering::Release);
    }
}

/// The kind of an entry, in its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A code object: first line, three lengths, then file, name and line table.
    Code = 1,
    /// A stack: pairs of code id and instruction offset, innermost first.
    Stack = 2,
    /// An autograd node's stack: the id of the forward stack (0 when unknown), then the type's name.
    Node = 3,
    /// A stack with the name of its memory's owner: the id of the stack without the name (0 when there is none), then
    /// the name.
    Owner = 4,
}

/// Bytes of an entry's header: kind and length.
const HEAD: usize = 8;
/// Entries begin at multiples of this.
const ALIGN: usize = 4;
/// Longest line table that is kept. Functions of tens of thousands of lines show their first line instead.
pub const TABLE_BYTES_MAX: usize = 64 << 10;
/// Longest file or function name that is kept.
pub const NAME_BYTES_MAX: usize = 1_024;

/// A decoded entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The next code object.
    Code {
        /// Line of its `def`.
        first_line: u32,
        /// File.
        file: String,
        /// Qualified name.
        name: String,
        /// `co_linetable`, see `crate::python::lines`.
        table: Vec<u8>,
    },
    /// The next stack.
    Stack(Vec<(u32, u32)>),
    /// The next stack, of an autograd node.
    Node {
        /// The stack of the forward call that made the node, 0 when unknown.
        forward: u32,
        /// The node's type name as the compiler mangled it.
        type_name: String,
    },
    /// The next stack, with the name of its memory's owner.
    Owner {
        /// The stack without the name, 0 when there is none.
        stack: u32,
        /// The name.
        name: String,
    },
}

/// The hook's side.
pub struct Writer {
    region: Arc<Region>,
}

impl Writer {
    /// The dictionary of a region.
    #[must_use]
    pub fn new(region: Arc<Region>) -> Self {
        Self { region }
    }

    /// Appends an entry of at most `room` bytes that `fill` writes and whose length it returns. `false` when the
    /// dictionary is full.
    pub fn append(&mut self, kind: Kind, room: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let control = self.region.dictionary_control();
        let (base, capacity) = self.region.dictionary_bytes();
        // Relaxed: written only by this side.
        let at = control.length.load(Ordering::Relaxed) as usize;
        if at > capacity || capacity - at < HEAD + room.next_multiple_of(ALIGN) {
            return false;
        }
        // SAFETY: inside the dictionary, after everything that is published; one writer.
        let (head, body) =
            unsafe { (base.add(at).cast::<u32>(), std::slice::from_raw_parts_mut(base.add(at + HEAD), room)) };
        let written = fill(body).min(room);
        // SAFETY: as above; `at` is a multiple of four.
        unsafe {
            head.write(kind as u32);
            head.add(1).write(written as u32);
        }
        // Release: a reader that sees the length sees the entry.
        control.length.store((at + HEAD + written.next_multiple_of(ALIGN)) as u64, Ordering::Release);
        true
    }
}

/// The host's side.
pub struct Reader {
    region: Arc<Region>,
    at: usize,
    broken: bool,
}

impl Reader {
    /// Reads a region's dictionary from its beginning.
    #[must_use]
    pub fn new(region: Arc<Region>) -> Self {
        Self { region, at: 0, broken: false }
    }

    /// The next entry, if there is one.
    pub fn pop(&mut self) -> Option<Entry> {
        let (base, capacity) = self.region.dictionary_bytes();
        // Acquire: makes the entries before the length visible.
        let length = self.region.dictionary_control().length.load(Ordering::Acquire) as usize;
        if self.broken || length > capacity || self.at + HEAD > length {
            return None;
        }
        // SAFETY: inside the dictionary and published; entries do not change.
        let rest = unsafe { std::slice::from_raw_parts(base.add(self.at), length - self.at) };
        let Some((entry, used)) = read(rest) else {
            tracing::error!(at = self.at, "the dictionary of stacks is damaged: later stacks are unknown");
            self.broken = true;
            return None;
        };
        self.at += used;
        Some(entry)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read(bytes: &[u8]) -> Option<(Entry, usize)> {
    let (kind, length) = (word(bytes, 0)?, word(bytes, 4)? as usize);
    let body = bytes.get(HEAD..HEAD.checked_add(length)?)?;
    let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
    let entry = match kind {
        kind if kind == Kind::Code as u32 => {
            let [first_line, file, name, table] = [0, 4, 8, 12].map(|at| word(body, at));
            let (file, name, table) = (file? as usize, name? as usize, table? as usize);
            let (file_end, name_end) = (file.checked_add(16)?, file.checked_add(name)?.checked_add(16)?);
            Entry::Code {
                first_line: first_line?,
                file: text(body.get(16..file_end)?),
                name: text(body.get(file_end..name_end)?),
                table: body.get(name_end..name_end.checked_add(table)?)?.to_vec(),
            }
        }
        kind if kind == Kind::Stack as u32 => {
            Entry::Stack(body.chunks_exact(8).filter_map(|pair| Some((word(pair, 0)?, word(pair, 4)?))).collect())
        }
        kind if kind == Kind::Node as u32 => Entry::Node { forward: word(body, 0)?, type_name: text(body.get(4..)?) },
        kind if kind == Kind::Owner as u32 => Entry::Owner { stack: word(body, 0)?, name: text(body.get(4..)?) },
        _ => return None,
    };
    Some((entry, HEAD + length.next_multiple_of(ALIGN)))
}
