//! Computes from a message's bytes how much memory it will take, before anything is decoded.
//!
//! Two bytes of an empty element become hundreds of bytes after decoding, and zstd unpacks a few bytes to a million
//! such elements. Counting after decoding is too late, so the bytes are walked without keeping anything.
//!
//! Guarantees: the result is never less than what prost allocates for the messages of an item. (A growing vector has
//! room for up to twice its elements.) The bytes are walked only once.
//! Refuses: bytes that are not protobuf.

use std::mem::size_of;

use crate::convert::WireError;
use crate::v1;

/// A growing vector has room for up to twice its elements.
const GROWN: u64 = 2;
/// The minimum bytes that a vector or a text takes on the heap.
const ALLOCATION: u64 = 64;

/// The parts of a message that take heap memory: the fields that are not numbers in the message itself.
pub(crate) struct Shape {
    fields: &'static [(u64, Field)],
}

enum Field {
    /// Repeated numbers, and the size of one in memory.
    Numbers(usize),
    /// A text, or several.
    Text,
    /// A message in the message.
    One(&'static Shape),
    /// Repeated messages, and the size of one in memory.
    Many(usize, &'static Shape),
}

const U32: Field = Field::Numbers(4);
const U64: Field = Field::Numbers(8);
const FLAT: Shape = Shape { fields: &[] };

pub(crate) const MARKS: Shape = Shape { fields: &[(3, U64), (4, U32), (5, U64), (6, Field::Text)] };
pub(crate) const STACKS: Shape =
    Shape { fields: &[(2, Field::Text), (4, U32), (5, U32), (6, U32), (8, U32), (9, U32), (10, U32)] };
pub(crate) const SITE_TABLES: Shape = Shape { fields: &[(1, Field::Many(size_of::<v1::SiteTable>(), &SITE_TABLE))] };
const SITE_TABLE: Shape =
    Shape { fields: &[(11, U32), (12, U32), (13, U64), (14, U64), (16, U32), (18, U32), (19, U64), (20, U64)] };
pub(crate) const KEYFRAME: Shape =
    Shape { fields: &[(5, Field::Many(size_of::<v1::SegmentState>(), &FLAT)), (6, Field::One(&BLOCKS))] };
const BLOCKS: Shape =
    Shape { fields: &[(1, U64), (2, U64), (3, U64), (4, U32), (5, U32), (6, U32), (7, U64), (8, U32)] };
pub(crate) const AGENT_MESSAGE: Shape =
    Shape { fields: &[(1, Field::One(&HELLO)), (2, Field::One(&FLAT)), (3, Field::One(&HOLDERS))] };
const HELLO: Shape = Shape { fields: &[(2, Field::One(&SESSION))] };
const SESSION: Shape = Shape {
    fields: &[
        (2, Field::Text),
        (7, Field::Text),
        (10, Field::Text),
        (11, Field::One(&SETTINGS)),
        (12, Field::Many(size_of::<v1::DeviceInfo>(), &DEVICE)),
        (13, Field::Many(size_of::<v1::Label>(), &LABEL)),
        (16, Field::Text),
        (17, Field::Text),
        (19, Field::Text),
    ],
};
const HOLDERS: Shape = Shape { fields: &[(2, Field::One(&HOLDERS_FOUND)), (3, Field::Text)] };
const HOLDERS_FOUND: Shape =
    Shape { fields: &[(8, Field::Text), (9, Field::Many(size_of::<v1::TensorHolder>(), &HOLDER))] };
const HOLDER: Shape = Shape {
    fields: &[
        (1, Field::Text),
        (2, Field::Text),
        (3, Field::Text),
        (8, Field::Text),
        (9, Field::Text),
        (17, Field::Text),
        (10, Field::Text),
        (13, Field::Text),
    ],
};
const SETTINGS: Shape = Shape { fields: &[(1, Field::Text), (3, U32)] };
const DEVICE: Shape = Shape { fields: &[(2, Field::Text), (3, Field::Text)] };
const LABEL: Shape = Shape { fields: &[(1, Field::Text), (2, Field::Text)] };
pub(crate) const SAMPLES: Shape = Shape { fields: &[(1, Field::Many(size_of::<v1::Sample>(), &SAMPLE))] };
const SAMPLE: Shape = Shape { fields: &[(18, U32)] };
pub(crate) const END: Shape = Shape { fields: &[(4, Field::Text)] };

/// Bytes that a message takes on the heap after decoding.
///
/// # Errors
/// [`WireError::Undecodable`]: the bytes end early, or contain what none of our messages has.
pub(crate) fn weight(what: &'static str, shape: &Shape, bytes: &[u8]) -> Result<u64, WireError> {
    Walk { rest: bytes }.message(shape).ok_or_else(|| WireError::Undecodable { what, reason: "no protobuf".to_owned() })
}

struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    fn message(mut self, shape: &Shape) -> Option<u64> {
        let mut sum = 0_u64;
        while !self.rest.is_empty() {
            let key = self.varint()?;
            let field = shape.fields.iter().find(|(number, _)| *number == key >> 3).map(|(_, field)| field);
            let more = match (key & 7, field) {
                (2, field) => {
                    let length = self.varint()?;
                    weigh(field, self.take(usize::try_from(length).ok()?)?)?
                }
                (kind, field) => {
                    match kind {
                        0 => drop(self.varint()?),
                        1 => drop(self.take(8)?),
                        5 => drop(self.take(4)?),
                        _ => return None,
                    }
                    // Repeated numbers may arrive one by one.
                    if let Some(Field::Numbers(size)) = field { GROWN * *size as u64 + ALLOCATION } else { 0 }
                }
            };
            sum = sum.saturating_add(more);
        }
        Some(sum)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in 0..10 {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift * 7)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
}

/// The heap memory of a field's body.
fn weigh(field: Option<&Field>, body: &[u8]) -> Option<u64> {
    Some(match field {
        None => 0,
        // Every number ends in a byte whose highest bit is 0.
        Some(Field::Numbers(size)) => {
            GROWN * *size as u64 * body.iter().filter(|byte| **byte < 0x80).count() as u64 + ALLOCATION
        }
        Some(Field::Text) => GROWN * size_of::<String>() as u64 + body.len() as u64 + ALLOCATION,
        Some(Field::One(shape)) => Walk { rest: body }.message(shape)?,
        Some(Field::Many(size, shape)) => {
            (GROWN * *size as u64).saturating_add(Walk { rest: body }.message(shape)?).saturating_add(ALLOCATION)
        }
    })
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn nothing_that_is_decoded_takes_more_than_was_told() {
        let numbers: Vec<u64> = (0..1000).map(|number| number << (number % 60)).collect();
        let table = v1::SiteTable { blocks: numbers.clone(), bytes: numbers.clone(), ..Default::default() };
        let batch = v1::SiteTableBatch { tables: vec![table; 7] };
        let computed = weight("tables", &SITE_TABLES, &batch.encode_to_vec()).unwrap();
        let decoded = v1::SiteTableBatch::decode(&*batch.encode_to_vec()).unwrap();
        let of = |table: &v1::SiteTable| 8 * (table.blocks.capacity() + table.bytes.capacity());
        let taken =
            decoded.tables.capacity() * size_of::<v1::SiteTable>() + decoded.tables.iter().map(of).sum::<usize>();
        assert!(computed >= taken as u64 && computed < 4 * taken as u64, "{computed} computed, {taken} taken");
    }

    #[test]
    fn every_repeated_field_of_an_items_messages_is_known() {
        let set = prost_types::FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap();
        let messages = || set.file.iter().flat_map(|file| &file.message_type);
        let check = |name: &str, shape: &Shape| {
            let message = messages().find(|message| message.name() == name).expect(name);
            for field in &message.field {
                let text = matches!(field.r#type(), prost_types::field_descriptor_proto::Type::String);
                let repeated = matches!(field.label(), prost_types::field_descriptor_proto::Label::Repeated);
                let known = shape.fields.iter().any(|(number, _)| *number == field.number() as u64);
                assert_eq!(
                    known || field.r#type() == prost_types::field_descriptor_proto::Type::Message && !repeated,
                    text || repeated || field.r#type() == prost_types::field_descriptor_proto::Type::Message,
                    "{name}.{}",
                    field.name()
                );
            }
        };
        for (name, shape) in [
            ("MarkBatch", &MARKS),
            ("StackBatch", &STACKS),
            ("SiteTableBatch", &SITE_TABLES),
            ("SiteTable", &SITE_TABLE),
            ("Keyframe", &KEYFRAME),
            ("SegmentState", &FLAT),
            ("BlockColumns", &BLOCKS),
            ("SampleBatch", &SAMPLES),
            ("Sample", &SAMPLE),
            ("SessionEnd", &END),
            ("AgentMessage", &AGENT_MESSAGE),
            ("Hello", &HELLO),
            ("SessionInfo", &SESSION),
            ("AllocatorSettings", &SETTINGS),
            ("DeviceInfo", &DEVICE),
            ("Label", &LABEL),
            ("HoldersAnswer", &HOLDERS),
            ("HoldersFound", &HOLDERS_FOUND),
            ("TensorHolder", &HOLDER),
        ] {
            check(name, shape);
        }
    }

    #[test]
    fn what_is_no_protobuf_is_refused() {
        for bytes in [&[0x0a_u8, 5, 1][..], &[0x0b], &[0x80; 11], &[0x09, 1, 2]] {
            assert!(weight("x", &SITE_TABLES, bytes).is_err(), "{bytes:?}");
        }
    }
}
