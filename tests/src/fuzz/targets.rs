//! The targets, and what each guarantees for every input.

use memctl_answers::conditions::Condition;
use memctl_daemon::alerts::Rules;
use memctl_daemon::alerts::rules::ReceiverDetail;
use memctl_model::SessionInfo;
use memctl_proto::chunk::{ChunkMeta, Decoder, Encoder, read_header};
use memctl_proto::convert::stacks::StackDictionary;
use memctl_proto::item::{Content, Packed};
use memctl_proto::v1::{self, ItemKind};
use prost::Message;

/// The memory limit of a snapshot in this test.
const HELD_BYTES_MAX: u64 = 32 << 20;

/// A chunk, unchanged and with both checksums corrected: a chunk that decodes can be encoded, and decodes to the same
/// events again.
pub fn chunk(bytes: &[u8]) -> String {
    let mut decoder = Decoder::new().expect("memory for zstd");
    let mut events = Vec::new();
    let _ = decoder.decode(bytes, &mut events);
    let mut sealed = bytes.to_vec();
    reseal(&mut sealed);
    let header = match decoder.decode(&sealed, &mut events) {
        Ok(header) => header,
        Err(error) => {
            assert!(events.is_empty(), "events of a chunk that is refused");
            return error.to_string();
        }
    };
    assert_eq!(events.len(), header.events as usize);
    assert_eq!(read_header(&sealed).expect("it was just decoded").events, header.events);
    let mut encoder = Encoder::new(header.resolution_ns).expect("memory for zstd");
    // Ticks that no encoder writes wrap around, so such times need not be multiples of the resolution.
    let grid = u64::from(header.resolution_ns);
    for event in &mut events {
        event.time_ns -= event.time_ns % grid;
        encoder.push(event).expect("no more events than a chunk holds");
    }
    let chunk = encoder.finish(&ChunkMeta::default()).expect("there is an event");
    let mut again = Vec::new();
    decoder.decode(&chunk, &mut again).expect("what was just encoded decodes");
    assert_eq!(events, again);
    "decoded".into()
}

fn reseal(chunk: &mut [u8]) {
    let Some(&[low, high]) = chunk.get(6..8) else { return };
    let header_bytes = usize::from(u16::from_le_bytes([low, high]));
    if header_bytes < 16 || header_bytes > chunk.len() {
        return;
    }
    let payload = crc32c::crc32c(&chunk[header_bytes..]);
    chunk[header_bytes - 8..header_bytes - 4].copy_from_slice(&payload.to_le_bytes());
    let header = crc32c::crc32c(&chunk[..header_bytes - 4]);
    chunk[header_bytes - 4..header_bytes].copy_from_slice(&header.to_le_bytes());
}

/// The messages of a stream besides chunks. The first byte selects the message: 0 a session, 2 to 7 an item of that
/// kind, 16 added a compressed one. A parsed message stays the same when it is written and parsed again.
pub fn item(bytes: &[u8]) -> String {
    let Some((&first, payload)) = bytes.split_first() else { return "empty".into() };
    if first & 15 == 0 {
        return session(payload);
    }
    let (payload, unpacked_bytes) = match first & 16 {
        0 => (payload.to_vec(), 0),
        _ => (zstd::bulk::compress(payload, 1).expect("memory for zstd"), payload.len() as u32),
    };
    let item = v1::Item { seq: 1, kind: i32::from(first & 15), payload: payload.into(), unpacked_bytes };
    let content = Packed::from_item(&item).and_then(|packed| packed.open());
    let repacked = match content {
        Err(error) => return error.to_string(),
        Ok(Content::Chunk(bytes)) => {
            return read_header(&bytes).map_or_else(|error| error.to_string(), |_| "chunk".into());
        }
        Ok(Content::Marks(marks)) => Packed::marks(&marks, 1),
        Ok(Content::Stacks(batch)) => {
            return StackDictionary::default().add(&batch).map_or_else(|error| error.to_string(), |()| "stacks".into());
        }
        Ok(Content::SiteTables(tables)) => match tables.all() {
            Ok(tables) => Packed::site_tables(&tables),
            Err(error) => return error.to_string(),
        },
        Ok(Content::Keyframe(keyframe)) => Packed::keyframe(&keyframe),
        Ok(Content::Samples(samples)) => Packed::samples(&samples),
        Ok(Content::End(end)) => Packed::end(&end),
    };
    let kind = ItemKind::try_from(item.kind).expect("it was opened");
    assert_eq!(repacked.kind, kind);
    let again = repacked.open().expect("what was just packed opens");
    let twice = match again {
        Content::Marks(marks) => Packed::marks(&marks, 1),
        Content::SiteTables(tables) => Packed::site_tables(&tables.all().expect("what was just packed opens")),
        Content::Keyframe(keyframe) => Packed::keyframe(&keyframe),
        Content::Samples(samples) => Packed::samples(&samples),
        Content::End(end) => Packed::end(&end),
        Content::Chunk(_) | Content::Stacks(_) => panic!("another kind"),
    };
    assert_eq!(repacked, twice, "read, written and read again");
    kind.as_str_name().into()
}

/// The first message of a stream.
fn session(payload: &[u8]) -> String {
    let wire = match v1::SessionInfo::decode(payload) {
        Ok(wire) => wire,
        Err(error) => return error.to_string(),
    };
    match SessionInfo::try_from(wire) {
        Ok(session) => {
            let again =
                SessionInfo::try_from(v1::SessionInfo::from(&session)).expect("what was just read is read again");
            assert_eq!(session, again);
            "session".into()
        }
        Err(error) => error.to_string(),
    }
}

/// A memory snapshot, packed or plain: a snapshot that is read can be iterated.
pub fn snapshot(bytes: &[u8]) -> String {
    match memctl_snapshot::load_from(bytes, HELD_BYTES_MAX, &mut |_| {}) {
        Ok(recording) => {
            assert_eq!(recording.merged().count() as u64, recording.events() + recording.marks.len() as u64);
            format!("{} devices, {} marks", recording.devices.len().min(2), recording.marks.len().min(1))
        }
        Err(fault) => fault.to_string(),
    }
}

/// Alert rules: accepted rules are rendered as a file that parses to the same rules.
pub fn rules(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "not UTF-8".into() };
    match Rules::parse(text, "rules.toml") {
        Ok(rules) => {
            let written = rules.to_toml(ReceiverDetail::Everything);
            let again = Rules::parse(&written, "rules.toml")
                .unwrap_or_else(|error| panic!("what is in force cannot be read: {error}\n{written}"));
            assert_eq!(again.to_toml(ReceiverDetail::Everything), written);
            format!("{} rules", rules.rules.len().min(3))
        }
        Err(error) => error.to_string(),
    }
}

/// A condition of `memctl assert`: it is displayed as it was parsed.
pub fn condition(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "not UTF-8".into() };
    match text.parse::<Condition>() {
        Ok(condition) => {
            assert_eq!(condition.to_string().parse(), Ok(condition.clone()), "{text:?}");
            let asks = format!("{:?}", condition.asks);
            assert!(!asks.contains("NaN") && !asks.contains("inf"), "{text:?} is a limit that nothing keeps: {asks}");
            asks
        }
        // The quotation has no blanks and so does not match the input.
        Err(error) => error.rsplit('`').next().unwrap_or_default().to_owned(),
    }
}
