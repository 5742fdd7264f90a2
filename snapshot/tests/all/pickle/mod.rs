//! A small pickle writer for tests: Python values to bytes, in the styles in which snapshots are written.
//!
//! It also writes pickles that no real pickler would write. It is independent of the reader.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::rc::Rc;

/// A Python value.
#[derive(Clone, Debug)]
pub enum Py {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Tuple(Vec<Py>),
    List(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// A shared object: written once, then fetched from the memo.
    Shared(Rc<Py>),
    /// Opcodes that push one value.
    Raw(Vec<u8>),
}

/// How a pickle is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Like CPython, protocol 4: MEMOIZE, lists in batches of a thousand.
    Python4,
    /// Like CPython, protocol 2: LONG_BINPUT, lists in batches of a thousand.
    Python2,
    /// Every list in one piece. Only shared values are memoized, and only after their content.
    OnePiece,
    /// Protocol 0: text, one SETITEM or APPEND per item.
    Text,
}

/// The value as a pickle.
pub fn dumps(value: &Py, style: Style) -> Vec<u8> {
    let mut writer = Writer { out: Vec::new(), style, memo_len: 0, shared: HashMap::new() };
    match style {
        Style::Python4 => writer.out.extend([0x80, 4]),
        Style::Python2 | Style::OnePiece => writer.out.extend([0x80, 2]),
        Style::Text => {}
    }
    writer.value(value);
    writer.out.push(b'.');
    writer.out
}

struct Writer {
    out: Vec<u8>,
    style: Style,
    memo_len: u32,
    shared: HashMap<*const Py, u32>,
}

impl Writer {
    fn put(&mut self) {
        match self.style {
            Style::Python4 => self.out.push(0x94),
            Style::Text => self.out.extend(format!("p{}\n", self.memo_len).bytes()),
            Style::Python2 | Style::OnePiece => {
                self.out.push(b'r');
                self.out.extend(self.memo_len.to_le_bytes());
            }
        }
        self.memo_len += 1;
    }

    /// CPython memoizes every container and string; the one-piece style only shared values.
    fn memoize(&mut self) {
        if self.style != Style::OnePiece {
            self.put();
        }
    }

    fn value(&mut self, value: &Py) {
        match value {
            Py::None => self.out.push(b'N'),
            Py::Raw(opcodes) => self.out.extend(opcodes),
            Py::Float(f) if self.style == Style::Text => self.out.extend(format!("F{f}\n").bytes()),
            Py::Float(f) => {
                self.out.push(b'G');
                self.out.extend(f.to_be_bytes());
            }
            Py::Bool(b) if self.style == Style::Text => self.out.extend(format!("I0{}\n", u8::from(*b)).bytes()),
            Py::Bool(b) => self.out.push(if *b { 0x88 } else { 0x89 }),
            Py::Int(n) => self.int(*n),
            Py::Str(text) => self.text(text),
            Py::Tuple(items) => {
                self.out.push(b'(');
                items.iter().for_each(|item| self.value(item));
                self.out.push(b't');
                self.memoize();
            }
            Py::List(items) => self.list(items),
            Py::Dict(items) => self.dict(items),
            Py::Shared(value) => self.shared(value),
        }
    }

    fn int(&mut self, n: i64) {
        match n {
            _ if self.style == Style::Text => self.out.extend(format!("L{n}L\n").bytes()),
            0..=0xff => self.out.extend([b'K', n as u8]),
            _ => match i32::try_from(n) {
                Ok(n) => {
                    self.out.push(b'J');
                    self.out.extend(n.to_le_bytes());
                }
                Err(_) => {
                    self.out.extend([0x8a, 8]);
                    self.out.extend(n.to_le_bytes());
                }
            },
        }
    }

    fn text(&mut self, text: &str) {
        match self.style {
            Style::Text => self.out.extend(format!("V{text}\n").bytes()),
            Style::Python4 if text.len() < 256 => {
                self.out.extend([0x8c, text.len() as u8]);
                self.out.extend(text.bytes());
            }
            _ => {
                self.out.push(b'X');
                self.out.extend((text.len() as u32).to_le_bytes());
                self.out.extend(text.bytes());
            }
        }
        self.memoize();
    }

    fn list(&mut self, items: &[Py]) {
        self.out.extend(if self.style == Style::Text { &b"(l"[..] } else { b"]" });
        self.memoize();
        match self.style {
            Style::Text => items.iter().for_each(|item| {
                self.value(item);
                self.out.push(b'a');
            }),
            Style::OnePiece => self.batch(items, b'e', Self::value),
            Style::Python4 | Style::Python2 => {
                items.chunks(1000).for_each(|batch| self.batch(batch, b'e', Self::value));
            }
        }
    }

    fn dict(&mut self, items: &[(Py, Py)]) {
        self.out.extend(if self.style == Style::Text { &b"(d"[..] } else { b"}" });
        self.memoize();
        let write = |writer: &mut Self, (key, value): &(Py, Py)| {
            writer.value(key);
            writer.value(value);
        };
        match self.style {
            Style::Text => items.iter().for_each(|item| {
                write(self, item);
                self.out.push(b's');
            }),
            _ => self.batch(items, b'u', write),
        }
    }

    fn batch<T>(&mut self, items: &[T], end: u8, write: impl Fn(&mut Self, &T)) {
        if !items.is_empty() {
            self.out.push(b'(');
            items.iter().for_each(|item| write(self, item));
            self.out.push(end);
        }
    }

    fn shared(&mut self, value: &Rc<Py>) {
        if let Some(&index) = self.shared.get(&Rc::as_ptr(value)) {
            if self.style == Style::Text {
                self.out.extend(format!("g{index}\n").bytes());
            } else {
                self.out.push(b'j');
                self.out.extend(index.to_le_bytes());
            }
            return;
        }
        // A list or a dict takes the next index before its content does. (A tuple does not: it cannot be shared here.)
        if self.style != Style::OnePiece {
            self.shared.insert(Rc::as_ptr(value), self.memo_len);
        }
        self.value(value);
        if self.style == Style::OnePiece {
            self.shared.insert(Rc::as_ptr(value), self.memo_len);
            self.put();
        }
    }
}

pub fn str(text: &str) -> Py {
    Py::Str(text.into())
}

pub fn dict<const N: usize>(items: [(&str, Py); N]) -> Py {
    Py::Dict(items.into_iter().map(|(key, value)| (str(key), value)).collect())
}

/// The dict with an additional key, or with another value of this key.
pub fn with(value: Py, key: &str, new: Py) -> Py {
    let Py::Dict(mut items) = value else { panic!("not a dict") };
    items.retain(|(known, _)| !matches!(known, Py::Str(known) if known == key));
    items.push((str(key), new));
    Py::Dict(items)
}

/// The dict without a key.
pub fn without(value: Py, key: &str) -> Py {
    let Py::Dict(mut items) = value else { panic!("not a dict") };
    items.retain(|(known, _)| !matches!(known, Py::Str(known) if known == key));
    Py::Dict(items)
}

pub fn frame(name: &str, line: i64) -> Py {
    dict([("name", str(name)), ("filename", str("/home/u/train.py")), ("line", Py::Int(line))])
}

/// A trace entry as torch 2.2 writes it.
pub fn event(action: &str, addr: i64, size: i64, time_us: i64) -> Py {
    dict([
        ("action", str(action)),
        (if action == "oom" { "device_free" } else { "addr" }, Py::Int(addr)),
        ("size", Py::Int(size)),
        ("stream", Py::Int(0)),
        ("time_us", Py::Int(time_us)),
        ("frames", Py::List(vec![])),
    ])
}

pub fn annotation(name: &str, stage: &str, time_us: i64) -> Py {
    dict([("stage", str(stage)), ("name", str(name)), ("device", Py::Int(0)), ("time_us", Py::Int(time_us))])
}

pub fn block(address: i64, size: i64, state: &str) -> Py {
    dict([
        ("address", Py::Int(address)),
        ("size", Py::Int(size)),
        ("requested_size", Py::Int(size - 12)),
        ("state", str(state)),
        ("frames", Py::List(vec![frame("make", 3)])),
    ])
}

pub fn segment(device: i64, address: i64, blocks: Vec<Py>, size: i64) -> Py {
    dict([
        ("device", Py::Int(device)),
        ("address", Py::Int(address)),
        ("total_size", Py::Int(size)),
        ("allocated_size", Py::Int(0)),
        ("stream", Py::Int(0)),
        ("segment_type", str("small")),
        ("segment_pool_id", Py::Tuple(vec![Py::Int(0), Py::Int(0)])),
        ("is_expandable", Py::Bool(false)),
        ("frames", Py::List(vec![])),
        ("blocks", Py::List(blocks)),
    ])
}

/// A snapshot of one device.
pub fn snapshot(events: Vec<Py>, annotations: Vec<Py>) -> Py {
    dict([
        ("segments", Py::List(vec![])),
        ("device_traces", Py::List(vec![Py::List(events)])),
        ("external_annotations", Py::List(annotations)),
    ])
}
