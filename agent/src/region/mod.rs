//! The memory that a trainer and its host share: one ring per device, a log of notes, and a dictionary of stacks.
//!
//! The region is a memfd. Its content survives the trainer's death by any signal, because the host maps it too. Nothing
//! is left on disk. Only pages that were written take memory, and a ring fills its lowest pages first.
//!
//! Guarantees: the host trusts nothing in the region. Sizes are checked against the file when it is opened. The file is
//! sealed, so it cannot shrink afterwards. Every count is checked when it is read.
//! Refuses: a region with another version of the layout.
//!
//! (Over 400 lines: the layout, the mapping and what is read from it are checked against each other.)

pub mod dictionary;
pub mod holders;
pub mod messages;
pub mod notes;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memctl_model::limits::DEVICES_MAX;

use crate::ring::{self, Consumer, Control, Parts, Producer, Record, Shape};

/// "MEMCTLR" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"MEMCTLR\x03");
/// Page sizes of all supported machines are multiples of this.
const PAGE: u64 = 4_096;
/// Bytes of the log of notes. A keyframe of 400,000 blocks fits. Only used pages take memory.
const NOTES_BYTES: u64 = 4 << 20;
/// Bytes of the dictionary. A code object takes about 1 KiB, and a stack of 40 frames takes 330 bytes. GPT-2 needs 0.5
/// MiB.
const DICTIONARY_BYTES: u64 = 8 << 20;
/// Bytes of a ring's records that are allocated in advance. The busiest training seen produces that much in 0.1 s.
const POPULATED_BYTES: u64 = 1 << 20;
/// Maximum number of records of a ring (192 MiB).
const RING_RECORDS_MAX: u64 = 1 << 22;

/// The start of the region.
#[repr(C)]
pub struct Header {
    magic: u64,
    devices: u32,
    /// Python's version, `major << 8 | minor`; 0 when there is none.
    python: AtomicU32,
    ring_records: u64,
    /// The trainer's state: see [`State`].
    state: AtomicU32,
    /// The trainer's recording level: see [`Level`].
    level: AtomicU32,
    /// Number of stacks that were lost: a table was full, or the hook's latch stayed taken.
    stacks_lost: AtomicU64,
    notes: notes::Control,
    dictionary: dictionary::Control,
    /// By device: not 0 while the host requests the device's state.
    snapshot_wanted: [AtomicU32; DEVICES_MAX],
    /// The host's request for holders of some blocks.
    holders: holders::Control,
}

/// The state that the trainer reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Recording.
    Running = 0,
    /// The session has ended. Nothing follows.
    Ended = 1,
    /// Like `Ended`, but because the process is about to end. The process's exit status decides how the session ended.
    Leaving = 2,
}

/// How much a trainer records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Level {
    /// Nothing is recorded.
    #[default]
    Off = 0,
    /// Counters, and the blocks at the ends of steps and epochs.
    Blocks = 1,
    /// Every event, without stacks.
    Events = 2,
    /// Every event with the stack of its allocation.
    Stacks = 3,
}

impl Level {
    /// The name that `status()` shows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Blocks => "blocks",
            Self::Events => "no-stacks",
            Self::Stacks => "full",
        }
    }

    fn from_number(number: u32) -> Self {
        [Self::Off, Self::Blocks, Self::Events, Self::Stacks].get(number as usize).copied().unwrap_or_default()
    }
}

/// Why a region cannot be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The system refused.
    #[error("shared memory: {what}: {source}")]
    System {
        /// The call.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another version of memctl, or not a region.
    #[error("this is no memory region of this version of memctl: agent and launcher have to be of one version")]
    Foreign,
    /// The region's sizes contradict each other.
    #[error("the memory region says {0}, which cannot be")]
    Sizes(String),
}

fn system(what: &'static str) -> RegionError {
    RegionError::System { what, source: std::io::Error::last_os_error() }
}

/// The offset of each part, computed from the numbers of devices and of records per ring.
#[derive(Clone, Copy, Debug)]
struct Places {
    shape: Shape,
    /// Offset of the slots from a ring's beginning.
    slots: u64,
    ring_bytes: u64,
    notes: u64,
    dictionary: u64,
    total: u64,
}

impl Places {
    fn of(devices: u32, ring_records: u64) -> Self {
        let page = |bytes: u64| bytes.next_multiple_of(PAGE);
        let rings = page(size_of::<Header>() as u64);
        let shape = Shape::of(ring_records);
        let slots = page(size_of::<Control>() as u64 + shape.pages() * size_of::<u16>() as u64);
        let ring_bytes = slots + page(shape.records() * size_of::<Record>() as u64);
        let notes = rings + ring_bytes * u64::from(devices);
        let dictionary = notes + NOTES_BYTES;
        Self { shape, slots, ring_bytes, notes, dictionary, total: dictionary + DICTIONARY_BYTES }
    }

    fn ring(&self, device: u32) -> u64 {
        (size_of::<Header>() as u64).next_multiple_of(PAGE) + self.ring_bytes * u64::from(device)
    }
}

/// A mapped region.
pub struct Region {
    base: *mut u8,
    places: Places,
    devices: u32,
    file: File,
}

// SAFETY: everything that changes in it is atomic or guarded by the protocols of ring, notes and dictionary.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A new region for `devices` devices with rings of at least `ring_records` records.
    ///
    /// # Errors
    /// When the system has no memory.
    pub fn create(devices: u32, ring_records: usize) -> Result<Arc<Self>, RegionError> {
        let devices = devices.clamp(1, DEVICES_MAX as u32);
        let ring_records = (ring_records as u64).clamp(2, RING_RECORDS_MAX).next_power_of_two();
        let places = Places::of(devices, ring_records);
        // SAFETY: a valid name; the descriptor is ours from here on.
        let file = unsafe {
            let fd = libc::memfd_create(c"memctl".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if fd < 0 {
                return Err(system("memfd_create"));
            }
            File::from(OwnedFd::from_raw_fd(fd))
        };
        file.set_len(places.total).map_err(|source| RegionError::System { what: "ftruncate", source })?;
        // SAFETY: our own descriptor. After sealing, pages cannot be removed while the other process reads them
        // (SIGBUS).
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) } != 0 {
            return Err(system("sealing"));
        }
        let base = map(&file, places.total)?;
        // SAFETY: the mapping is new, zeroed, page-aligned and larger than the header; it has no other user yet.
        unsafe {
            let header = base.cast::<Header>();
            (&raw mut (*header).devices).write(devices);
            (&raw mut (*header).ring_records).write(ring_records);
            (&raw mut (*header).magic).write(MAGIC);
        }
        Ok(Arc::new(Self { base, places, devices, file }))
    }

    /// Opens a region that another process created.
    ///
    /// # Errors
    /// Another version, sizes that contradict the file, or a file that could shrink.
    pub fn open(fd: OwnedFd) -> Result<Arc<Self>, RegionError> {
        let file = File::from(fd);
        let length = file.metadata().map_err(|source| RegionError::System { what: "fstat", source })?.len();
        // SAFETY: our own descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || length < size_of::<Header>() as u64 {
            return Err(RegionError::Foreign);
        }
        let base = map(&file, length)?;
        // SAFETY: the file has at least a header, and it cannot shrink.
        let (magic, devices, ring_records) = unsafe {
            let header = base.cast::<Header>();
            ((*header).magic, (*header).devices, (*header).ring_records)
        };
        let unmap = |error| {
            // SAFETY: mapped above with this length, without other users.
            unsafe { libc::munmap(base.cast(), length as usize) };
            Err(error)
        };
        if magic != MAGIC {
            return unmap(RegionError::Foreign);
        }
        let plausible = (1..=DEVICES_MAX as u32).contains(&devices)
            && ring_records.is_power_of_two()
            && (2..=RING_RECORDS_MAX).contains(&ring_records);
        if !plausible || Places::of(devices, ring_records).total != length {
            let sizes = format!("{devices} devices and {ring_records} records in {length} bytes");
            return unmap(RegionError::Sizes(sizes));
        }
        Ok(Arc::new(Self { base, places: Places::of(devices, ring_records), devices, file }))
    }

    /// The descriptor to hand to the host.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Number of devices that have a ring here.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.devices
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped, aligned, and only its atomics change after creation.
        unsafe { &*self.base.cast::<Header>() }
    }

    fn ring_parts(&self, device: u32) -> Parts {
        assert!(device < self.devices, "a ring of a device that the region does not have");
        let Places { shape, slots, .. } = self.places;
        // SAFETY: the offset is inside the mapping, see `Places`.
        let base = unsafe { self.base.add(self.places.ring(device) as usize) };
        // SAFETY: the words of the page order follow the control block, and the slots follow them, inside the same
        // ring.
        let (order, slots) = unsafe { (base.add(size_of::<Control>()).cast(), base.add(slots as usize).cast()) };
        Parts { control: base.cast(), order, slots, shape }
    }

    /// The producer of a device's ring.
    ///
    /// # Safety
    /// At most one per device and region.
    #[must_use]
    pub unsafe fn producer(self: &Arc<Self>, device: u32) -> Producer {
        // SAFETY: inside the mapping, which the Arc keeps; the caller promises that there is only one.
        unsafe { ring::producer_in(self.clone(), self.ring_parts(device)) }
    }

    /// The consumer of a device's ring.
    ///
    /// # Safety
    /// At most one per device and region.
    #[must_use]
    pub unsafe fn consumer(self: &Arc<Self>, device: u32) -> Consumer {
        // SAFETY: as above.
        unsafe { ring::consumer_in(self.clone(), self.ring_parts(device)) }
    }

    /// The trainer's side of the notes.
    #[must_use]
    pub fn notes_writer(self: &Arc<Self>) -> notes::Writer {
        notes::Writer::new(self.clone())
    }

    /// The host's side of the notes.
    #[must_use]
    pub fn notes_reader(self: &Arc<Self>) -> notes::Reader {
        notes::Reader::new(self.clone())
    }

    fn notes_control(&self) -> &notes::Control {
        &self.header().notes
    }

    fn notes_bytes(&self) -> (*mut u8, usize) {
        // SAFETY: inside the mapping, see `Places`.
        (unsafe { self.base.add(self.places.notes as usize) }, NOTES_BYTES as usize)
    }

    fn holders_control(&self) -> &holders::Control {
        &self.header().holders
    }

    fn dictionary_control(&self) -> &dictionary::Control {
        &self.header().dictionary
    }

    fn dictionary_bytes(&self) -> (*mut u8, usize) {
        // SAFETY: inside the mapping, see `Places`.
        (unsafe { self.base.add(self.places.dictionary as usize) }, DICTIONARY_BYTES as usize)
    }

    /// Allocates memory for the pages of a device's ring that are filled first. The hook then causes no page faults
    /// there.
    pub fn populate(&self, device: u32) {
        let base = self.ring_parts(device).control;
        let bytes = self.places.ring_bytes.min(self.places.slots + POPULATED_BYTES);
        // SAFETY: a range of our mapping; a kernel without this advice (before 5.14) allocates pages on first use.
        unsafe {
            let _ = libc::madvise(base.cast_mut().cast(), bytes as usize, libc::MADV_POPULATE_WRITE);
        }
    }

    /// Frees the memory and keeps the mapping. For a session that has ended in a process where a callback may still
    /// hold a pointer.
    pub fn release_pages(&self) {
        // SAFETY: our own descriptor; reading or writing the hole afterwards is allowed, and reads return zeros.
        unsafe {
            let _ = libc::fallocate(
                self.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                PAGE as libc::off_t,
                (self.places.total - PAGE) as libc::off_t,
            );
        }
    }

    // Relaxed in the following functions: each value is independent. The data that belongs to it is ordered by rings
    // and notes.

    /// Python's version in the trainer, `(major, minor)`.
    #[must_use]
    pub fn python(&self) -> Option<(u8, u8)> {
        let version = self.header().python.load(Ordering::Relaxed);
        (version != 0).then_some(((version >> 8) as u8, version as u8))
    }

    /// Sets the trainer's Python version.
    pub fn set_python(&self, major: u8, minor: u8) {
        self.header().python.store(u32::from(major) << 8 | u32::from(minor), Ordering::Relaxed);
    }

    /// The trainer's recording level.
    #[must_use]
    pub fn level(&self) -> Level {
        Level::from_number(self.header().level.load(Ordering::Relaxed))
    }

    /// Sets the trainer's recording level.
    pub fn set_level(&self, level: Level) {
        self.header().level.store(level as u32, Ordering::Relaxed);
    }

    /// The trainer's state.
    #[must_use]
    pub fn state(&self) -> State {
        // Acquire: a reader that sees the end also sees everything that was pushed before it.
        match self.header().state.load(Ordering::Acquire) {
            0 => State::Running,
            2 => State::Leaving,
            _ => State::Ended,
        }
    }

    /// Reports that the session has ended.
    pub fn end(&self) {
        // Release: see `state`.
        self.header().state.store(State::Ended as u32, Ordering::Release);
    }

    /// Reports that the session has ended because the process is about to exit. Its exit code is not known yet.
    pub fn leave(&self) {
        // Release: see `state`.
        self.header().state.store(State::Leaving as u32, Ordering::Release);
    }

    /// Stacks that could not be recorded.
    #[must_use]
    pub fn stacks_lost(&self) -> u64 {
        self.header().stacks_lost.load(Ordering::Relaxed)
    }

    pub(crate) fn lose_stack(&self) {
        self.header().stacks_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests the state of a device, or withdraws the request.
    pub fn want_snapshot(&self, device: usize, wanted: bool) {
        if let Some(flag) = self.header().snapshot_wanted.get(device) {
            // Release: pairs with the Acquire of the trainer that takes the snapshot.
            flag.store(u32::from(wanted), Ordering::Release);
        }
    }

    /// Whether the state of a device is requested.
    #[must_use]
    pub fn snapshot_wanted(&self, device: usize) -> bool {
        // Acquire: see `want_snapshot`.
        self.header().snapshot_wanted.get(device).is_some_and(|flag| flag.load(Ordering::Acquire) != 0)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; no reference into it outlives the Arc that owns it.
        unsafe { libc::munmap(self.base.cast(), self.places.total as usize) };
    }
}

fn map(file: &File, length: u64) -> Result<*mut u8, RegionError> {
    // SAFETY: a new shared mapping of an open file, at an address of the kernel's choice.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(system("mmap"));
    }
    // A forked child inherits this mapping and must not write into its parent's rings, so `live::silence` closes its
    // gate. (MADV_DONTFORK is not used: a callback that raced with the fork would fault.)
    Ok(base.cast())
}

#[cfg(test)]
mod tests;
