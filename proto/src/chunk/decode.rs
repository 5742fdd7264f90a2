//! The decoder: takes a chunk and returns its events.
//!
//! Guarantees: the result is exactly the events that the header declares, or an error. Scratch memory is reused, and
//! `memctl_model::limits` bound it.
//! Refuses: everything that an encoder cannot have written and that would change the result.
//!
//! [`Events::ordinary`] decodes ordinary operations almost without branches. A branch predictor cannot learn whether
//! the next operation is an allocation or a free. The decoder therefore computes both and chooses one.

use std::hint::select_unpredictable;

use memctl_model::limits::CHUNK_EVENTS_MAX;
use memctl_model::{Action, Event, StackId};

use super::columns::{Column, Raw, Unpacker};
use super::encode::EXPLICIT;
use super::header::{Header, read_header};
use super::keys::{self, Key};
use super::ops;
use super::ticks::Grid;
use super::times::{TimeReader, TimeTables};
use super::varint::{Cursor, unzigzag};
use super::{ChunkError, Fault, Part};

/// Number of operations that are decoded at once. Their events stay in the first-level cache until they are passed on.
const BATCH: usize = 128;
/// Number of events of a batch. It is a power of two because indices are masked.
const BATCH_EVENTS: usize = 2 * BATCH;
const _: () = assert!(BATCH_EVENTS.is_power_of_two() && CHUNK_EVENTS_MAX.is_power_of_two());

/// Decodes chunks. Keeps its scratch memory between them.
pub struct Decoder {
    unpacker: Unpacker,
    columns: Raw,
    times: TimeTables,
    keys: Vec<Key>,
    allocations: Allocations,
    batch: Box<[Event; BATCH_EVENTS]>,
}

/// The allocations of a chunk. The arrays take 1.3 MB, and a chunk touches only as many entries as it has allocations.
struct Allocations {
    /// The addresses where each allocation begins and ends.
    bounds: Box<[u64; 2 * CHUNK_EVENTS_MAX]>,
    keys: Box<[u32; CHUNK_EVENTS_MAX]>,
}

/// An array of zeros that is made on the heap, without a copy on the stack.
fn zeroed<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    match vec![T::default(); N].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("the slice has N elements"),
    }
}

impl Decoder {
    /// A decoder.
    ///
    /// # Errors
    /// zstd could not create a context (out of memory).
    pub fn new() -> Result<Self, ChunkError> {
        Ok(Self {
            unpacker: Unpacker::new()?,
            columns: Raw::default(),
            times: TimeTables::default(),
            keys: Vec::new(),
            allocations: Allocations { bounds: zeroed(), keys: zeroed() },
            batch: zeroed(),
        })
    }

    /// Replaces `out` with the events of a chunk. After an error `out` is empty.
    ///
    /// # Errors
    /// Every deviation from the format, see [`ChunkError`].
    pub fn decode(&mut self, chunk: &[u8], out: &mut Vec<Event>) -> Result<Header, ChunkError> {
        out.clear();
        let header = read_header(chunk)?;
        // This is at most 3 MiB for any chunk, because `read_header` has checked the number.
        out.reserve(header.events as usize);
        if let Err(error) = self.run(chunk, &header, |events| out.extend_from_slice(events)) {
            out.clear();
            return Err(error);
        }
        Ok(header)
    }

    /// Calls `visit` for each event of a chunk without keeping them. Events visited before an error must be discarded.
    ///
    /// # Errors
    /// Every deviation from the format, see [`ChunkError`].
    pub fn visit(&mut self, chunk: &[u8], mut visit: impl FnMut(Event)) -> Result<Header, ChunkError> {
        let header = read_header(chunk)?;
        self.run(chunk, &header, |events| events.iter().for_each(|&event| visit(event)))?;
        Ok(header)
    }

    fn run(&mut self, chunk: &[u8], header: &Header, sink: impl FnMut(&[Event])) -> Result<(), ChunkError> {
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
        let bits = part(layout.times_bytes)?;
        let column = |column: Column| self.columns[column as usize].as_slice();
        keys::read(column(Column::Tuples), layout.keys as usize, &mut self.keys)?;
        self.times.read(column(Column::Classes), column(Column::Lengths), &mut self.keys)?;
        let other_table = self.times.other();
        let cursor = |name: Column| Cursor::new(column(name), Part::Column(name));
        let events = Events {
            grid: Grid::new(header.resolution_ns),
            tick: layout.first_tick,
            after: 1,
            references: pairs_of(column(Column::References), Column::References)?,
            references_at: 0,
            operands: cursor(Column::Operands),
            addresses: cursor(Column::Addresses),
            address: 0,
            address_shift: u32::from(layout.address_shift),
            times: self.times.reader(bits, column(Column::Wide)),
            other_table,
            keys: &mut self.keys,
            allocations: &mut self.allocations,
            allocated: 0,
            last_freed: 0,
        };
        let tokens = pairs_of(column(Column::Tokens), Column::Tokens)?;
        Ok(events.run(tokens, header.events as usize, &mut self.batch, sink)?)
    }
}

/// A column of 16-bit numbers.
fn pairs_of(bytes: &[u8], column: Column) -> Result<&[[u8; 2]], Fault> {
    match bytes.as_chunks() {
        (pairs, []) => Ok(pairs),
        _ => Err(Fault::Truncated(Part::Column(column))),
    }
}

/// The state of decoding one chunk.
struct Events<'a> {
    grid: Grid,
    tick: u64,
    /// 0 directly after an allocation, otherwise 1. This is the low bit of a plane of times.
    after: usize,
    references: &'a [[u8; 2]],
    references_at: usize,
    operands: Cursor<'a>,
    addresses: Cursor<'a>,
    address: u64,
    address_shift: u32,
    times: TimeReader<'a>,
    other_table: u32,
    keys: &'a mut [Key],
    allocations: &'a mut Allocations,
    allocated: usize,
    last_freed: usize,
}

const BAD_TOKENS: Fault = Fault::Malformed(Part::Column(Column::Tokens));
const BAD_REFERENCES: Fault = Fault::Malformed(Part::Column(Column::References));

impl Events<'_> {
    fn run(
        mut self,
        mut tokens: &[[u8; 2]],
        events: usize,
        batch: &mut [Event; BATCH_EVENTS],
        mut sink: impl FnMut(&[Event]),
    ) -> Result<(), Fault> {
        let mut left = events;
        while !tokens.is_empty() {
            // Every operation is at least one event, so there are never more than CHUNK_EVENTS_MAX allocations.
            let most = tokens.len().min(BATCH).min(left);
            let (mut used, mut made) = self.ordinary(&tokens[..most], batch)?;
            if used < most {
                made += self.special(tokens[used][0], batch, made)?;
                used += 1;
            }
            tokens = &tokens[used..];
            // Tokens are left but no events, or the last operation was one event too many.
            left = left.checked_sub(made).filter(|_| used > 0).ok_or(BAD_TOKENS)?;
            sink(&batch[..made]);
        }
        if left > 0 {
            return Err(Fault::Truncated(Part::Column(Column::Tokens)));
        }
        if self.references_at != self.references.len() {
            return Err(BAD_REFERENCES);
        }
        self.operands.finished()?;
        self.addresses.finished()?;
        self.times.finished()
    }

    /// Decodes tokens up to the first one with operands. Returns the number of these tokens and of their events.
    fn ordinary(&mut self, tokens: &[[u8; 2]], batch: &mut [Event; BATCH_EVENTS]) -> Result<(usize, usize), Fault> {
        // Values that change with every operation are kept in registers.
        let (mut times, mut tick, mut after) = (self.times, self.tick, self.after);
        let (mut allocated, mut last_freed, mut references_at) = (self.allocated, self.last_freed, self.references_at);
        let (grid, references) = (self.grid, self.references);
        let Allocations { bounds, keys: allocated_keys } = &mut *self.allocations;
        let keys = &*self.keys;
        let (mut used, mut made) = (0, 0);
        for &token in tokens {
            let token = u16::from_le_bytes(token);
            if token >= ops::SPECIAL {
                break;
            }
            used += 1;
            let is_free = token >= ops::FREE;
            let number = usize::from(token & !ops::FREE);
            let owner = last_freed.wrapping_add(unzigzag(number as u64) as usize);
            let owner = select_unpredictable(is_free, owner, allocated);
            if owner >= allocated + usize::from(!is_free) {
                return Err(BAD_TOKENS);
            }
            // A free also reads the reference of the next allocation, if there is one, and ignores it. No index is out
            // of bounds, because `allocated` and `owner` are below CHUNK_EVENTS_MAX. The masks only prove that to the
            // compiler.
            let reference = references.get(references_at).map_or(EXPLICIT, |&bytes| u16::from_le_bytes(bytes));
            let bound = (2 * allocated).wrapping_sub(1).wrapping_sub(usize::from(reference));
            let mut addr = bounds[select_unpredictable(is_free, 2 * owner, bound) % bounds.len()];
            if (reference == EXPLICIT || bound >= 2 * allocated) && !is_free {
                addr = explicit(reference, &mut self.addresses, &mut self.address, self.address_shift)?;
            }
            let key = allocated_keys[owner % CHUNK_EVENTS_MAX] as usize;
            let key = select_unpredictable(is_free, key, number);
            let Some(entry) = keys.get(key) else { return Err(BAD_TOKENS) };
            // After a free, the next allocation overwrites this.
            let at = allocated % CHUNK_EVENTS_MAX;
            bounds[2 * at] = addr;
            bounds[2 * at + 1] = addr.wrapping_add(entry.len_bytes);
            allocated_keys[at] = key as u32;
            allocated += usize::from(!is_free);
            references_at += usize::from(!is_free);
            last_freed = select_unpredictable(is_free, owner, last_freed);
            let (first, second) = times.next(entry.tables[usize::from(is_free) << 1 | after])?;
            after = usize::from(is_free);
            tick = tick.wrapping_add(first);
            let event = Event {
                time_ns: grid.time_ns(tick),
                addr,
                size: entry.tuple.size,
                stream: entry.tuple.stream,
                pool: entry.tuple.pool,
                stack: select_unpredictable(is_free, entry.requested_stack, entry.tuple.stack),
                action: select_unpredictable(is_free, Action::FreeRequested, Action::Alloc),
            };
            tick = tick.wrapping_add(second);
            batch[made % BATCH_EVENTS] = event;
            // After an allocation, the next event overwrites this.
            batch[(made + 1) % BATCH_EVENTS] =
                Event { time_ns: grid.time_ns(tick), action: Action::FreeCompleted, ..event };
            made += 1 + usize::from(is_free);
        }
        (self.times, self.tick, self.after) = (times, tick, after);
        (self.allocated, self.last_freed, self.references_at) = (allocated, last_freed, references_at);
        Ok((used, made))
    }

    /// Decodes an operation with operands. Returns how many events it made.
    #[inline(never)]
    fn special(&mut self, op: u8, batch: &mut [Event; BATCH_EVENTS], made: usize) -> Result<usize, Fault> {
        let (mut event, table) = match op {
            ops::ALLOC_WIDE => self.alloc()?,
            ops::FREE_PAIR_UNKNOWN..ops::WITH_STACK => self.explicit(op)?,
            _ => self.free(op)?,
        };
        self.after = usize::from(op != ops::ALLOC_WIDE);
        let (first, second) = self.times.next(table)?;
        self.tick = self.tick.wrapping_add(first);
        event.time_ns = self.grid.time_ns(self.tick);
        self.tick = self.tick.wrapping_add(second);
        batch[made % BATCH_EVENTS] = event;
        if !is_pair(op) {
            return Ok(1);
        }
        let time_ns = self.grid.time_ns(self.tick);
        batch[(made + 1) % BATCH_EVENTS] = Event { time_ns, action: Action::FreeCompleted, ..event };
        Ok(2)
    }

    /// Reads the key of an operation from the operands.
    fn key(&mut self) -> Result<(usize, Key), Fault> {
        let number = self.operands.u32()? as usize;
        let key = self.keys.get(number).ok_or(Fault::Malformed(Part::Column(Column::Operands)))?;
        Ok((number, *key))
    }

    /// Decodes an allocation whose key is too large for a token.
    fn alloc(&mut self) -> Result<(Event, u32), Fault> {
        let (number, key) = self.key()?;
        let reference = self.references.get(self.references_at).ok_or(BAD_REFERENCES)?;
        let reference = u16::from_le_bytes(*reference);
        self.references_at += 1;
        let bounds = &mut self.allocations.bounds[..2 * self.allocated + 2];
        let bound = (2 * self.allocated).wrapping_sub(1).wrapping_sub(usize::from(reference));
        let addr = match bounds.get(bound) {
            Some(&addr) if reference != EXPLICIT && bound < 2 * self.allocated => addr,
            _ => explicit(reference, &mut self.addresses, &mut self.address, self.address_shift)?,
        };
        bounds[2 * self.allocated] = addr;
        bounds[2 * self.allocated + 1] = addr.wrapping_add(key.len_bytes);
        self.allocations.keys[self.allocated] = number as u32;
        self.allocated += 1;
        Ok((event(&key, Action::Alloc, addr, key.tuple.stack), key.tables[self.after]))
    }

    /// Decodes a free that names its allocation by number.
    fn free(&mut self, op: u8) -> Result<(Event, u32), Fault> {
        let plain = op & !ops::WITH_STACK;
        let distance = unzigzag(self.operands.u64()?);
        let owner = self.last_freed.wrapping_add(distance as usize);
        if owner >= self.allocated {
            return Err(Fault::Malformed(Part::Column(Column::Operands)));
        }
        self.last_freed = owner;
        let number = self.allocations.keys[owner] as usize;
        let key = self.keys.get_mut(number).ok_or(BAD_TOKENS)?;
        let (expected, action) = match plain {
            ops::FREE_PAIR | ops::FREE_REQUESTED => (&mut key.requested_stack, Action::FreeRequested),
            ops::FREE_COMPLETED => (&mut key.completed_stack, Action::FreeCompleted),
            _ => return Err(BAD_TOKENS),
        };
        if op != plain {
            *expected = StackId(self.operands.u32()?);
        }
        let stack = *expected;
        Ok((event(key, action, self.allocations.bounds[2 * owner], stack), key.tables[2 + self.after]))
    }

    /// Decodes an operation that has its key and address among the operands.
    fn explicit(&mut self, op: u8) -> Result<(Event, u32), Fault> {
        let (_, key) = self.key()?;
        let addr = next_address(&mut self.addresses, &mut self.address, self.address_shift)?;
        let action = match op {
            ops::FREE_PAIR_UNKNOWN | ops::FREE_REQUESTED_UNKNOWN => Action::FreeRequested,
            ops::FREE_COMPLETED_UNKNOWN => Action::FreeCompleted,
            _ => ops::action_of_other(op).ok_or(BAD_TOKENS)?,
        };
        Ok((event(&key, action, addr, key.tuple.stack), self.other_table))
    }
}

/// An event whose time is not known yet.
fn event(key: &Key, action: Action, addr: u64, stack: StackId) -> Event {
    let keys::Tuple { stack: _, size, stream, pool } = key.tuple;
    Event { time_ns: 0, addr, size, stream, pool, stack, action }
}

/// The address of an allocation whose reference is not valid. Either the address is explicit, or this is an error.
#[cold]
#[inline(never)]
fn explicit(reference: u16, addresses: &mut Cursor<'_>, address: &mut u64, shift: u32) -> Result<u64, Fault> {
    if reference == EXPLICIT { next_address(addresses, address, shift) } else { Err(BAD_REFERENCES) }
}

/// The next explicit address.
fn next_address(addresses: &mut Cursor<'_>, address: &mut u64, shift: u32) -> Result<u64, Fault> {
    let difference = unzigzag(addresses.u64()?) as u64;
    *address = address.wrapping_add(difference << shift);
    Ok(*address)
}

/// Whether an operation represents two events.
const fn is_pair(op: u8) -> bool {
    op == ops::FREE_PAIR || op == ops::FREE_PAIR | ops::WITH_STACK || op == ops::FREE_PAIR_UNKNOWN
}
