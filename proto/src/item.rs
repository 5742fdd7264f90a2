//! The content of an item: it is packed for the wire and unpacked within limits.
//!
//! A chunk is sent unchanged, because it is already compressed. All other content is a protobuf message, which is
//! compressed with zstd if that makes it smaller. The declared size is checked against a limit before the message is
//! unpacked. The unpacked size must match the declared size exactly. The memory that the decoded message will take is
//! computed from its bytes and checked before decoding.

use bytes::Bytes;
use memctl_model::limits::{ITEM_BYTES_MAX, ITEM_DECODED_BYTES_MAX, ITEM_UNPACKED_BYTES_MAX};
use memctl_model::{Keyframe, Mark, Sample, SessionEnd, SiteTable};
#[cfg(target_family = "wasm")]
use memctl_zstd as zstd;
use prost::Message;

use crate::convert::{WireError, at_most, keyframe, marks, samples, site_tables};
use crate::v1::{self, ItemKind};
use crate::weight::{self, Shape, weight};

/// zstd's default level. Marks and tables become a third smaller than with level 1, and there are few of them.
const ZSTD_LEVEL: i32 = 3;
/// Smaller messages do not benefit from compression.
const COMPRESS_FROM_BYTES: usize = 64;

/// An item without its number.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// The kind of its content.
    pub kind: ItemKind,
    /// The bytes that are sent and stored.
    pub payload: Bytes,
    /// Size before compression; 0 when not compressed.
    pub unpacked_bytes: u32,
}

/// An item's content.
#[derive(Clone, Debug)]
pub enum Content {
    /// An encoded chunk, see [`crate::chunk`].
    Chunk(Bytes),
    /// Marks in the order of time.
    Marks(Vec<Mark>),
    /// New entries of the dictionary of stacks.
    Stacks(v1::StackBatch),
    /// Site tables, which are read one by one.
    SiteTables(SiteTables),
    /// The state of one device.
    Keyframe(Keyframe),
    /// Measurements.
    Samples(Vec<Sample>),
    /// The end of the session.
    End(SessionEnd),
}

impl Packed {
    /// Wraps an encoded chunk.
    #[must_use]
    pub fn chunk(bytes: Bytes) -> Self {
        Self { kind: ItemKind::Chunk, payload: bytes, unpacked_bytes: 0 }
    }

    /// Packs marks. Their times are rounded down to the resolution.
    #[must_use]
    pub fn marks(marks: &[Mark], resolution_ns: u32) -> Self {
        Self::message(ItemKind::Marks, &marks::to_wire(marks, resolution_ns))
    }

    /// Packs new stacks.
    #[must_use]
    pub fn stacks(batch: &v1::StackBatch) -> Self {
        Self::message(ItemKind::Stacks, batch)
    }

    /// Packs site tables.
    #[must_use]
    pub fn site_tables<'a>(tables: impl IntoIterator<Item = &'a SiteTable>) -> Self {
        Self::message(ItemKind::SiteTables, &site_tables::to_wire(tables))
    }

    /// Packs site tables. The first table of a device has all rows. Each later table has the rows that changed; a
    /// removed row has 0 blocks.
    #[must_use]
    pub fn changed_site_tables<'a>(tables: impl IntoIterator<Item = &'a SiteTable>) -> Self {
        Self::message(ItemKind::SiteTables, &site_tables::changes_to_wire(tables))
    }

    /// Packs a keyframe.
    #[must_use]
    pub fn keyframe(keyframe: &Keyframe) -> Self {
        Self::message(ItemKind::Keyframe, &v1::Keyframe::from(keyframe))
    }

    /// Packs samples.
    #[must_use]
    pub fn samples(samples: &[Sample]) -> Self {
        Self::message(ItemKind::Samples, &v1::SampleBatch { samples: samples.iter().map(Into::into).collect() })
    }

    /// Packs the session's end.
    #[must_use]
    pub fn end(end: &SessionEnd) -> Self {
        Self::message(ItemKind::End, &v1::SessionEnd::from(end))
    }

    fn message(kind: ItemKind, message: &impl Message) -> Self {
        let plain = message.encode_to_vec();
        if plain.len() >= COMPRESS_FROM_BYTES
            && let Ok(small) = zstd::bulk::compress(&plain, ZSTD_LEVEL)
            && small.len() < plain.len()
        {
            return Self { kind, payload: small.into(), unpacked_bytes: plain.len() as u32 };
        }
        Self { kind, payload: plain.into(), unpacked_bytes: 0 }
    }

    /// Numbers the item.
    #[must_use]
    pub fn numbered(self, seq: u64) -> v1::Item {
        v1::Item { seq, kind: self.kind as i32, payload: self.payload, unpacked_bytes: self.unpacked_bytes }
    }

    /// The item's kind and bytes as received.
    ///
    /// # Errors
    /// An unknown kind or a payload over the limit.
    pub fn from_item(item: &v1::Item) -> Result<Self, WireError> {
        let kind = ItemKind::try_from(item.kind)
            .ok()
            .filter(|kind| *kind != ItemKind::Unspecified)
            .ok_or_else(|| WireError::invalid("item.kind", item.kind, "1 to 7"))?;
        at_most("bytes of an item", item.payload.len(), ITEM_BYTES_MAX)?;
        Ok(Self { kind, payload: item.payload.clone(), unpacked_bytes: item.unpacked_bytes })
    }

    /// Opens the item. A chunk is not decoded, see [`crate::chunk::read_header`]. Site tables are checked when they are
    /// read.
    ///
    /// # Errors
    /// An error in the bytes or in their content.
    pub fn open(&self) -> Result<Content, WireError> {
        self.unpack()?.decode()
    }

    /// Decompresses the item and computes how much memory it will take. Does not decode it.
    ///
    /// # Errors
    /// Invalid bytes, or more than [`ITEM_DECODED_BYTES_MAX`].
    pub fn unpack(&self) -> Result<Unpacked, WireError> {
        if self.kind == ItemKind::Chunk {
            return Ok(Unpacked { kind: self.kind, plain: self.payload.clone(), weight: 0 });
        }
        let plain = self.plain()?;
        let (what, shape) = message_of(self.kind)?;
        let weight = weight(what, shape, &plain)?;
        at_most("bytes of an item in memory", usize::try_from(weight).unwrap_or(usize::MAX), ITEM_DECODED_BYTES_MAX)?;
        Ok(Unpacked { kind: self.kind, plain, weight })
    }

    fn plain(&self) -> Result<Bytes, WireError> {
        at_most("bytes of an item", self.payload.len(), ITEM_BYTES_MAX)?;
        let declared = self.unpacked_bytes as usize;
        if declared == 0 {
            return Ok(self.payload.clone());
        }
        at_most("bytes of an item after decompression", declared, ITEM_UNPACKED_BYTES_MAX)?;
        let undecodable = |reason: String| WireError::Undecodable { what: "a compressed item", reason };
        let plain = zstd::bulk::decompress(&self.payload, declared).map_err(|error| undecodable(error.to_string()))?;
        if plain.len() != declared {
            return Err(undecodable(format!("{} bytes were declared, {} came", declared, plain.len())));
        }
        Ok(plain.into())
    }
}

/// An item that was unpacked and checked, but not decoded yet.
#[derive(Debug)]
pub struct Unpacked {
    kind: ItemKind,
    plain: Bytes,
    weight: u64,
}

impl Unpacked {
    /// Maximum bytes of memory that the content takes after decoding, in addition to this object's.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Decodes the content.
    ///
    /// # Errors
    /// An error in the content.
    pub fn decode(&self) -> Result<Content, WireError> {
        Ok(match self.kind {
            ItemKind::Chunk => Content::Chunk(self.plain.clone()),
            ItemKind::Marks => Content::Marks(marks::from_wire(&self.message()?)?),
            ItemKind::Stacks => Content::Stacks(self.message()?),
            ItemKind::SiteTables => Content::SiteTables(self.message::<v1::SiteTableBatch>()?.into()),
            ItemKind::Keyframe => Content::Keyframe(self.message::<v1::Keyframe>()?.try_into()?),
            ItemKind::Samples => Content::Samples(samples::from_wire(self.message()?)?),
            ItemKind::End => Content::End(self.message::<v1::SessionEnd>()?.try_into()?),
            ItemKind::Unspecified => return Err(no_message(self.kind)),
        })
    }

    fn message<M: Message + Default>(&self) -> Result<M, WireError> {
        let (what, _) = message_of(self.kind)?;
        M::decode(self.plain.clone()).map_err(|error| WireError::Undecodable { what, reason: error.to_string() })
    }
}

/// The name of a kind's message, and the parts of the message that take memory.
fn message_of(kind: ItemKind) -> Result<(&'static str, &'static Shape), WireError> {
    Ok(match kind {
        ItemKind::Marks => ("a batch of marks", &weight::MARKS),
        ItemKind::Stacks => ("a batch of stacks", &weight::STACKS),
        ItemKind::SiteTables => ("a batch of site tables", &weight::SITE_TABLES),
        ItemKind::Keyframe => ("a keyframe", &weight::KEYFRAME),
        ItemKind::Samples => ("a batch of samples", &weight::SAMPLES),
        ItemKind::End => ("a session's end", &weight::END),
        ItemKind::Chunk | ItemKind::Unspecified => return Err(no_message(kind)),
    })
}

fn no_message(kind: ItemKind) -> WireError {
    WireError::invalid("item.kind", kind as i32, "a kind that is a message")
}

pub use site_tables::SiteTables;

/// Limits of keyframes, for callers that build them.
pub use keyframe::BLOCKS_MAX as KEYFRAME_BLOCKS_MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::MarkKind;

    fn many_marks() -> Vec<Mark> {
        (0..500).map(|step| Mark { time_ns: step * 1000, kind: MarkKind::StepEnd(step) }).collect()
    }

    #[test]
    fn large_messages_are_compressed_and_come_back() {
        let packed = Packed::marks(&many_marks(), 1000);
        assert!(packed.unpacked_bytes as usize > packed.payload.len());
        let item = packed.clone().numbered(7);
        assert_eq!(item.seq, 7);
        let Content::Marks(marks) = Packed::from_item(&item).unwrap().open().unwrap() else { panic!("another kind") };
        assert_eq!(marks, many_marks());
    }

    #[test]
    fn a_declared_size_is_not_believed() {
        let honest = Packed::marks(&many_marks(), 1000);
        for declared in [1, honest.unpacked_bytes - 1, honest.unpacked_bytes + 1] {
            let lying = Packed { unpacked_bytes: declared, ..honest.clone() };
            assert!(matches!(lying.open(), Err(WireError::Undecodable { .. })), "{declared}");
        }
        let lying = Packed { unpacked_bytes: u32::MAX, ..honest };
        assert!(matches!(lying.open(), Err(WireError::TooMany { .. })));
    }

    #[test]
    fn what_unfolds_to_gigabytes_is_refused_before_it_does() {
        let bomb = |kind, plain: Vec<u8>| Packed {
            kind,
            unpacked_bytes: plain.len() as u32,
            payload: zstd::bulk::compress(&plain, 19).unwrap().into(),
        };
        let empty: Vec<u8> = [0x0a, 0].repeat(ITEM_UNPACKED_BYTES_MAX / 2);
        let mut zeros = vec![0x22, 0x80, 0x80, 0x80, 0x1c];
        zeros.resize(zeros.len() + (0x1c << 21), 0);
        for (kind, plain) in [
            (ItemKind::SiteTables, empty.clone()),
            (ItemKind::Samples, empty),
            (ItemKind::Stacks, zeros),
            (ItemKind::Stacks, [0x12, 0].repeat(ITEM_UNPACKED_BYTES_MAX / 2)),
        ] {
            let packed = bomb(kind, plain);
            assert!(packed.payload.len() < 10_000, "{}", packed.payload.len());
            let refused = packed.open();
            assert!(matches!(refused, Err(WireError::TooMany { what: "bytes of an item in memory", .. })), "{kind:?}");
        }
    }

    #[test]
    fn unknown_kinds_are_refused() {
        let item = v1::Item { seq: 1, kind: 99, ..Default::default() };
        assert!(matches!(Packed::from_item(&item), Err(WireError::Invalid { field: "item.kind", .. })));
    }
}
