//! Opcodes that occur once in a snapshot or never: protocol 0's text, sets, tuples, and opcodes that would import,
//! build or call something. The latter are rejected with their name.

use std::borrow::Cow;

use memctl_model::limits::NAME_BYTES_MAX;

use super::error::SnapshotFault;
use super::machine::Machine;
use super::opcode as op;
use super::value::{Kind, Value};

/// Bytes of a text opcode's line that are kept; they suffice for a name in which every character is escaped.
const LINE_BYTES_MAX: usize = NAME_BYTES_MAX * 10;

impl Machine<'_> {
    /// Executes an opcode that occurs once in a snapshot or never.
    #[cold]
    pub(super) fn rare_opcode(&mut self, opcode: u8) -> Result<(), SnapshotFault> {
        match opcode {
            op::PROTO => match self.input.byte()? {
                0..=5 => Ok(()),
                protocol => Err(self.malformed(format!("pickle protocol {protocol} (known: 0 to 5)"))),
            },
            op::FRAME => self.input.skip(8),
            op::NONE => self.push(Value::NONE),
            op::NEWTRUE => self.push(Value::bool(true)),
            op::NEWFALSE => self.push(Value::bool(false)),
            op::BINFLOAT => {
                let f = f64::from_be_bytes(self.input.array()?);
                self.push(Value::float(f))
            }
            op::BINUNICODE | op::BINSTRING => {
                let n = u32::from_le_bytes(self.input.array()?);
                self.text(u64::from(n))
            }
            op::BINUNICODE8 => {
                let n = u64::from_le_bytes(self.input.array()?);
                self.text(n)
            }
            op::LONG4 => {
                let n = i32::from_le_bytes(self.input.array()?);
                let n = u64::try_from(n).map_err(|_| self.malformed(format!("a number of {n} bytes")))?;
                self.long(n)
            }
            op::SHORT_BINBYTES => {
                let n = self.input.byte()?;
                self.bytes(u64::from(n))
            }
            op::BINBYTES => {
                let n = u32::from_le_bytes(self.input.array()?);
                self.bytes(u64::from(n))
            }
            op::BINBYTES8 | op::BYTEARRAY8 => {
                let n = u64::from_le_bytes(self.input.array()?);
                self.bytes(n)
            }
            op::EMPTY_TUPLE | op::EMPTY_SET => self.push(Value::OPAQUE),
            op::TUPLE1 => self.tuple(1),
            op::TUPLE2 => self.tuple(2),
            op::TUPLE3 => self.tuple(3),
            op::TUPLE => {
                let from = self.unmark()?;
                self.tuple(self.stack.len() - from)
            }
            op::FROZENSET => {
                let from = self.unmark()?;
                self.drop_above(from);
                self.push(Value::OPAQUE)
            }
            op::ADDITEMS => {
                let from = self.unmark()?;
                self.drop_above(from);
                self.peek().map(|_| ())
            }
            op::POP => match self.marks.last() {
                // As in CPython: if there is nothing above the mark, the mark itself is removed.
                Some(mark) if mark.height == self.stack.len() => self.unmark().map(|_| ()),
                _ => {
                    let value = self.pop()?;
                    self.heap.close(value);
                    Ok(())
                }
            },
            op::POP_MARK => {
                let from = self.unmark()?;
                self.drop_above(from);
                Ok(())
            }
            op::DUP => {
                let value = self.peek()?;
                let second = self.heap.share(value);
                self.push(second)
            }
            op::INT | op::LONG | op::FLOAT | op::STRING | op::UNICODE | op::PUT | op::GET => self.line(opcode),
            op::LIST | op::DICT => self.old_container(opcode),
            _ => self.refuse(opcode),
        }
    }

    /// Executes the opcodes of protocol 0 whose argument is a line of text.
    fn line(&mut self, opcode: u8) -> Result<(), SnapshotFault> {
        let line = self.input.line(LINE_BYTES_MAX)?;
        let text = String::from_utf8_lossy(&line);
        match opcode {
            op::INT if text == "00" || text == "01" => self.push(Value::bool(text == "01")),
            op::INT | op::LONG => {
                let digits = text.trim_end_matches('L');
                // A number of any length is valid, but one of more than 64 bits is not kept.
                let value = digits.parse::<i64>().map_or(Value::OPAQUE, Value::int);
                self.push(value)
            }
            op::FLOAT => {
                let f = text.parse().map_err(|_| self.malformed("a float that is none".into()))?;
                self.push(Value::float(f))
            }
            op::PUT | op::GET => {
                let index = text.parse().map_err(|_| self.malformed("an index that is none".into()))?;
                if opcode == op::PUT { self.put(index) } else { self.get(index) }
            }
            op::STRING => {
                let id = self.heap.tables.text_of_bytes(text.trim_matches(['\'', '"']).as_bytes());
                self.push(Value::refer(Kind::Str, id))
            }
            _ => {
                let id = self.heap.tables.text_of_bytes(unescape(&text).as_bytes());
                self.push(Value::refer(Kind::Str, id))
            }
        }
    }

    /// Executes LIST and DICT of protocol 0: makes a container of the values above the mark.
    fn old_container(&mut self, opcode: u8) -> Result<(), SnapshotFault> {
        let from = self.unmark()?;
        let items = self.stack.split_off(from);
        if opcode == op::LIST {
            let list = self.heap.new_list().map_err(|misuse| misuse.at(self.at))?;
            let (heap, below) = (&mut self.heap, &self.stack);
            heap.extend(list, &items, below).map_err(|misuse| misuse.at(self.at))?;
            self.push(list)
        } else {
            let is_root = self.stack.is_empty();
            let dict = self.heap.new_dict(is_root).map_err(|misuse| misuse.at(self.at))?;
            self.check(|heap| heap.set_items(dict, &items))?;
            self.push(dict)
        }
    }

    /// The error for opcodes that would run code, need something from outside, or do not exist.
    fn refuse(&mut self, opcode: u8) -> Result<(), SnapshotFault> {
        let at = self.at;
        let what: Cow<'static, str> = match opcode {
            op::GLOBAL | op::INST => {
                let (module, name) = (self.input.line(NAME_BYTES_MAX)?, self.input.line(NAME_BYTES_MAX)?);
                format!("{}.{}", String::from_utf8_lossy(&module), String::from_utf8_lossy(&name)).into()
            }
            op::STACK_GLOBAL => {
                let text = |value: Option<&Value>| {
                    let id = value.and_then(|value| value.id(Kind::Str));
                    id.map_or("?".into(), |id| self.heap.tables.text_at(id).to_string())
                };
                let height = self.stack.len();
                let module = height.checked_sub(2).and_then(|at| self.stack.get(at));
                format!("{}.{}", text(module), text(self.stack.last())).into()
            }
            op::REDUCE => "REDUCE".into(),
            op::BUILD => "BUILD".into(),
            op::OBJ => "OBJ".into(),
            op::NEWOBJ | op::NEWOBJ_EX => "NEWOBJ".into(),
            op::EXT1 | op::EXT2 | op::EXT4 => "an extension".into(),
            op::PERSID | op::BINPERSID => "a persistent id".into(),
            op::NEXT_BUFFER | op::READONLY_BUFFER => {
                return Err(SnapshotFault::Unsupported { what: "a buffer outside the pickle", at });
            }
            _ => return Err(self.malformed(format!("0x{opcode:02x}, which is no opcode,"))),
        };
        Err(SnapshotFault::ContainsCode { what: what.into_owned(), at })
    }
}

/// Decodes Python's raw-unicode-escape: `\uXXXX` and `\UXXXXXXXX`. All other text is unchanged.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let digits = match rest.as_bytes().get(at + 1) {
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        let code = rest.get(at + 2..at + 2 + digits).filter(|code| !code.is_empty());
        match code.and_then(|code| u32::from_str_radix(code, 16).ok()) {
            Some(code) => {
                plain.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                rest = &rest[at + 2 + digits..];
            }
            None => {
                plain.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes_of_protocol_0() {
        assert_eq!(unescape(r"a\u00e9b\U0001f600\n"), "aéb😀\\n");
        assert_eq!(unescape(r"\u12"), r"\u12");
        assert_eq!(unescape("\\"), "\\");
    }
}
