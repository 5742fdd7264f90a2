//! The byte stream below the pickle reader: a buffer, compression detected by magic bytes, and a digest of the bytes
//! read.
//!
//! Guarantees: memory is one buffer, regardless of the lengths that the file declares. The digest covers exactly the
//! unpacked bytes that were consumed, so a pickle and its compressed form have the same digest.

#[cfg(target_family = "wasm")]
use memctl_zstd as zstd;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use super::digest::{Digest, Digests};
use super::error::SnapshotFault;

/// Bytes of the buffer: large enough that system calls cost little, small enough to stay in the L2 cache.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes by which the format of a file is recognised.
const SNIFF_BYTES: usize = 16;

/// How the pickle is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// Counts the bytes that the decompressor reads.
struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        // Relaxed: only one thread writes and reads it. It is atomic only because the decompressor owns this reader
        // while the count is read elsewhere.
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// A buffered, unpacked byte stream with a digest.
pub(crate) struct Input<'r> {
    reader: Box<dyn Read + 'r>,
    packing: Packing,
    file_bytes_read: Arc<AtomicU64>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// First byte of the buffer that is not in the digest yet.
    digested: usize,
    /// Offset in the unpacked stream of `buffer[0]`.
    base: u64,
    at_end: bool,
    digest: Digest,
}

impl<'r> Input<'r> {
    /// Recognises the compression and starts to read.
    pub(crate) fn open(mut reader: impl Read + 'r) -> Result<Self, SnapshotFault> {
        let mut head = Vec::with_capacity(SNIFF_BYTES);
        reader.by_ref().take(SNIFF_BYTES as u64).read_to_end(&mut head).map_err(SnapshotFault::Unreadable)?;
        let packing = packing_of(&head)?;
        let file_bytes_read = Arc::new(AtomicU64::new(0));
        let raw = Counted { inner: io::Cursor::new(head).chain(reader), read: Arc::clone(&file_bytes_read) };
        let reader: Box<dyn Read + 'r> = match packing {
            Packing::Plain => Box::new(raw),
            Packing::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, raw))),
            Packing::Zstd => Box::new(zstd::stream::read::Decoder::new(raw).map_err(SnapshotFault::Unreadable)?),
        };
        let mut input = Self {
            reader,
            packing,
            file_bytes_read,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            digested: 0,
            base: 0,
            at_end: false,
            digest: Digest::new(),
        };
        input.fill()?;
        not_a_pickle(&input.buffer[..input.end])?;
        Ok(input)
    }

    /// Bytes of the file (compressed, if it is compressed) that were read so far.
    pub(crate) fn file_bytes_read(&self) -> u64 {
        // Relaxed: see `Counted`.
        self.file_bytes_read.load(Ordering::Relaxed)
    }

    /// Offset in the unpacked stream.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Whether at least `n` bytes are in the buffer.
    #[inline]
    pub(crate) fn has(&self, n: usize) -> bool {
        self.end - self.start >= n
    }

    /// Whether the stream has no bytes after the buffered ones.
    pub(crate) fn is_drained(&self) -> bool {
        self.at_end
    }

    /// One byte.
    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, SnapshotFault> {
        if self.start == self.end {
            self.fill()?;
            if self.start == self.end {
                return Err(self.truncated(1));
            }
        }
        let byte = self.buffer[self.start];
        self.start += 1;
        Ok(byte)
    }

    /// `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotFault> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(N)?);
        Ok(array)
    }

    /// The next `n` bytes, at most the buffer's size, as a slice of the buffer.
    #[inline]
    pub(crate) fn slice(&mut self, n: usize) -> Result<&[u8], SnapshotFault> {
        if !self.has(n) {
            self.fill()?;
            if !self.has(n) {
                return Err(self.truncated(n as u64));
            }
        }
        let from = self.start;
        self.start += n;
        Ok(&self.buffer[from..from + n])
    }

    /// The next eight bytes as a little-endian number, without consuming them; `None` when the buffer has fewer.
    #[inline]
    pub(crate) fn peek_word(&self) -> Option<u64> {
        self.buffer[self.start..self.end].first_chunk().copied().map(u64::from_le_bytes)
    }

    /// Skips `n` bytes, however many.
    pub(crate) fn skip(&mut self, mut n: u64) -> Result<(), SnapshotFault> {
        loop {
            let here = n.min((self.end - self.start) as u64);
            // `here` is at most the buffer's length.
            self.start += here as usize;
            n -= here;
            if n == 0 {
                return Ok(());
            }
            self.fill()?;
            if self.start == self.end {
                return Err(self.truncated(n));
            }
        }
    }

    /// A line without its end. Only the first `keep` bytes are kept.
    pub(crate) fn line(&mut self, keep: usize) -> Result<Vec<u8>, SnapshotFault> {
        let mut line = Vec::new();
        loop {
            let byte = self.byte()?;
            if byte == b'\n' {
                break;
            }
            if line.len() < keep {
                line.push(byte);
            }
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(line)
    }

    /// Reads on until the buffer is full or the stream ends.
    #[cold]
    pub(crate) fn fill(&mut self) -> Result<(), SnapshotFault> {
        self.digest.update(&self.buffer[self.digested..self.start]);
        self.buffer.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        self.digested = 0;
        while self.end < self.buffer.len() && !self.at_end {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.read_fault(error)),
            }
        }
        Ok(())
    }

    /// The digests of the consumed bytes.
    pub(crate) fn finish(mut self) -> Digests {
        self.digest.update(&self.buffer[self.digested..self.start]);
        self.digest.finish()
    }

    /// The error for a stream that ended although `missing` more bytes were needed.
    #[cold]
    fn truncated(&self, missing: u64) -> SnapshotFault {
        let at = self.base + self.end as u64;
        let needed = self.offset().saturating_add(missing);
        SnapshotFault::Truncated { at, total: Some(needed) }
    }

    fn read_fault(&self, error: io::Error) -> SnapshotFault {
        let (format, test) = match self.packing {
            Packing::Gzip => ("gzip", "gzip -t FILE"),
            Packing::Zstd => ("zstd", "zstd -t FILE"),
            Packing::Plain => return SnapshotFault::Unreadable(error),
        };
        // An error with a number comes from the operating system, one without from the decompressor.
        if error.raw_os_error().is_some() {
            SnapshotFault::Unreadable(error)
        } else {
            SnapshotFault::CorruptCompression { format, reason: error.to_string(), test }
        }
    }
}

fn packing_of(head: &[u8]) -> Result<Packing, SnapshotFault> {
    let looks_like = match head {
        [] => "an empty file",
        [0x1f, 0x8b, ..] => return Ok(Packing::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return Ok(Packing::Zstd),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "an xz file (unpack it with `unxz` first)",
        [b'B', b'Z', b'h', ..] => "a bzip2 file (unpack it with `bunzip2` first)",
        _ => return Ok(Packing::Plain),
    };
    Err(SnapshotFault::NotAPickle { looks_like })
}

/// Returns an error that names the kind of the unpacked bytes if they cannot be a pickle.
fn not_a_pickle(bytes: &[u8]) -> Result<(), SnapshotFault> {
    let text = bytes.trim_ascii_start();
    let looks_like = match bytes {
        [] => "empty",
        [0x80, 0..=5, ..] => return Ok(()),
        [b'P', b'K', 3, 4, ..] => "a zip archive, such as torch.save writes",
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => "compressed twice (unpack it once first)",
        [0x7f, b'E', b'L', b'F', ..] => "an ELF program",
        [b'S', b'Q', b'L', b'i', ..] => "an SQLite database",
        [0x80, ..] => "of an unknown pickle protocol (known: 0 to 5)",
        _ if text.starts_with(b"{") || text.starts_with(b"[") => "JSON",
        _ if text.starts_with(b"<") => "HTML or XML",
        // Protocols 0 and 1 have no header; they begin with a mark, or with an empty dict or list.
        [b'(' | b'}' | b']', ..] => return Ok(()),
        _ if bytes[..bytes.len().min(256)].iter().all(|&byte| byte != 0 && byte < 0x80) => "text",
        _ => "unknown binary data",
    };
    Err(SnapshotFault::NotAPickle { looks_like })
}
