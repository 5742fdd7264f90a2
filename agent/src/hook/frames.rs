//! Walks the Python frames of the calling thread without the interpreter's lock.
//!
//! This is sound because a thread walks its own frames. While a thread is inside C code, its chain of frames does not
//! change, and every frame holds its code object. Only pointers and integers are read.
//!
//! The layouts are those of `Include/internal/pycore_frame.h` and `Include/cpython/` of each CPython minor version.
//! Before stacks are turned on, a guarded walk is compared with the interpreter's own answer ([`super::proof`]). A
//! build with another layout loses its stacks and nothing else.
//!
//! Refuses: to touch a reference count, to call into Python, and interpreters without that lock (free-threaded builds).
//!
//! (Over 400 lines: the layouts of five kinds of CPython are compared side by side.)

/// Maximum number of frames of one walk. Deeper stacks (recursion) are cut at the outer end.
pub const DEPTH_MAX: usize = 192;

/// The part of a frame that identifies a line of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// Address of the code object.
    pub code: usize,
    /// Offset of the instruction in bytes, as `f_lasti`.
    pub lasti: u32,
    /// Distinguishes code objects that had the same address at different times.
    pub identity: u64,
}

/// Decides whether memory behind a pointer may be read: see [`super::proof`].
pub trait Guard {
    /// Whether `bytes` bytes can be read there.
    fn may_read(&mut self, address: usize, bytes: usize) -> bool;
    /// Whether there is a code object at this address.
    fn is_code(&mut self, code: usize) -> bool;
}

/// Allows every read, for a layout that has been verified.
struct Proved;

impl Guard for Proved {
    #[inline(always)]
    fn may_read(&mut self, _: usize, _: usize) -> bool {
        true
    }
    #[inline(always)]
    fn is_code(&mut self, _: usize) -> bool {
        true
    }
}

/// Bytes that are read of the beginning of a code object.
pub const CODE_BYTES: usize = 144;
/// Bytes that are read of `_PyCFrame`, the structure that 3.11 and 3.12 have between the thread state and its innermost
/// frame.
const BETWEEN_BYTES: usize = 16;

/// A supported CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 3.10.
    V310,
    /// 3.11.
    V311,
    /// 3.12.
    V312,
    /// 3.13.
    V313,
    /// 3.14 and 3.15, whose frames have the same layout.
    V314,
}

impl Version {
    /// The layout of a version, if it is known.
    #[must_use]
    pub fn of(major: u8, minor: u8) -> Option<Self> {
        match (major, minor) {
            (3, 10) => Some(Self::V310),
            (3, 11) => Some(Self::V311),
            (3, 12) => Some(Self::V312),
            (3, 13) => Some(Self::V313),
            (3, 14 | 15) => Some(Self::V314),
            _ => None,
        }
    }

    /// Whether a frame stores the address of its instruction. In a frame without Python code, that address is constant.
    #[must_use]
    pub fn has_places(self) -> bool {
        matches!(self, Self::V312 | Self::V313 | Self::V314)
    }

    /// The innermost frame of a thread of a version with instruction addresses; 0 when the thread has no frame.
    ///
    /// # Safety
    /// As for [`walk`].
    #[inline(always)]
    pub unsafe fn innermost_place(self, thread: usize) -> usize {
        // SAFETY: promised by the caller.
        // (3.14 has the thread's frame at the same offset as 3.13.)
        unsafe { if self == Self::V312 { V312::innermost(thread) } else { V313::innermost(thread) } }
    }
}

/// Offsets in bytes of one version's structures (x86-64 and aarch64 Linux agree).
trait Layout {
    /// Returns the innermost frame of a thread state.
    unsafe fn innermost(thread: usize) -> usize;
    /// Thread state: offset of the pointer to the structure between it and the innermost frame, if there is one.
    const BETWEEN: Option<usize> = None;
    /// Bytes of a frame that are read.
    const FRAME_BYTES: usize = 80;
    /// Frame: its code object.
    const CODE: usize;
    /// Bits of the word at [`Self::CODE`] that are not part of the address.
    const TAGS: usize = 0;
    /// Frame: the frame that called it.
    const PREVIOUS: usize;
    /// Frame: offset of the byte with the frame's owner, and the lowest value that means "no Python code".
    const OWNER: Option<(usize, u8)>;
    /// Offset of the instruction within the code, in bytes.
    unsafe fn lasti(frame: usize, code: usize) -> u32;
    /// A value of the code object that a later one at the same address is unlikely to share.
    unsafe fn identity(code: usize) -> u64;
}

/// # Safety
/// `address + offset` can be read.
#[inline(always)]
pub(super) unsafe fn word(address: usize, offset: usize) -> usize {
    // SAFETY: promised by the caller.
    unsafe { ((address + offset) as *const usize).read() }
}

/// # Safety
/// As for [`word`].
#[inline(always)]
unsafe fn half(address: usize, offset: usize) -> u32 {
    // SAFETY: promised by the caller.
    unsafe { ((address + offset) as *const u32).read() }
}

struct V310;
struct V311;
struct V312;
struct V313;
struct V314;

impl Layout for V310 {
    #[inline(always)]
    unsafe fn innermost(thread: usize) -> usize {
        // SAFETY: `PyThreadState.frame`.
        unsafe { word(thread, 24) }
    }
    const FRAME_BYTES: usize = 104;
    const CODE: usize = 32;
    const PREVIOUS: usize = 24;
    const OWNER: Option<(usize, u8)> = None;
    #[inline(always)]
    unsafe fn lasti(frame: usize, _code: usize) -> u32 {
        // SAFETY: `PyFrameObject.f_lasti`, in instructions of two bytes; -1 before the first.
        (unsafe { half(frame, 96) } as i32).max(0) as u32 * 2
    }
    #[inline(always)]
    unsafe fn identity(code: usize) -> u64 {
        // SAFETY: `co_linetable` and `co_firstlineno`.
        unsafe { (word(code, 120) as u64) ^ u64::from(half(code, 40)) << 48 }
    }
}

impl Layout for V311 {
    #[inline(always)]
    unsafe fn innermost(thread: usize) -> usize {
        // SAFETY: `PyThreadState.cframe->current_frame`.
        unsafe { word(word(thread, 56), 8) }
    }
    const BETWEEN: Option<usize> = Some(56);
    const CODE: usize = 32;
    const PREVIOUS: usize = 48;
    const OWNER: Option<(usize, u8)> = None;
    #[inline(always)]
    unsafe fn lasti(frame: usize, code: usize) -> u32 {
        // SAFETY: `prev_instr`, which points into `co_code_adaptive` (one before it at the start).
        (unsafe { word(frame, 56) }.wrapping_sub(code + 184) as isize).max(0) as u32
    }
    #[inline(always)]
    unsafe fn identity(code: usize) -> u64 {
        // SAFETY: `co_linetable` and `co_firstlineno`.
        unsafe { (word(code, 136) as u64) ^ u64::from(half(code, 72)) << 48 }
    }
}

impl Layout for V312 {
    #[inline(always)]
    unsafe fn innermost(thread: usize) -> usize {
        // SAFETY: `PyThreadState.cframe->current_frame`.
        unsafe { word(word(thread, 56), 0) }
    }
    const BETWEEN: Option<usize> = Some(56);
    const CODE: usize = 0;
    const PREVIOUS: usize = 8;
    const OWNER: Option<(usize, u8)> = Some((70, 3));
    #[inline(always)]
    unsafe fn lasti(frame: usize, code: usize) -> u32 {
        // SAFETY: `prev_instr`, as in 3.11.
        (unsafe { word(frame, 56) }.wrapping_sub(code + 192) as isize).max(0) as u32
    }
    #[inline(always)]
    unsafe fn identity(code: usize) -> u64 {
        // SAFETY: `co_version`, incremented for every new code object, and `co_firstlineno`.
        unsafe { u64::from(half(code, 92)) << 32 | u64::from(half(code, 68)) }
    }
}

impl Layout for V313 {
    #[inline(always)]
    unsafe fn innermost(thread: usize) -> usize {
        // SAFETY: `PyThreadState.current_frame`.
        unsafe { word(thread, 72) }
    }
    const CODE: usize = 0;
    const PREVIOUS: usize = 8;
    const OWNER: Option<(usize, u8)> = Some((70, 3));
    #[inline(always)]
    unsafe fn lasti(frame: usize, code: usize) -> u32 {
        // SAFETY: `instr_ptr`, which points into `co_code_adaptive`.
        (unsafe { word(frame, 56) }.wrapping_sub(code + 200) as isize).max(0) as u32
    }
    #[inline(always)]
    unsafe fn identity(code: usize) -> u64 {
        // SAFETY: as in 3.12.
        unsafe { u64::from(half(code, 92)) << 32 | u64::from(half(code, 68)) }
    }
}

impl Layout for V314 {
    #[inline(always)]
    unsafe fn innermost(thread: usize) -> usize {
        // SAFETY: `PyThreadState.current_frame`.
        unsafe { word(thread, 72) }
    }
    const CODE: usize = 0;
    /// `f_executable` is a `_PyStackRef`, whose tag bits are `Py_TAG_BITS`.
    const TAGS: usize = 3;
    const PREVIOUS: usize = 8;
    // (3 is the interpreter's own; 3.14 also has 4 for the C stack.)
    const OWNER: Option<(usize, u8)> = Some((74, 3));
    #[inline(always)]
    unsafe fn lasti(frame: usize, code: usize) -> u32 {
        // SAFETY: `instr_ptr`, which points into `co_code_adaptive`.
        (unsafe { word(frame, 56) }.wrapping_sub(code + 208) as isize).max(0) as u32
    }
    #[inline(always)]
    unsafe fn identity(code: usize) -> u64 {
        // SAFETY: as in 3.12.
        unsafe { u64::from(half(code, 92)) << 32 | u64::from(half(code, 68)) }
    }
}

/// Visits the frames of a thread, innermost first, up to [`DEPTH_MAX`] of them.
///
/// # Safety
/// `thread` is the calling thread's own `PyThreadState` of an interpreter of `version`, whose layout has been proved.
#[inline]
pub unsafe fn walk(version: Version, thread: usize, each: impl FnMut(RawFrame)) {
    // SAFETY: promised by the caller.
    unsafe { walk_guarded(version, thread, &mut Proved, each) }
}

/// Like [`walk`], but ends where `guard` does not allow a read.
///
/// # Safety
/// The thread state at `thread` can be read, and so can everything that the guard allows.
#[inline]
pub(super) unsafe fn walk_guarded(version: Version, thread: usize, guard: &mut impl Guard, each: impl FnMut(RawFrame)) {
    // SAFETY: promised by the caller.
    unsafe {
        match version {
            Version::V310 => walk_as::<V310>(thread, guard, each),
            Version::V311 => walk_as::<V311>(thread, guard, each),
            Version::V312 => walk_as::<V312>(thread, guard, each),
            Version::V313 => walk_as::<V313>(thread, guard, each),
            Version::V314 => walk_as::<V314>(thread, guard, each),
        }
    }
}

#[inline(always)]
unsafe fn walk_as<L: Layout>(thread: usize, guard: &mut impl Guard, mut each: impl FnMut(RawFrame)) {
    // SAFETY: the layout is the interpreter's, so every pointer that is followed is a frame or a code object of this
    // thread. Where that is not verified yet, the guard is consulted before each read.
    unsafe {
        if L::BETWEEN.is_some_and(|offset| !guard.may_read(word(thread, offset), BETWEEN_BYTES)) {
            return;
        }
        let mut frame = L::innermost(thread);
        let mut left = DEPTH_MAX;
        while frame != 0 && left > 0 {
            if !guard.may_read(frame, L::FRAME_BYTES) {
                return;
            }
            let no_code = L::OWNER.is_some_and(|(offset, none)| ((frame + offset) as *const u8).read() >= none);
            if !no_code {
                let code = word(frame, L::CODE) & !L::TAGS;
                if !guard.is_code(code) || !guard.may_read(code, CODE_BYTES) {
                    return;
                }
                each(RawFrame { code, lasti: L::lasti(frame, code), identity: L::identity(code) });
                left -= 1;
            }
            frame = word(frame, L::PREVIOUS);
        }
    }
}

/// A code object's names and line table. They are copied while its frame is on the stack.
pub struct CodeParts {
    /// Line of the function's `def`.
    pub first_line: u32,
    file: usize,
    name: usize,
    table: usize,
    /// Size of `PyASCIIObject` and of `PyCompactUnicodeObject`.
    text_heads: (usize, usize),
}

impl CodeParts {
    /// Finds the parts of a code object.
    ///
    /// # Safety
    /// `code` is a code object of an interpreter of `version` that stays alive for now.
    #[must_use]
    pub unsafe fn of(version: Version, code: usize) -> Self {
        // co_filename, co_qualname (3.10 has only co_name), co_linetable, co_firstlineno.
        let (file, name, table, first_line) = match version {
            Version::V310 => (104, 112, 120, 40),
            Version::V311 => (112, 128, 136, 72),
            Version::V312 | Version::V313 | Version::V314 => (112, 128, 136, 68),
        };
        let text_heads = match version {
            Version::V310 | Version::V311 => (48, 72),
            Version::V312 | Version::V313 | Version::V314 => (40, 56),
        };
        // SAFETY: promised by the caller.
        unsafe {
            Self {
                first_line: half(code, first_line),
                file: word(code, file),
                name: word(code, name),
                table: word(code, table),
                text_heads,
            }
        }
    }

    /// Addresses of file name, qualified name and line table.
    pub(super) fn addresses(&self) -> [usize; 3] {
        [self.file, self.name, self.table]
    }

    /// Copies the file's name as UTF-8 into `to` and cuts it to fit. Returns the number of bytes.
    pub fn file(&self, to: &mut [u8]) -> usize {
        // SAFETY: `co_filename` is a str that the code object holds.
        unsafe { self.text(self.file, to) }
    }

    /// Copies the qualified name in the same way.
    pub fn name(&self, to: &mut [u8]) -> usize {
        // SAFETY: as for the file.
        unsafe { self.text(self.name, to) }
    }

    /// Copies the line table; 0 when it does not fit.
    pub fn table(&self, to: &mut [u8]) -> usize {
        if self.table == 0 {
            return 0;
        }
        // SAFETY: `co_linetable` is a bytes object that the code object holds: size at 16, content at 32.
        let (length, content) = unsafe { (word(self.table, 16), (self.table + 32) as *const u8) };
        if length > to.len() {
            return 0;
        }
        // SAFETY: `length` bytes of content, and as many in `to`.
        unsafe { std::ptr::copy_nonoverlapping(content, to.as_mut_ptr(), length) };
        length
    }

    /// Copies a str as UTF-8.
    ///
    /// # Safety
    /// `object` is a str of this version, or null.
    pub(super) unsafe fn text(&self, object: usize, to: &mut [u8]) -> usize {
        if object == 0 {
            return 0;
        }
        // SAFETY: length at 16, state at 32: bits 2-4 bytes per character, bit 5 compact, bit 6 ASCII.
        let (length, state) = unsafe { (word(object, 16), half(object, 32)) };
        let (kind, compact, ascii) = (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        if !compact {
            return 0;
        }
        let content = object + if ascii { self.text_heads.0 } else { self.text_heads.1 };
        let mut at = 0;
        for index in 0..length {
            // SAFETY: `length` characters of `kind` bytes follow the head.
            let character = unsafe {
                match kind {
                    1 => u32::from(((content + index) as *const u8).read()),
                    2 => u32::from(((content + 2 * index) as *const u16).read()),
                    4 => ((content + 4 * index) as *const u32).read(),
                    _ => return at,
                }
            };
            // Lone surrogates (undecodable file names) become the replacement character.
            let character = char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
            if at + character.len_utf8() > to.len() {
                return at;
            }
            at += character.encode_utf8(&mut to[at..]).len();
        }
        at
    }
}
