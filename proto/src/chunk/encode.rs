//! The encoder: takes events one by one and produces chunks.
//!
//! Guarantees: events are decoded exactly, with times rounded down to the resolution. Buffers are reused from chunk to
//! chunk, so that steady encoding allocates only the chunk itself.
//! Refuses: more than [`CHUNK_EVENTS_MAX`] events.

use memctl_model::limits::{CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX};
use memctl_model::{Action, Event};

use super::addresses::AddressMap;
use super::columns::{Column, Packer, Raw};
use super::header::{self, Layout};
use super::keys::{self, KeyIndex, Tuple};
use super::ops;
use super::ticks::Grid;
use super::times::{Context, TimeWriter};
use super::varint::{put, zigzag};
use super::{ChunkError, ChunkMeta, check_limit};

/// The reference of an address that is written in full.
pub(super) const EXPLICIT: u16 = u16::MAX;

/// An allocation of this chunk.
struct Allocation {
    key: u32,
    /// Whether it is not completely freed yet.
    live: bool,
}

/// Encodes events of one device into chunks, one after another.
pub struct Encoder {
    resolution_ns: u32,
    grid: Grid,
    /// Number of events so far, by action.
    counts: [u64; Action::ALL.len()],
    events: usize,
    first_tick: u64,
    /// Tick of the last event that was written (not of the pending one).
    tick: u64,
    after_alloc: bool,
    /// A `free_requested` that waits for its `free_completed`.
    pending: Option<Event>,
    keys: KeyIndex,
    allocations: Vec<Allocation>,
    /// The latest allocations that began and ended at an address.
    known: AddressMap,
    /// Number of the allocation that was freed last.
    last_freed: u32,
    /// The explicit addresses of the chunk.
    addresses: Vec<u64>,
    times: TimeWriter,
    columns: Raw,
    packer: Packer,
    payload: Vec<u8>,
}

impl Encoder {
    /// An encoder for times of this resolution in nanoseconds. 0 counts as 1.
    ///
    /// # Errors
    /// zstd could not create a context (out of memory).
    pub fn new(resolution_ns: u32) -> Result<Self, ChunkError> {
        let resolution_ns = resolution_ns.max(1);
        Ok(Self {
            resolution_ns,
            grid: Grid::new(resolution_ns),
            counts: [0; Action::ALL.len()],
            events: 0,
            first_tick: 0,
            tick: 0,
            after_alloc: false,
            pending: None,
            keys: KeyIndex::new(),
            allocations: Vec::new(),
            known: AddressMap::new(),
            last_freed: 0,
            addresses: Vec::new(),
            times: TimeWriter::default(),
            columns: Raw::default(),
            packer: Packer::new()?,
            payload: Vec::new(),
        })
    }

    /// Number of events pushed since the last chunk.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.events
    }

    /// Whether nothing was pushed since the last chunk.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Whether the chunk takes no more events.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.events >= CHUNK_EVENTS_MAX
    }

    /// Bytes of the chunk without compression. This is a cheap upper estimate.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        // 35 bytes for a key, 10 for an explicit address, 12 bits for a time.
        self.columns.iter().map(Vec::len).sum::<usize>()
            + self.keys.keys.len() * 35
            + self.addresses.len() * 10
            + self.events * 3 / 2
    }

    /// Takes the next event.
    ///
    /// # Errors
    /// [`ChunkError::Full`] after [`CHUNK_EVENTS_MAX`] events; the event was not taken.
    #[inline]
    pub fn push(&mut self, event: &Event) -> Result<(), ChunkError> {
        if self.is_full() {
            return Err(ChunkError::Full);
        }
        if self.events == 0 {
            self.first_tick = self.grid.ticks(event.time_ns);
            self.tick = self.first_tick;
        }
        self.events += 1;
        self.counts[event.action as usize] += 1;
        if let Some(request) = self.pending.take() {
            if event.action == Action::FreeCompleted
                && request.addr == event.addr
                && Tuple::of(&request) == Tuple::of(event)
            {
                self.free(&request, ops::FREE_PAIR, Some(event.time_ns));
                return Ok(());
            }
            self.free(&request, ops::FREE_REQUESTED, None);
        }
        match event.action {
            Action::Alloc => self.alloc(event),
            Action::FreeRequested => self.pending = Some(*event),
            Action::FreeCompleted => self.free(event, ops::FREE_COMPLETED, None),
            _ => self.explicit(event, ops::other(event.action), None),
        }
        Ok(())
    }

    #[inline]
    fn alloc(&mut self, event: &Event) {
        let key = self.keys.find_or_add(Tuple::of(event));
        if key < u32::from(ops::FREE) {
            self.token(key as u16);
        } else {
            self.special(ops::ALLOC_WIDE);
            put(&mut self.columns[Column::Operands as usize], key.into());
        }
        let owner = self.allocations.len() as u32;
        let end = event.addr.wrapping_add(self.keys.keys[key as usize].len_bytes);
        let known = self.known.note(event.addr, end, owner + 1);
        // References count the ends and beginnings of all allocations backwards from the latest. Of two candidates the
        // nearer one is used, because it repeats from step to step.
        let bound = (known.begins * 2).max(known.ends * 2 + 1).saturating_sub(2);
        let reference = (owner * 2).wrapping_sub(1).wrapping_sub(bound);
        let reference = if known.begins | known.ends == 0 || reference >= u32::from(EXPLICIT) {
            self.addresses.push(event.addr);
            EXPLICIT
        } else {
            reference as u16
        };
        self.columns[Column::References as usize].extend_from_slice(&reference.to_le_bytes());
        self.allocations.push(Allocation { key, live: true });
        self.time(event, None, Context::keyed(key, false, self.after_alloc));
        self.after_alloc = true;
    }

    /// Writes a free with the code `op`, or with its variant that has a stack. A pair also has the time of its second
    /// event.
    #[inline]
    fn free(&mut self, event: &Event, op: u8, completed_ns: Option<u64>) {
        let known = self.known.find(event.addr).begins.checked_sub(1).filter(|&owner| {
            let Allocation { key, live } = self.allocations[owner as usize];
            let Tuple { stack: _, size, stream, pool } = self.keys.keys[key as usize].tuple;
            live && (size, stream, pool) == (event.size, event.stream, event.pool)
        });
        let Some(owner) = known else {
            self.explicit(event, op + (ops::FREE_PAIR_UNKNOWN - ops::FREE_PAIR), completed_ns);
            return;
        };
        let Allocation { key, ref mut live } = self.allocations[owner as usize];
        *live = op == ops::FREE_REQUESTED;
        let entry = &mut self.keys.keys[key as usize];
        let expected = if op == ops::FREE_COMPLETED { &mut entry.completed_stack } else { &mut entry.requested_stack };
        let is_expected = std::mem::replace(expected, event.stack) == event.stack;
        let distance = zigzag(i64::from(owner) - i64::from(std::mem::replace(&mut self.last_freed, owner)));
        if op == ops::FREE_PAIR && is_expected && distance < u64::from(ops::SPECIAL - ops::FREE) {
            self.token(ops::FREE + distance as u16);
        } else {
            self.special(if is_expected { op } else { op | ops::WITH_STACK });
            let operands = &mut self.columns[Column::Operands as usize];
            put(operands, distance);
            if !is_expected {
                put(operands, event.stack.0.into());
            }
        }
        self.time(event, completed_ns, Context::keyed(key, true, self.after_alloc));
        self.after_alloc = false;
    }

    /// Writes an operation with its key and address among the operands.
    fn explicit(&mut self, event: &Event, op: u8, completed_ns: Option<u64>) {
        let key = self.keys.find_or_add(Tuple::of(event));
        self.special(op);
        put(&mut self.columns[Column::Operands as usize], key.into());
        self.addresses.push(event.addr);
        self.time(event, completed_ns, Context::OTHER);
        self.after_alloc = false;
    }

    #[inline]
    fn token(&mut self, token: u16) {
        self.columns[Column::Tokens as usize].extend_from_slice(&token.to_le_bytes());
    }

    fn special(&mut self, op: u8) {
        self.token(ops::SPECIAL | u16::from(op));
    }

    /// Writes the time of an event and of the event that completes it.
    #[inline]
    fn time(&mut self, event: &Event, completed_ns: Option<u64>, context: Context) {
        let tick = self.grid.ticks_after(event.time_ns, self.tick);
        let last = completed_ns.map_or(tick, |time_ns| self.grid.ticks_after(time_ns, tick));
        let wide = &mut self.columns[Column::Wide as usize];
        self.times.push(context, tick.wrapping_sub(self.tick), last.wrapping_sub(tick), wide);
        self.tick = last;
    }

    /// Returns the chunk and begins the next one. Fills in the rollup's counts and times.
    ///
    /// # Errors
    /// [`ChunkError::Empty`] without events, [`ChunkError::TooLarge`] beyond [`CHUNK_BYTES_MAX`] (65,536 events never
    /// reach it), or [`ChunkError::Compression`]. The events are discarded in every case.
    pub fn finish(&mut self, meta: &ChunkMeta) -> Result<Vec<u8>, ChunkError> {
        if self.events == 0 {
            return Err(ChunkError::Empty);
        }
        if let Some(request) = self.pending.take() {
            self.free(&request, ops::FREE_REQUESTED, None);
        }
        let mut meta = *meta;
        meta.rollup.counts = self.counts;
        meta.rollup.first_ns = self.grid.time_ns(self.first_tick);
        meta.rollup.last_ns = self.grid.time_ns(self.tick);
        let chunk = self.assemble(&meta);
        self.clear();
        let chunk = chunk?;
        check_limit("bytes", chunk.len() as u64, CHUNK_BYTES_MAX as u64)?;
        Ok(chunk)
    }

    fn assemble(&mut self, meta: &ChunkMeta) -> Result<Vec<u8>, ChunkError> {
        let mut layout = Layout {
            first_tick: self.first_tick,
            keys: self.keys.keys.len() as u32,
            address_shift: write_addresses(&self.addresses, &mut self.columns[Column::Addresses as usize]),
            ..Layout::default()
        };
        keys::write(&self.keys.keys, &mut self.columns[Column::Tuples as usize]);
        self.times.finish(self.keys.keys.len(), &mut self.columns)?;
        self.payload.clear();
        for (column, sizes) in Column::ALL.into_iter().zip(&mut layout.columns) {
            let raw = &self.columns[column as usize];
            *sizes = (raw.len() as u32, self.packer.pack(column, raw, &mut self.payload)? as u32);
        }
        self.payload.extend_from_slice(self.times.bits());
        layout.times_bytes = self.times.bits().len() as u32;
        Ok(header::write(meta, self.events as u32, self.resolution_ns, &layout, &self.payload))
    }

    fn clear(&mut self) {
        self.counts = [0; Action::ALL.len()];
        self.events = 0;
        self.after_alloc = false;
        self.pending = None;
        self.keys.clear();
        self.allocations.clear();
        self.known.clear();
        self.last_freed = 0;
        self.addresses.clear();
        self.times.clear();
        self.columns.iter_mut().for_each(Vec::clear);
    }
}

/// Writes explicit addresses as differences without the low bits that are zero in all of them. Returns the number of
/// those bits.
fn write_addresses(addresses: &[u64], out: &mut Vec<u8>) -> u8 {
    let differences =
        || addresses.iter().scan(0u64, |before, &addr| Some(addr.wrapping_sub(std::mem::replace(before, addr)) as i64));
    let shift = differences().fold(0, |all, difference| all | difference).trailing_zeros().min(63);
    differences().for_each(|difference| put(out, zigzag(difference >> shift)));
    shift as u8
}
