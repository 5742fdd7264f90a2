//! The pickle interpreter for protocols 0 to 5 and plain data only.
//!
//! Guarantees: nothing is imported, called or built. Every opcode that would do so is rejected with its name. Memory
//! does not depend on declared lengths, and nesting is bounded. A skipped value leaves only a memo entry of 4 bytes
//! and, if it is a string not seen before, the string. A pickle that ends early or contradicts itself gives an error
//! with its position. Lists may come in CPython's batches of a thousand items or in one piece. In the latter case,
//! complete items are consumed early.

use memctl_model::limits::NAME_BYTES_MAX;

use super::Progress;
use super::error::SnapshotFault;
use super::heap::{Heap, Misuse};
use super::input::Input;
use super::opcode as op;
use super::value::{Kind, Value};

/// Maximum values on the stack. A list of a million numbers in one piece needs as many, because only dicts are
/// consumed early.
const STACK_MAX: usize = 1 << 20;
/// Maximum number of open marks. A snapshot needs six.
const MARKS_MAX: usize = 256;
/// After this many items above a mark, complete items are consumed early. CPython's batches are much smaller, so its
/// pickles never reach this number.
const EARLY_ITEMS: usize = 4096;
/// Bytes that suffice for every opcode with fixed arguments, and for most strings.
const LOOKAHEAD_BYTES: usize = 512;
/// Bytes between two checks of the limit and two reports of progress.
const CHECK_BYTES: u64 = 1 << 20;

/// An open mark.
pub(crate) struct Mark {
    /// Height of the stack when the mark was set.
    pub(super) height: usize,
    /// Whether items above it have already been moved into the list below it.
    taken_early: bool,
}

/// The interpreter of one pickle.
pub(crate) struct Machine<'r> {
    pub(crate) input: Input<'r>,
    pub(crate) heap: Heap,
    pub(super) stack: Vec<Value>,
    pub(super) marks: Vec<Mark>,
    /// Offset of the current opcode.
    pub(super) at: u64,
}

impl<'r> Machine<'r> {
    pub(crate) fn new(input: Input<'r>) -> Self {
        Self { input, heap: Heap::new(), stack: Vec::new(), marks: Vec::new(), at: 0 }
    }

    /// Runs until STOP and returns the value at the top.
    pub(crate) fn run(
        &mut self,
        held_bytes_max: u64,
        mut progress: impl FnMut(Progress),
    ) -> Result<Value, SnapshotFault> {
        let mut next_check = 0;
        loop {
            self.at = self.input.offset();
            if !self.input.has(LOOKAHEAD_BYTES) && !self.input.is_drained() {
                self.input.fill()?;
            }
            if self.at >= next_check {
                next_check = self.at + CHECK_BYTES;
                if self.heap.held_bytes() > held_bytes_max {
                    return Err(SnapshotFault::TooLarge { limit_bytes: held_bytes_max, at: self.at });
                }
                let bytes_read = self.input.file_bytes_read();
                progress(Progress { bytes_read, bytes_total: None, events: self.heap.found.events });
            }
            let opcode = self.input.byte()?;
            if opcode == op::STOP {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    /// Executes one opcode; the frequent ones come first.
    #[inline]
    fn step(&mut self, opcode: u8) -> Result<(), SnapshotFault> {
        match opcode {
            op::BINGET => {
                let index = u64::from(self.input.byte()?);
                self.get(index)
            }
            op::LONG_BINGET => {
                let index = u64::from(u32::from_le_bytes(self.input.array()?));
                self.get(index)
            }
            op::MEMOIZE => self.put(self.heap.memo.next_index()),
            op::LONG1 => {
                let n = self.input.byte()?;
                self.long(u64::from(n))
            }
            op::MARK => self.mark(),
            op::BININT1 => {
                let n = self.input.byte()?;
                self.push(Value::int(i64::from(n)))
            }
            op::BININT2 => {
                let n = u16::from_le_bytes(self.input.array()?);
                self.push(Value::int(i64::from(n)))
            }
            op::BININT => {
                let n = i32::from_le_bytes(self.input.array()?);
                self.push(Value::int(i64::from(n)))
            }
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING => {
                let n = self.input.byte()?;
                self.text(u64::from(n))
            }
            op::EMPTY_DICT => self.empty_dict(),
            op::EMPTY_LIST => {
                let list = self.heap.new_list().map_err(|misuse| misuse.at(self.at))?;
                self.push(list)
            }
            op::SETITEMS => self.set_items(),
            op::APPENDS => self.appends(),
            op::APPEND => {
                let item = self.pop()?;
                self.append(item)
            }
            op::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                let dict = self.peek()?;
                self.check(|heap| heap.set_items(dict, &[key, value]))
            }
            op::BINPUT => {
                let index = u64::from(self.input.byte()?);
                self.put(index)
            }
            op::LONG_BINPUT => {
                let index = u64::from(u32::from_le_bytes(self.input.array()?));
                self.put(index)
            }
            _ => self.rare_opcode(opcode),
        }
    }

    fn empty_dict(&mut self) -> Result<(), SnapshotFault> {
        if let Some(mark) = self.marks.last()
            && self.stack.len() - mark.height >= EARLY_ITEMS
            && (self.stack.len() - mark.height).is_multiple_of(EARLY_ITEMS)
        {
            self.take_early()?;
        }
        let dict = self.heap.new_dict(self.stack.is_empty()).map_err(|misuse| misuse.at(self.at))?;
        self.push(dict)
    }

    /// Moves the items that were read so far into their list, if all of them are complete dicts.
    ///
    /// If one dict directly follows another without a key in between, they are items of one list, so all are complete.
    #[cold]
    fn take_early(&mut self) -> Result<(), SnapshotFault> {
        let Some(mark) = self.marks.last_mut() else { return Ok(()) };
        let items = &self.stack[mark.height..];
        let below_is_list = mark.height > 0 && self.stack[mark.height - 1].kind() == Kind::List;
        if below_is_list && items.iter().all(|&item| self.heap.is_complete_item(item)) {
            let (below, list) = (&self.stack[..mark.height - 1], self.stack[mark.height - 1]);
            mark.taken_early = true;
            let height = mark.height;
            self.heap.extend(list, items, below).map_err(|misuse| misuse.at(self.at))?;
            self.stack.truncate(height);
        }
        Ok(())
    }

    fn appends(&mut self) -> Result<(), SnapshotFault> {
        // This is the only opcode for which items may have been consumed early.
        if let Some(mark) = self.marks.last_mut() {
            mark.taken_early = false;
        }
        let from = self.unmark()?;
        let Some(list_at) = from.checked_sub(1) else { return Err(self.underflow()) };
        let (list, below) = (self.stack[list_at], &self.stack[..list_at]);
        self.heap.extend(list, &self.stack[from..], below).map_err(|misuse| misuse.at(self.at))?;
        self.stack.truncate(from);
        Ok(())
    }

    fn append(&mut self, item: Value) -> Result<(), SnapshotFault> {
        let list = self.peek()?;
        let below = &self.stack[..self.stack.len() - 1];
        self.heap.extend(list, &[item], below).map_err(|misuse| misuse.at(self.at))
    }

    fn set_items(&mut self) -> Result<(), SnapshotFault> {
        let from = self.unmark()?;
        let Some(dict_at) = from.checked_sub(1) else { return Err(self.underflow()) };
        if !(self.stack.len() - from).is_multiple_of(2) {
            return Err(self.malformed("a key without a value".into()));
        }
        let dict = self.stack[dict_at];
        self.heap.set_items(dict, &self.stack[from..]).map_err(|misuse| misuse.at(self.at))?;
        self.stack.truncate(from);
        Ok(())
    }

    /// A tuple of the topmost values. A tuple of two numbers is kept, because pools have such names.
    pub(super) fn tuple(&mut self, n: usize) -> Result<(), SnapshotFault> {
        let floor = self.marks.last().map_or(0, |mark| mark.height);
        let Some(from) = self.stack.len().checked_sub(n).filter(|&from| from >= floor) else {
            return Err(self.underflow());
        };
        let value = match self.stack[from..] {
            [first, second] => match (first.as_u64(), second.as_u64()) {
                (Some(first), Some(second)) => Value::refer(Kind::Pair, self.heap.tables.pair((first, second))),
                _ => Value::OPAQUE,
            },
            _ => Value::OPAQUE,
        };
        self.drop_above(from);
        self.push(value)
    }

    #[inline]
    pub(super) fn text(&mut self, n: u64) -> Result<(), SnapshotFault> {
        let kept = n.min(NAME_BYTES_MAX as u64);
        // `kept` is at most NAME_BYTES_MAX, which fits into the buffer.
        let id = self.heap.tables.text_of_bytes(self.input.slice(kept as usize)?);
        if n > kept {
            self.input.skip(n - kept)?;
        }
        self.push(Value::refer(Kind::Str, id))
    }

    pub(super) fn bytes(&mut self, n: u64) -> Result<(), SnapshotFault> {
        self.input.skip(n)?;
        self.push(Value::OPAQUE)
    }

    /// A number of `n` bytes, little-endian, two's complement.
    #[inline]
    pub(super) fn long(&mut self, n: u64) -> Result<(), SnapshotFault> {
        if n > 8 {
            return self.bytes(n);
        }
        // `n` is at most eight, as checked above.
        let n = n as usize;
        let word = match self.input.peek_word() {
            // Usually eight bytes are available. The number's own bytes are shifted to the top and back, which extends
            // the sign.
            Some(word) if n > 0 => {
                self.input.slice(n)?;
                let unused_bits = 64 - 8 * n as u32;
                (word << unused_bits) as i64 >> unused_bits
            }
            _ => {
                let bytes = self.input.slice(n)?;
                let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { -1 } else { 0 };
                bytes.iter().rev().fold(sign, |number, &byte| number << 8 | i64::from(byte))
            }
        };
        self.push(Value::int(word))
    }

    #[inline]
    pub(super) fn get(&mut self, index: u64) -> Result<(), SnapshotFault> {
        let Some(value) = self.heap.memo.get(index) else {
            return Err(self.malformed(format!("a reference to {index}, which the memo does not have,")));
        };
        let value = if value.is_open() { self.heap.share(value) } else { value };
        self.push(value)
    }

    #[inline]
    pub(super) fn put(&mut self, index: u64) -> Result<(), SnapshotFault> {
        // Every entry takes at least one byte of the file, so a valid index is below the offset.
        if index > self.at {
            return Err(self.malformed(format!("a memo index of {index}")));
        }
        let value = self.peek()?;
        self.heap.memoize(value, index);
        Ok(())
    }

    #[inline]
    fn mark(&mut self) -> Result<(), SnapshotFault> {
        if self.marks.len() >= MARKS_MAX {
            return Err(SnapshotFault::TooDeep { what: "more than 256 nested containers", at: self.at });
        }
        self.marks.push(Mark { height: self.stack.len(), taken_early: false });
        Ok(())
    }

    /// Removes the topmost mark and returns its height.
    #[inline]
    pub(super) fn unmark(&mut self) -> Result<usize, SnapshotFault> {
        match self.marks.pop() {
            Some(mark) if mark.taken_early => Err(SnapshotFault::Unsupported {
                what: "thousands of dicts in a row that are not items of a list",
                at: self.at,
            }),
            Some(mark) => Ok(mark.height),
            None => Err(self.malformed("the end of a container that was not begun".into())),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, value: Value) -> Result<(), SnapshotFault> {
        if self.stack.len() >= STACK_MAX {
            return Err(SnapshotFault::TooDeep { what: "more than a million values open at once", at: self.at });
        }
        self.stack.push(value);
        Ok(())
    }

    /// Whether there is a value above the topmost mark.
    #[inline]
    fn above_mark(&self) -> bool {
        self.stack.len() > self.marks.last().map_or(0, |mark| mark.height)
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Result<Value, SnapshotFault> {
        if !self.above_mark() {
            return Err(self.underflow());
        }
        self.stack.pop().ok_or_else(|| self.underflow())
    }

    #[inline]
    pub(super) fn peek(&self) -> Result<Value, SnapshotFault> {
        if !self.above_mark() {
            return Err(self.underflow());
        }
        self.stack.last().copied().ok_or_else(|| self.underflow())
    }

    pub(super) fn drop_above(&mut self, height: usize) {
        for &value in &self.stack[height..] {
            self.heap.close(value);
        }
        self.stack.truncate(height);
    }

    #[inline]
    pub(super) fn check(&mut self, act: impl FnOnce(&mut Heap) -> Result<(), Misuse>) -> Result<(), SnapshotFault> {
        act(&mut self.heap).map_err(|misuse| misuse.at(self.at))
    }

    #[cold]
    pub(super) fn malformed(&self, what: String) -> SnapshotFault {
        SnapshotFault::Malformed { what, at: self.at }
    }

    #[cold]
    fn underflow(&self) -> SnapshotFault {
        self.malformed("an opcode that needs more values than there are".into())
    }
}
