//! The part of the crate `zstd` that memctl uses, in Rust alone. WebAssembly has no C library.
//!
//! Guarantees: the names and types are those of the crate `zstd`, so that a caller differs in one `use` only. Frames
//! are read and written in zstd's format, in both directions between the two crates. A decompressed text never exceeds
//! the given capacity.
//! Refuses: levels. It compresses at one speed, which is lower than zstd's, and less densely.

#![forbid(unsafe_code)]

/// Whole texts at once.
pub mod bulk {
    use std::io::{self, Read as _};
    use std::marker::PhantomData;

    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    /// Compresses a text. The level is ignored.
    ///
    /// # Errors
    /// None; the signature is that of the crate `zstd`.
    pub fn compress(source: &[u8], _level: i32) -> io::Result<Vec<u8>> {
        Ok(compress_to_vec(source, CompressionLevel::Fastest))
    }

    /// Decompresses a text of at most `capacity` bytes.
    ///
    /// # Errors
    /// The data is damaged, or the text is longer.
    pub fn decompress(source: &[u8], capacity: usize) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        // One byte more shows that the text is too long.
        let most = u64::try_from(capacity).unwrap_or(u64::MAX).saturating_add(1);
        super::stream::read::Decoder::new(source)?.take(most).read_to_end(&mut text)?;
        if text.len() > capacity {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the text is longer than its capacity"));
        }
        Ok(text)
    }

    /// Leaves the columns of chunks as they are. Chunks are many, and they stay in memory.
    pub struct Compressor<'a>(PhantomData<&'a ()>);

    impl Compressor<'static> {
        /// A compressor. The level is ignored.
        ///
        /// # Errors
        /// None; the signature is that of the crate `zstd`.
        pub fn new(_level: i32) -> io::Result<Self> {
            Ok(Self(PhantomData))
        }

        /// Replaces `target` with bytes that are as long as the source. Callers then store the source itself.
        ///
        /// # Errors
        /// None; the signature is that of the crate `zstd`.
        pub fn compress_to_buffer(&mut self, source: &[u8], target: &mut Vec<u8>) -> io::Result<usize> {
            target.clear();
            target.extend_from_slice(source);
            Ok(source.len())
        }
    }

    /// Decompresses into buffers.
    pub struct Decompressor<'a>(PhantomData<&'a ()>);

    impl Decompressor<'static> {
        /// A decompressor.
        ///
        /// # Errors
        /// None; the signature is that of the crate `zstd`.
        pub fn new() -> io::Result<Self> {
            Ok(Self(PhantomData))
        }

        /// Replaces `target` with the text, which must fit its capacity.
        ///
        /// # Errors
        /// The data is damaged, or the text is longer.
        pub fn decompress_to_buffer(&mut self, source: &[u8], target: &mut Vec<u8>) -> io::Result<usize> {
            *target = decompress(source, target.capacity())?;
            Ok(target.len())
        }
    }
}

/// Texts as streams.
pub mod stream {
    /// Readers.
    pub mod read {
        use std::io::{self, BufRead, BufReader, Read};
        use std::marker::PhantomData;

        use ruzstd::decoding::errors::FrameDecoderError;
        use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

        /// Decompressed bytes that are collected before they are handed on.
        const COLLECTED_BYTES: usize = 128 << 10;

        /// Decompresses frame after frame.
        pub struct Decoder<'a, R> {
            input: R,
            frame: FrameDecoder,
            is_open: bool,
            of: PhantomData<&'a ()>,
        }

        impl<R: Read> Decoder<'static, BufReader<R>> {
            /// A decoder over a reader.
            ///
            /// # Errors
            /// None; the signature is that of the crate `zstd`.
            pub fn new(reader: R) -> io::Result<Self> {
                let input = BufReader::with_capacity(COLLECTED_BYTES, reader);
                Ok(Self { input, frame: FrameDecoder::new(), is_open: false, of: PhantomData })
            }
        }

        fn damaged(error: impl std::fmt::Display) -> io::Error {
            io::Error::new(io::ErrorKind::InvalidData, error.to_string())
        }

        impl<R: BufRead> Decoder<'_, R> {
            /// Opens the next frame; `false` at the end of the input.
            fn open(&mut self) -> io::Result<bool> {
                loop {
                    if self.input.fill_buf()?.is_empty() {
                        return Ok(false);
                    }
                    match self.frame.reset(&mut self.input) {
                        Ok(()) => return Ok(true),
                        Err(FrameDecoderError::ReadFrameHeaderError(
                            ruzstd::decoding::errors::ReadFrameHeaderError::SkipFrame { length, .. },
                        )) => {
                            let skipped = io::copy(&mut self.input.by_ref().take(length.into()), &mut io::sink())?;
                            if skipped < u64::from(length) {
                                return Err(io::ErrorKind::UnexpectedEof.into());
                            }
                        }
                        Err(error) => return Err(damaged(error)),
                    }
                }
            }
        }

        impl<R: BufRead> Read for Decoder<'_, R> {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                if buf.is_empty() {
                    return Ok(0);
                }
                loop {
                    if !self.is_open && !self.open()? {
                        return Ok(0);
                    }
                    self.is_open = true;
                    if self.frame.can_collect() == 0 && !self.frame.is_finished() {
                        let enough = BlockDecodingStrategy::UptoBytes(COLLECTED_BYTES);
                        self.frame.decode_blocks(&mut self.input, enough).map_err(damaged)?;
                    }
                    let read = self.frame.read(buf)?;
                    if self.frame.is_finished() && self.frame.can_collect() == 0 {
                        self.is_open = false;
                        let (said, found) = (self.frame.get_checksum_from_data(), self.frame.get_calculated_checksum());
                        if said.is_some() && said != found {
                            return Err(damaged("the checksum of a frame does not fit its content"));
                        }
                    }
                    if read > 0 {
                        return Ok(read);
                    }
                }
            }
        }
    }
}

/// Sizes.
pub mod zstd_safe {
    /// The most bytes that a compressed text takes.
    #[must_use]
    pub const fn compress_bound(bytes: usize) -> usize {
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn texts() -> Vec<Vec<u8>> {
        let noise = |seed: u64, bytes: usize| {
            let next = |word: &u64| Some(word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            std::iter::successors(Some(seed), next).take(bytes).map(|word| (word >> 56) as u8).collect::<Vec<u8>>()
        };
        let lines: Vec<u8> = (0..40_000_u32).flat_map(|n| format!("line {}\n", n % 977).into_bytes()).collect();
        vec![Vec::new(), b"x".to_vec(), vec![7; 300_000], noise(3, 200_000), lines]
    }

    #[test]
    fn frames_of_both_crates_are_read_by_both() {
        for text in texts() {
            let ours = bulk::compress(&text, 3).unwrap();
            assert_eq!(zstd::bulk::decompress(&ours, text.len()).unwrap(), text);
            for level in [1, 3, 19] {
                let theirs = zstd::bulk::compress(&text, level).unwrap();
                assert_eq!(bulk::decompress(&theirs, text.len()).unwrap(), text, "level {level}");
                assert!(text.is_empty() || bulk::decompress(&theirs, text.len() - 1).is_err(), "it is too long");
            }
        }
    }

    #[test]
    fn a_stream_of_several_frames_is_one_text() {
        let mut stream = Vec::new();
        for text in texts() {
            stream.extend(zstd::stream::encode_all(&*text, 5).unwrap());
            // A frame that readers skip.
            stream.extend([0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        }
        let mut read = Vec::new();
        stream::read::Decoder::new(&*stream).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == texts().concat());
    }

    #[test]
    fn a_damaged_or_cut_stream_is_an_error() {
        let text = texts().pop().unwrap();
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(true).unwrap();
        std::io::Write::write_all(&mut encoder, &text).unwrap();
        let whole = encoder.finish().unwrap();
        let read = |bytes: &[u8]| stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut Vec::new());
        assert_eq!(read(&whole).unwrap(), text.len());
        for cut in [5, whole.len() / 2, whole.len() - 1] {
            assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
        }
        let mut other = whole.clone();
        let last = other.len() - 1;
        other[last] ^= 1;
        assert!(read(&other).is_err(), "the checksum");
    }
}
