//! Digests of a byte stream: 128 bits of two XXH64 sums with different seeds, and SHA-256.
//!
//! The sums identify a recording, so that a second import of it is recognised. They are not a signature: two different
//! recordings with equal sums can be made on purpose. SHA-256 proves possession of the file: it can only be computed
//! from the file and does not follow from the sums, which are public.

use sha2::{Digest as _, Sha256};

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

/// The seed of the second sum. Any number except the first sum's 0 is suitable. It must never change, or known
/// recordings would look new.
const SECOND_SEED: u64 = 0x6D65_6D63_746C_0001;

/// Hashed before the stream, so that the proof differs from every ordinary checksum of the file.
const PROOF: &[u8] = b"memctl: who has this recording\0";

/// The results for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digests {
    /// Identifies the stream.
    pub sums: [u8; 16],
    /// Proves possession of the stream.
    pub proof: [u8; 32],
}

/// All digests over the same bytes.
pub(crate) struct Digest {
    sums: [Xxh64; 2],
    proof: Sha256,
}

impl Digest {
    pub(crate) fn new() -> Self {
        Self { sums: [Xxh64::new(0), Xxh64::new(SECOND_SEED)], proof: Sha256::new().chain_update(PROOF) }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        for sum in &mut self.sums {
            sum.update(bytes);
        }
        self.proof.update(bytes);
    }

    pub(crate) fn finish(&self) -> Digests {
        let mut sums = [0; 16];
        sums[..8].copy_from_slice(&self.sums[0].finish().to_be_bytes());
        sums[8..].copy_from_slice(&self.sums[1].finish().to_be_bytes());
        Digests { sums, proof: self.proof.clone().finalize().into() }
    }
}

/// XXH64 as specified, with input in pieces.
struct Xxh64 {
    seed: u64,
    lanes: [u64; 4],
    /// Bytes that do not fill a stripe of 32 bytes yet.
    rest: [u8; 32],
    rest_len: usize,
    total: u64,
}

impl Xxh64 {
    fn new(seed: u64) -> Self {
        let lanes = [seed.wrapping_add(P1).wrapping_add(P2), seed.wrapping_add(P2), seed, seed.wrapping_sub(P1)];
        Self { seed, lanes, rest: [0; 32], rest_len: 0, total: 0 }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        self.total = self.total.wrapping_add(bytes.len() as u64);
        if self.rest_len > 0 {
            let taken = bytes.len().min(32 - self.rest_len);
            self.rest[self.rest_len..self.rest_len + taken].copy_from_slice(&bytes[..taken]);
            self.rest_len += taken;
            bytes = &bytes[taken..];
            if self.rest_len < 32 {
                return;
            }
            let stripe = self.rest;
            self.stripe(&stripe);
            self.rest_len = 0;
        }
        let mut stripes = bytes.chunks_exact(32);
        for stripe in &mut stripes {
            self.stripe(stripe);
        }
        let rest = stripes.remainder();
        self.rest[..rest.len()].copy_from_slice(rest);
        self.rest_len = rest.len();
    }

    #[inline]
    fn stripe(&mut self, stripe: &[u8]) {
        for (lane, word) in self.lanes.iter_mut().zip(stripe.chunks_exact(8)) {
            *lane = round(*lane, word64(word));
        }
    }

    fn finish(&self) -> u64 {
        let mut hash = if self.total >= 32 {
            let [a, b, c, d] = self.lanes;
            let mixed = a
                .rotate_left(1)
                .wrapping_add(b.rotate_left(7))
                .wrapping_add(c.rotate_left(12))
                .wrapping_add(d.rotate_left(18));
            self.lanes.iter().fold(mixed, |hash, &lane| (hash ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4))
        } else {
            self.seed.wrapping_add(P5)
        };
        hash = hash.wrapping_add(self.total);
        let mut words = self.rest[..self.rest_len].chunks_exact(8);
        for word in &mut words {
            hash = (hash ^ round(0, word64(word))).rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
        }
        let mut tail = words.remainder();
        if let Some((half, rest)) = tail.split_first_chunk::<4>() {
            hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(P1);
            hash = hash.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
            tail = rest;
        }
        for &byte in tail {
            hash = (hash ^ u64::from(byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(P2);
        hash = (hash ^ (hash >> 29)).wrapping_mul(P3);
        hash ^ (hash >> 32)
    }
}

#[inline]
fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

#[inline]
fn word64(bytes: &[u8]) -> u64 {
    // Callers pass exactly eight bytes. The fallback only avoids a panic path in the hot loop.
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xxh64(bytes: &[u8]) -> u64 {
        let mut sum = Xxh64::new(0);
        sum.update(bytes);
        sum.finish()
    }

    #[test]
    fn the_published_values_come_out() {
        assert_eq!(xxh64(b""), 0xEF46_DB37_51D8_E999);
        assert_eq!(xxh64(b"a"), 0xD24E_C4F1_A98C_6E5B);
        assert_eq!(xxh64(b"abc"), 0x44BC_2CF5_AD77_0999);
        assert_eq!(xxh64(b"Nobody inspects the spammish repetition"), 0xFBCE_A83C_8A37_8BF1);
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut whole = Digest::new();
        whole.update(&bytes);
        for piece in [1, 3, 31, 32, 33, 500] {
            let mut parts = Digest::new();
            bytes.chunks(piece).for_each(|part| parts.update(part));
            assert_eq!(parts.finish(), whole.finish(), "pieces of {piece}");
        }
    }
}
