//! A streaming writer of Python's pickle format, protocol 2.
//!
//! Guarantees: only plain values are written, no classes and no code. Only opcodes that PyTorch's own viewer
//! (MemoryViz.js) supports in the browser are used, so the file opens there and in Python. Containers are written
//! while their contents arrive, so only the memo's numbers are kept in memory.

use std::collections::HashMap;
use std::io::{self, Write};

/// Items between two `APPENDS`, as in Python's pickler, so that a reader's stack stays short.
const BATCH: u32 = 1000;

/// A value that was written before and can be referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memo(u32);

/// The writer.
pub struct Pickle<W> {
    out: W,
    memos: u32,
    words: HashMap<&'static str, Memo>,
}

/// A list that is not complete yet.
#[derive(Debug, Default)]
#[must_use]
pub struct OpenList {
    in_batch: u32,
}

impl<W: Write> Pickle<W> {
    /// Begins a pickle.
    ///
    /// # Errors Those of the writer, as for all methods here.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"\x80\x02")?;
        Ok(Self { out, memos: 0, words: HashMap::new() })
    }

    /// Ends the pickle.
    pub fn stop(&mut self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    /// `True` or `False`.
    pub fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(if value { b"\x88" } else { b"\x89" })
    }

    /// An integer that is not negative.
    pub fn int(&mut self, value: u64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            return self.out.write_all(&[b'K', byte]);
        }
        if let Ok(short) = u16::try_from(value) {
            self.out.write_all(b"M")?;
            return self.out.write_all(&short.to_le_bytes());
        }
        if let Ok(int) = i32::try_from(value) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&int.to_le_bytes());
        }
        // LONG1 is two's complement. The topmost bit is the sign, so 2^63 and above need a ninth byte.
        let bytes = (65 - value.leading_zeros()).div_ceil(8) as usize;
        let mut long = [0_u8; 9];
        long[..8].copy_from_slice(&value.to_le_bytes());
        self.out.write_all(&[0x8a, bytes as u8])?;
        self.out.write_all(&long[..bytes])
    }

    /// A key of a dictionary and its integer value.
    pub fn number(&mut self, key: &'static str, value: u64) -> io::Result<()> {
        self.word(key)?;
        self.int(value)
    }

    /// `-1`, which means "no limit" in PyTorch.
    pub fn minus_one(&mut self) -> io::Result<()> {
        self.out.write_all(b"J\xff\xff\xff\xff")
    }

    /// A float.
    pub fn float(&mut self, value: f64) -> io::Result<()> {
        self.out.write_all(b"G")?;
        self.out.write_all(&value.to_be_bytes())
    }

    /// A string.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        let text = &text[..text.floor_char_boundary(u32::MAX as usize)];
        self.out.write_all(b"X")?;
        self.out.write_all(&(text.len() as u32).to_le_bytes())?;
        self.out.write_all(text.as_bytes())
    }

    /// A word of the format. It is written once; later uses refer to it.
    pub fn word(&mut self, word: &'static str) -> io::Result<()> {
        if let Some(&memo) = self.words.get(word) {
            return self.again(memo);
        }
        self.text(word)?;
        let memo = self.remember()?;
        self.words.insert(word, memo);
        Ok(())
    }

    /// Puts the value that was just written into the memo.
    pub fn remember(&mut self) -> io::Result<Memo> {
        let memo = self.memos;
        self.memos += 1;
        match u8::try_from(memo) {
            Ok(short) => self.out.write_all(&[b'q', short])?,
            Err(_) => {
                self.out.write_all(b"r")?;
                self.out.write_all(&memo.to_le_bytes())?;
            }
        }
        Ok(Memo(memo))
    }

    /// Refers to a value in the memo.
    pub fn again(&mut self, memo: Memo) -> io::Result<()> {
        match u8::try_from(memo.0) {
            Ok(short) => self.out.write_all(&[b'h', short]),
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&memo.0.to_le_bytes())
            }
        }
    }

    /// A pair.
    pub fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.int(first)?;
        self.int(second)?;
        self.out.write_all(b"\x86")
    }

    /// Begins a dictionary; keys and values follow in turn.
    pub fn begin_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"}(")
    }

    /// Ends a dictionary.
    pub fn end_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"u")
    }

    /// Begins a list. [`Pickle::item`] must be called before every item.
    pub fn begin_list(&mut self) -> io::Result<OpenList> {
        self.out.write_all(b"]")?;
        Ok(OpenList::default())
    }

    /// Prepares the list for the next item.
    pub fn item(&mut self, list: &mut OpenList) -> io::Result<()> {
        if list.in_batch == BATCH {
            self.out.write_all(b"e")?;
            list.in_batch = 0;
        }
        if list.in_batch == 0 {
            self.out.write_all(b"(")?;
        }
        list.in_batch += 1;
        Ok(())
    }

    /// Ends a list.
    pub fn end_list(&mut self, list: OpenList) -> io::Result<()> {
        if list.in_batch > 0 { self.out.write_all(b"e") } else { Ok(()) }
    }

    /// An empty list.
    pub fn empty_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(write: impl FnOnce(&mut Pickle<&mut Vec<u8>>) -> io::Result<()>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pickle = Pickle::new(&mut out).unwrap();
        write(&mut pickle).unwrap();
        pickle.stop().unwrap();
        out
    }

    /// The bytes that Python's own pickler (protocol 2) writes for these integers.
    #[test]
    fn integers_as_python_writes_them() {
        let int = |value: u64| bytes(|pickle| pickle.int(value));
        assert_eq!(int(0), b"\x80\x02K\x00.");
        assert_eq!(int(255), b"\x80\x02K\xff.");
        assert_eq!(int(256), b"\x80\x02M\x00\x01.");
        assert_eq!(int(65_536), b"\x80\x02J\x00\x00\x01\x00.");
        assert_eq!(int(0x7fff_ffff), b"\x80\x02J\xff\xff\xff\x7f.");
        assert_eq!(int(0x8000_0000), b"\x80\x02\x8a\x05\x00\x00\x00\x80\x00.");
        assert_eq!(int(0x7f00_0000_0000), b"\x80\x02\x8a\x06\x00\x00\x00\x00\x00\x7f.");
        assert_eq!(int(1 << 63), b"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.");
        assert_eq!(int(u64::MAX), b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.");
    }

    #[test]
    fn words_are_written_once_and_lists_in_batches() {
        let written = bytes(|pickle| {
            let mut list = pickle.begin_list()?;
            for _ in 0..3 {
                pickle.item(&mut list)?;
                pickle.word("size")?;
            }
            pickle.end_list(list)
        });
        assert_eq!(written, b"\x80\x02](X\x04\x00\x00\x00sizeq\x00h\x00h\x00e.");
        let long = bytes(|pickle| {
            let mut list = pickle.begin_list()?;
            for _ in 0..=BATCH {
                pickle.item(&mut list)?;
                pickle.boolean(true)?;
            }
            pickle.end_list(list)
        });
        let expected = [b"\x80\x02](".as_slice(), &[0x88; 1000], b"e(\x88e."].concat();
        assert_eq!(long, expected);
    }
}
