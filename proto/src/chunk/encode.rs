//! The encoder: takes events one by one, gives a chunk.
//!
//! Guarantees: whatever is pushed decodes to itself with times floored to the grid; buffers are reused
//! from chunk to chunk, so that steady encoding allocates only the chunk itself.
//! Refuses: more than [`CHUNK_EVENTS_MAX`] events.

use memctl_model::limits::{CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX};
use memctl_model::{Action, Event};

use super::addresses::AddressMap;
use super::bins::NO_BLOCK;
use super::blocks::Blocks;
use super::columns::{Column, Packer, Raw};
use super::header::{self, Layout};
use super::keys::{Key, KeyIndex, Tuple};
use super::ops;
use super::ticks::Grid;
use super::times::{Context, TimeWriter};
use super::varint::{put, zigzag};
use super::{ChunkError, ChunkMeta, check_limit};

/// An allocation of this chunk.
struct Allocation {
    key: u32,
    /// The block of the model that it holds, [`NO_BLOCK`] if it is not modelled.
    block: u32,
    /// Not completely freed yet.
    live: bool,
}

/// Encodes events of one device into chunks, one after another.
pub struct Encoder {
    resolution_ns: u32,
    grid: Grid,
    /// Events so far by action.
    counts: [u64; Action::ALL.len()],
    events: usize,
    first_tick: u64,
    /// Tick of the last event that was written (not of the pending one).
    tick: u64,
    after_alloc: bool,
    /// A `free_requested` that waits for its `free_completed`.
    pending: Option<Event>,
    blocks: Blocks,
    keys: KeyIndex,
    allocations: Vec<Allocation>,
    /// Number of the latest allocation at an address.
    latest_at: AddressMap,
    addresses: Vec<u64>,
    times: TimeWriter,
    columns: Raw,
    packer: Packer,
    payload: Vec<u8>,
}

impl Encoder {
    /// An encoder for times of this resolution in nanoseconds; 0 counts as 1.
    ///
    /// # Errors
    /// If zstd gives no context (out of memory).
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
            blocks: Blocks::new(),
            keys: KeyIndex::new(),
            allocations: Vec::new(),
            latest_at: AddressMap::new(),
            addresses: Vec::new(),
            times: TimeWriter::default(),
            columns: Raw::default(),
            packer: Packer::new()?,
            payload: Vec::new(),
        })
    }

    /// Events pushed since the last chunk.
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

    /// Bytes that the chunk would have if nothing compressed: an upper estimate, cheap to ask.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        // 10 bytes an explicit address, 12 bits a time.
        self.columns.iter().map(Vec::len).sum::<usize>() + self.addresses.len() * 10 + self.events * 3 / 2
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
                self.free(&request, ops::FREE_PAIR);
                let tick = self.grid.ticks_after(event.time_ns, self.tick);
                self.times.push(Context::PAIR, self.tick, tick);
                self.tick = tick;
                return Ok(());
            }
            self.free(&request, ops::FREE_REQUESTED);
        }
        match event.action {
            Action::Alloc => self.alloc(event),
            Action::FreeRequested => self.pending = Some(*event),
            Action::FreeCompleted => self.free(event, ops::FREE_COMPLETED),
            _ => self.other(event),
        }
        Ok(())
    }

    fn alloc(&mut self, event: &Event) {
        let number = self.key(event);
        let Key { arena, len, .. } = self.keys.keys[number as usize];
        let is_modelled = self.keys.keys[number as usize].is_modelled();
        let owner = self.allocations.len() as u32;
        let mut block = NO_BLOCK;
        let mut op = ops::ALLOC_ELSEWHERE;
        if is_modelled {
            let prediction = self.blocks.predict(arena, len);
            block = match prediction.best {
                Some(hole) if hole.addr == event.addr => {
                    op = ops::ALLOC_BEST;
                    self.blocks.take(arena, hole, len, owner)
                }
                _ => {
                    if prediction.next_addr == event.addr {
                        op = ops::ALLOC_NEXT;
                    }
                    self.blocks.place(event.addr, len, arena, owner)
                }
            };
        }
        if op == ops::ALLOC_ELSEWHERE {
            self.addresses.push(event.addr);
        }
        self.columns[Column::Ops as usize].push(op);
        self.allocations.push(Allocation { key: number, block, live: true });
        self.latest_at.insert(event.addr, owner);
        self.time(event.time_ns, Context::keyed(number, false, self.after_alloc));
        self.after_alloc = true;
    }

    /// Writes a free, with the code `op` or the corresponding one. The second time of a pair is left to the caller.
    fn free(&mut self, event: &Event, op: u8) {
        let is_completed = op != ops::FREE_REQUESTED;
        let known = self.latest_at.find(event.addr).filter(|&owner| {
            let Allocation { key, live, .. } = self.allocations[owner as usize];
            let Tuple { stack: _, size, stream, pool } = self.keys.keys[key as usize].tuple;
            live && (size, stream, pool) == (event.size, event.stream, event.pool)
        });
        let Some(owner) = known else {
            self.free_unknown(event, op + (ops::FREE_PAIR_UNKNOWN - ops::FREE_PAIR), is_completed);
            return;
        };
        let Allocation { key, block, ref mut live } = self.allocations[owner as usize];
        *live = !is_completed;
        put(&mut self.columns[Column::Ages as usize], (self.allocations.len() as u32 - 1 - owner).into());
        let entry = &mut self.keys.keys[key as usize];
        let expected = if op == ops::FREE_COMPLETED { &mut entry.completed_stack } else { &mut entry.requested_stack };
        if *expected == event.stack {
            self.columns[Column::Ops as usize].push(op);
        } else {
            *expected = event.stack;
            self.columns[Column::Ops as usize].push(op | ops::WITH_STACK);
            put(&mut self.columns[Column::Stacks as usize], event.stack.0.into());
        }
        if is_completed {
            self.blocks.release(block, owner);
        }
        self.time(event.time_ns, Context::keyed(key, true, self.after_alloc));
        self.after_alloc = false;
    }

    fn free_unknown(&mut self, event: &Event, op: u8, is_completed: bool) {
        self.explicit(event, op);
        if is_completed {
            let (number, _) = self.keys.find_or_add(Tuple::of(event), &mut self.blocks);
            let key = self.keys.keys[number as usize];
            if key.is_modelled() {
                self.blocks.release_unknown(event.addr, key.len, key.arena);
            }
        }
    }

    fn other(&mut self, event: &Event) {
        self.explicit(event, ops::other(event.action));
        self.blocks.observe(event);
    }

    /// Writes an operation that carries key and address.
    fn explicit(&mut self, event: &Event, op: u8) {
        self.key(event);
        self.columns[Column::Ops as usize].push(op);
        self.addresses.push(event.addr);
        self.time(event.time_ns, Context::OTHER);
        self.after_alloc = false;
    }

    /// Writes the number of the event's key, and the key itself if it is new.
    #[inline]
    fn key(&mut self, event: &Event) -> u32 {
        let tuple = Tuple::of(event);
        let (number, is_new) = self.keys.find_or_add(tuple, &mut self.blocks);
        put(&mut self.columns[Column::Keys as usize], number.into());
        if is_new {
            let out = &mut self.columns[Column::Tuples as usize];
            put(out, tuple.stack.0.into());
            put(out, tuple.size);
            put(out, tuple.stream);
            put(out, tuple.pool.first.into());
            put(out, tuple.pool.second.into());
        }
        number
    }

    #[inline]
    fn time(&mut self, time_ns: u64, context: Context) {
        let tick = self.grid.ticks_after(time_ns, self.tick);
        self.times.push(context, self.tick, tick);
        self.tick = tick;
    }

    /// Gives the chunk and begins the next one. The rollup's counts and times are filled in here.
    ///
    /// # Errors
    /// [`ChunkError::Empty`] without events, [`ChunkError::TooLarge`] beyond [`CHUNK_BYTES_MAX`] (no
    /// 65,536 events come to that), [`ChunkError::Compression`]. The events are gone in every case.
    pub fn finish(&mut self, meta: &ChunkMeta) -> Result<Vec<u8>, ChunkError> {
        if self.events == 0 {
            return Err(ChunkError::Empty);
        }
        if let Some(request) = self.pending.take() {
            self.free(&request, ops::FREE_REQUESTED);
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
            signed: self.times.is_signed(),
            first_tick: self.first_tick,
            keys: self.keys.keys.len() as u32,
            address_shift: write_addresses(&self.addresses, &mut self.columns[Column::Addresses as usize]),
            ..Layout::default()
        };
        self.times.finish(self.keys.keys.len(), &mut self.columns)?;
        self.payload.clear();
        for (column, sizes) in Column::ALL.into_iter().zip(&mut layout.columns) {
            let raw = &self.columns[column as usize];
            *sizes = (raw.len() as u32, self.packer.pack(column, raw, &mut self.payload)? as u32);
        }
        self.payload.extend(self.times.words().iter().flat_map(|word| word.to_le_bytes()));
        self.payload.extend_from_slice(self.times.bits());
        layout.words_bytes = self.times.words().len() as u32 * 4;
        layout.bits_bytes = self.times.bits().len() as u32;
        Ok(header::write(meta, self.events as u32, self.resolution_ns, &layout, &self.payload))
    }

    fn clear(&mut self) {
        self.counts = [0; Action::ALL.len()];
        self.events = 0;
        self.after_alloc = false;
        self.pending = None;
        self.blocks.clear();
        self.keys.clear();
        self.allocations.clear();
        self.latest_at.clear();
        self.addresses.clear();
        self.times.clear();
        self.columns.iter_mut().for_each(Vec::clear);
    }
}

/// Writes explicit addresses as differences without the low bits that are clear in all of them. Returns how many those are.
fn write_addresses(addresses: &[u64], out: &mut Vec<u8>) -> u8 {
    let differences =
        || addresses.iter().scan(0u64, |before, &addr| Some(addr.wrapping_sub(std::mem::replace(before, addr)) as i64));
    let shift = differences().fold(0, |all, difference| all | difference).trailing_zeros().min(63);
    differences().for_each(|difference| put(out, zigzag(difference >> shift)));
    shift as u8
}
