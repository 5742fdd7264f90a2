//! A tile of a timeline as bytes: a head of JSON on one line, followed by columns of numbers.
//!
//! Guarantees: the head ends with a line break and is padded with blanks, so that the columns begin at a multiple of
//! eight bytes; each column has [`Head::count`] numbers of eight bytes, little-endian floating point, which represents
//! integers up to 2^53 exactly.

use serde::Serialize;

use crate::timeline::Mark;

/// The columns, in their order.
pub const COLUMNS: [&str; 5] =
    ["allocated_min_bytes", "allocated_max_bytes", "allocated_bytes", "reserved_max_bytes", "reserved_bytes"];

/// The head of a tile.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "TileHead"))]
pub struct Head {
    /// See [`crate::SCHEMA`].
    pub schema: u32,
    /// The session whose tile it is: a process that attached again is another one.
    pub session: String,
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// A slot has 2^level nanoseconds.
    pub level: u32,
    /// Tiles of this level before it, since the Unix epoch.
    pub index: u64,
    /// Its beginning.
    pub first_at: String,
    /// Slots of every tile.
    pub slots: u64,
    /// Slots before the first one that is included: nothing is known of them.
    pub first_slot: u64,
    /// Number of slots that are included.
    pub count: u64,
    /// What it is made of.
    pub detail: &'static str,
    /// Chunks that are included only by their bounds so far.
    pub coarse_chunks: u64,
    /// Whether it never changes any more.
    pub is_final: bool,
    /// Whether the figures are exact: nothing was dropped.
    pub exact: bool,
    /// The columns behind the head.
    pub columns: [&'static str; 5],
    /// In the order of time; none where too many chunks are in the tile.
    pub marks: Vec<Mark>,
    /// Marks that had no room.
    pub marks_left_out: u64,
}

/// A slot's figures, in the order of [`COLUMNS`].
pub type Slot = [u64; COLUMNS.len()];

/// A tile.
#[derive(Clone, Debug)]
pub struct Tile {
    /// What it says of itself.
    pub head: Head,
    /// The slots that are included.
    pub slots: Vec<Slot>,
}

impl Tile {
    /// The bytes.
    ///
    /// # Errors
    /// The head cannot be written.
    pub fn bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(&self.head)?;
        let padded = (bytes.len() + 1).next_multiple_of(size_of::<f64>());
        bytes.resize(padded - 1, b' ');
        bytes.push(b'\n');
        bytes.reserve_exact(self.slots.len() * size_of::<Slot>());
        for column in 0..COLUMNS.len() {
            for slot in &self.slots {
                bytes.extend_from_slice(&(slot[column] as f64).to_le_bytes());
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_begin_where_numbers_may_lie() {
        for process in ["", "a", "worker 3", "a\nb"] {
            let head = Head {
                schema: crate::SCHEMA,
                session: "00".into(),
                rank: 0,
                process: process.into(),
                device: 0,
                level: 3,
                index: 7,
                first_at: String::new(),
                slots: 512,
                first_slot: 1,
                count: 2,
                detail: "events",
                coarse_chunks: 0,
                is_final: true,
                exact: true,
                columns: COLUMNS,
                marks: Vec::new(),
                marks_left_out: 0,
            };
            let bytes = Tile { head, slots: vec![[1, 2, 3, 4, 5], [6, 7, 8, 9, 1 << 53]] }.bytes().unwrap();
            let end = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
            assert_eq!(end % 8, 0);
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&bytes[..end]).unwrap()["process"], process);
            let numbers: Vec<f64> =
                bytes[end..].chunks(8).map(|eight| f64::from_le_bytes(eight.try_into().unwrap())).collect();
            assert_eq!(numbers, [1.0, 6.0, 2.0, 7.0, 3.0, 8.0, 4.0, 9.0, 5.0, 9_007_199_254_740_992.0]);
        }
    }
}
