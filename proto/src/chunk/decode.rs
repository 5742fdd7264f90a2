//! The decoder: takes a chunk, gives its events.
//!
//! Guarantees: exactly the events that the header declares, or an error; scratch memory is bounded by
//! `memctl_model::limits` and reused. Refuses: everything that an encoder cannot have written and that would
//! make a difference.

use memctl_model::{Action, Event, PoolId, StackId};

use super::bins::NO_BLOCK;
use super::blocks::Blocks;
use super::columns::{Column, Raw, Unpacker};
use super::header::{Header, read_header};
use super::keys::{Key, Tuple};
use super::ops;
use super::ticks::Grid;
use super::times::{TimeReader, TimeTables};
use super::varint::{Cursor, unzigzag};
use super::{ChunkError, Fault, Part};

/// An allocation of this chunk.
#[derive(Clone, Copy)]
struct Allocation {
    addr: u64,
    key: u32,
    /// The block of the model that it holds, [`NO_BLOCK`] if it is not modelled.
    block: u32,
}

/// Decodes chunks; keeps its scratch memory between them.
pub struct Decoder {
    unpacker: Unpacker,
    columns: Raw,
    times: TimeTables,
    blocks: Blocks,
    keys: Vec<Key>,
    allocations: Vec<Allocation>,
}

impl Decoder {
    /// A decoder.
    ///
    /// # Errors
    /// If zstd gives no context (out of memory).
    pub fn new() -> Result<Self, ChunkError> {
        Ok(Self {
            unpacker: Unpacker::new()?,
            columns: Raw::default(),
            times: TimeTables::default(),
            blocks: Blocks::new(),
            keys: Vec::new(),
            allocations: Vec::new(),
        })
    }

    /// Replaces `out` with the events of a chunk. After an error `out` is empty.
    ///
    /// # Errors
    /// Every deviation from the format, see [`ChunkError`].
    pub fn decode(&mut self, chunk: &[u8], out: &mut Vec<Event>) -> Result<Header, ChunkError> {
        out.clear();
        let header = read_header(chunk)?;
        // At most 3 MiB, whatever the chunk says: `read_header` has checked the number.
        out.reserve(header.events as usize);
        if let Err(error) = self.run(chunk, &header, |event| out.push(event)) {
            out.clear();
            return Err(error);
        }
        Ok(header)
    }

    /// Calls `visit` for each event of a chunk without keeping them. Events visited before an error are to be discarded.
    ///
    /// # Errors
    /// Every deviation from the format, see [`ChunkError`].
    pub fn visit(&mut self, chunk: &[u8], visit: impl FnMut(Event)) -> Result<Header, ChunkError> {
        let header = read_header(chunk)?;
        self.run(chunk, &header, visit)?;
        Ok(header)
    }

    fn run(&mut self, chunk: &[u8], header: &Header, visit: impl FnMut(Event)) -> Result<(), ChunkError> {
        let layout = &header.layout;
        let mut rest = &chunk[layout.payload_at..];
        // `read_header` has checked that the parts make up the payload.
        let mut part = |bytes: u32| {
            let (part, after) = rest.split_at_checked(bytes as usize).ok_or(Fault::Truncated(Part::Payload))?;
            rest = after;
            Ok::<_, Fault>(part)
        };
        for (column, (raw_bytes, stored_bytes)) in Column::ALL.into_iter().zip(layout.columns) {
            let stored = part(stored_bytes)?;
            self.unpacker.unpack(column, stored, raw_bytes as usize, &mut self.columns[column as usize])?;
        }
        let (words, bits) = (part(layout.words_bytes)?, part(layout.bits_bytes)?);
        let [.., classes, tables] = &self.columns;
        self.times.read(classes, tables, layout.keys as usize)?;
        self.blocks.clear();
        self.keys.clear();
        self.allocations.clear();
        let columns = &self.columns;
        let column = |column: Column| Cursor::new(&columns[column as usize], Part::Column(column));
        let events = Events {
            grid: Grid::new(header.resolution_ns),
            tick: layout.first_tick,
            after_alloc: false,
            key_numbers: column(Column::Keys),
            ages: column(Column::Ages),
            tuples: column(Column::Tuples),
            addresses: column(Column::Addresses),
            stacks: column(Column::Stacks),
            address: 0,
            address_shift: u32::from(layout.address_shift),
            times: self.times.reader(words, bits, layout.signed)?,
            blocks: &mut self.blocks,
            keys: &mut self.keys,
            allocations: &mut self.allocations,
            key_count: layout.keys,
        };
        Ok(events.run(&columns[Column::Ops as usize], header, visit)?)
    }
}

/// The state of decoding one chunk.
struct Events<'a> {
    grid: Grid,
    tick: u64,
    after_alloc: bool,
    key_numbers: Cursor<'a>,
    ages: Cursor<'a>,
    tuples: Cursor<'a>,
    addresses: Cursor<'a>,
    stacks: Cursor<'a>,
    address: u64,
    address_shift: u32,
    times: TimeReader<'a>,
    blocks: &'a mut Blocks,
    keys: &'a mut Vec<Key>,
    allocations: &'a mut Vec<Allocation>,
    key_count: u32,
}

impl Events<'_> {
    fn run(mut self, operations: &[u8], header: &Header, mut visit: impl FnMut(Event)) -> Result<(), Fault> {
        let pairs = operations.iter().filter(|&&op| is_pair(op)).count();
        if operations.len() + pairs != header.events as usize {
            return Err(Fault::Malformed(Part::Column(Column::Ops)));
        }
        for &op in operations {
            match op {
                ops::ALLOC_BEST..=ops::ALLOC_ELSEWHERE => visit(self.alloc(op)?),
                ops::FREE_PAIR_UNKNOWN..ops::WITH_STACK => {
                    let event = self.explicit(op)?;
                    visit(event);
                    if is_pair(op) {
                        visit(self.second(event)?);
                    }
                }
                _ => {
                    let event = self.free(op)?;
                    visit(event);
                    if is_pair(op) {
                        visit(self.second(event)?);
                    }
                }
            }
        }
        if self.keys.len() != self.key_count as usize {
            return Err(Fault::Malformed(Part::Column(Column::Ops)));
        }
        for cursor in [&self.key_numbers, &self.ages, &self.tuples, &self.addresses, &self.stacks] {
            cursor.finished()?;
        }
        self.times.finished()
    }

    #[inline(always)]
    fn alloc(&mut self, op: u8) -> Result<Event, Fault> {
        let number = self.key()?;
        let key = &self.keys[number as usize];
        let owner = self.allocations.len() as u32;
        let (mut addr, mut block) = (0, NO_BLOCK);
        if op == ops::ALLOC_ELSEWHERE {
            addr = next_address(&mut self.addresses, &mut self.address, self.address_shift)?;
        }
        if key.is_modelled() {
            let prediction = self.blocks.predict(key.arena, key.len);
            if op == ops::ALLOC_BEST {
                let hole = prediction.best.ok_or(Fault::Malformed(Part::Column(Column::Ops)))?;
                addr = hole.addr;
                block = self.blocks.take(key.arena, hole, key.len, owner);
            } else {
                if op == ops::ALLOC_NEXT {
                    addr = prediction.next_addr;
                }
                block = self.blocks.place(addr, key.len, key.arena, owner);
            }
        } else if op != ops::ALLOC_ELSEWHERE {
            return Err(Fault::Malformed(Part::Column(Column::Ops)));
        }
        self.allocations.push(Allocation { addr, key: number, block });
        self.tick = self.times.keyed(number, false, self.after_alloc, self.tick)?;
        self.after_alloc = true;
        Ok(event(&key.tuple, Action::Alloc, addr, key.tuple.stack, self.grid.time_ns(self.tick)))
    }

    #[inline(always)]
    fn free(&mut self, op: u8) -> Result<Event, Fault> {
        let plain = op & !ops::WITH_STACK;
        let age = self.ages.u64()?;
        let owner = (self.allocations.len() as u64)
            .checked_sub(1)
            .and_then(|newest| newest.checked_sub(age))
            .ok_or(Fault::Malformed(Part::Column(Column::Ages)))?;
        let Allocation { addr, key: number, block } = self.allocations[owner as usize];
        let key = &mut self.keys[number as usize];
        let (expected, action) = match plain {
            ops::FREE_PAIR | ops::FREE_REQUESTED => (&mut key.requested_stack, Action::FreeRequested),
            ops::FREE_COMPLETED => (&mut key.completed_stack, Action::FreeCompleted),
            _ => return Err(Fault::Malformed(Part::Column(Column::Ops))),
        };
        if op != plain {
            *expected = StackId(self.stacks.u32()?);
        }
        let stack = *expected;
        if plain != ops::FREE_REQUESTED {
            self.blocks.release(block, owner as u32);
        }
        self.tick = self.times.keyed(number, true, self.after_alloc, self.tick)?;
        self.after_alloc = false;
        Ok(event(&key.tuple, action, addr, stack, self.grid.time_ns(self.tick)))
    }

    /// An operation that carries key and address.
    fn explicit(&mut self, op: u8) -> Result<Event, Fault> {
        let number = self.key()?;
        let key = self.keys[number as usize];
        let addr = next_address(&mut self.addresses, &mut self.address, self.address_shift)?;
        self.tick = self.times.other(self.tick)?;
        self.after_alloc = false;
        let action = match op {
            ops::FREE_PAIR_UNKNOWN | ops::FREE_REQUESTED_UNKNOWN => Action::FreeRequested,
            ops::FREE_COMPLETED_UNKNOWN => Action::FreeCompleted,
            _ => ops::action_of_other(op).ok_or(Fault::Malformed(Part::Column(Column::Ops)))?,
        };
        let event = event(&key.tuple, action, addr, key.tuple.stack, self.grid.time_ns(self.tick));
        match op {
            ops::FREE_REQUESTED_UNKNOWN => {}
            ops::FREE_PAIR_UNKNOWN | ops::FREE_COMPLETED_UNKNOWN => {
                if key.is_modelled() {
                    self.blocks.release_unknown(addr, key.len, key.arena);
                }
            }
            _ => self.blocks.observe(&event),
        }
        Ok(event)
    }

    /// The second event of a folded free.
    #[inline(always)]
    fn second(&mut self, first: Event) -> Result<Event, Fault> {
        self.tick = self.times.pair(self.tick)?;
        Ok(Event { action: Action::FreeCompleted, time_ns: self.grid.time_ns(self.tick), ..first })
    }

    /// The number of the next key, which is in the dictionary afterwards.
    #[inline(always)]
    fn key(&mut self) -> Result<u32, Fault> {
        let number = self.key_numbers.u64()?;
        if number < self.keys.len() as u64 {
            return Ok(number as u32);
        }
        self.new_key(number)
    }

    #[inline(never)]
    fn new_key(&mut self, number: u64) -> Result<u32, Fault> {
        if number != self.keys.len() as u64 || number >= u64::from(self.key_count) {
            return Err(Fault::Malformed(Part::Column(Column::Keys)));
        }
        let tuple = Tuple {
            stack: StackId(self.tuples.u32()?),
            size: self.tuples.u64()?,
            stream: self.tuples.u64()?,
            pool: PoolId { first: self.tuples.u32()?, second: self.tuples.u32()? },
        };
        self.keys.push(Key::new(tuple, self.blocks));
        Ok(number as u32)
    }
}

#[inline(always)]
fn event(tuple: &Tuple, action: Action, addr: u64, stack: StackId, time_ns: u64) -> Event {
    let Tuple { stack: _, size, stream, pool } = *tuple;
    Event { time_ns, addr, size, stream, pool, stack, action }
}

/// The next explicit address.
#[inline(never)]
fn next_address(addresses: &mut Cursor<'_>, address: &mut u64, shift: u32) -> Result<u64, Fault> {
    let difference = unzigzag(addresses.u64()?) as u64;
    *address = address.wrapping_add(difference << shift);
    Ok(*address)
}

/// Whether an operation stands for two events.
#[inline(always)]
const fn is_pair(op: u8) -> bool {
    op == ops::FREE_PAIR || op == ops::FREE_PAIR | ops::WITH_STACK || op == ops::FREE_PAIR_UNKNOWN
}
