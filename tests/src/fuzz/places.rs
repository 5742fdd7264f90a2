//! Targets for bytes that do not arrive over the wire: shared memory, an agent's files, settings.
//!
//! Guarantees: as [`super::targets`]. The writes of a trainer use its own descriptor of the shared memory, not memctl's
//! writers. A spool's checksums are corrected; otherwise no change would get past them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use memctl_agent::internals::region::{Region, dictionary, messages};
use memctl_agent::internals::spool::{Place, Spool};
use memctl_daemon::config;
use memctl_model::SessionInfo;
use memctl_proto::v1;
use prost::Message as _;

/// A note of a trainer, as the launcher reads it.
pub fn note(bytes: &[u8]) -> String {
    match messages::read(bytes) {
        None => "no note".into(),
        Some(said) => kind_of(&said).into(),
    }
}

fn kind_of(said: &messages::NoteContent) -> &'static str {
    match said {
        messages::NoteContent::Mark(..) => "a mark",
        messages::NoteContent::Samples(_) => "samples",
        messages::NoteContent::Keyframe(..) => "a keyframe",
        messages::NoteContent::Settled(_) => "settled",
        messages::NoteContent::Failure(_) => "a failure",
        messages::NoteContent::Holders(..) => "an answer about holders",
    }
}

/// Bytes of the log of notes and of the dictionary, which come last in a region.
const NOTES_BYTES: u64 = 4 << 20;
const DICTIONARY_BYTES: u64 = 8 << 20;
/// More than any region can hold.
const READ_MAX: usize = 4 << 20;

/// Writes of a trainer to the memory that it shares with its launcher. The input is a list of writes, each with a kind
/// (one byte: a proper note, or bytes into the header, a ring, the notes, the dictionary), a place (two bytes), a
/// length (one byte) and these bytes.
pub fn region(bytes: &[u8]) -> String {
    let region = Region::create(2, 1_024).expect("shared memory");
    let file = File::from(region.fd().try_clone_to_owned().expect("a descriptor"));
    let length = file.metadata().expect("its length").len();
    let mut writer = region.notes_writer();
    let mut scribbles = Vec::new();
    let mut rest = bytes;
    while let [what, low, high, count, after @ ..] = rest {
        let (data, after) = after.split_at((*count as usize).min(after.len()));
        rest = after;
        let at = u64::from(u16::from_le_bytes([*low, *high]));
        match what % 5 {
            0 => {
                writer.push(&[data]);
            }
            1 => scribbles.push((at % 4_096, data)),
            2 => scribbles.push((at, data)),
            3 => scribbles.push((length - NOTES_BYTES - DICTIONARY_BYTES + at, data)),
            _ => scribbles.push((length - DICTIONARY_BYTES + at, data)),
        }
    }
    for (at, data) in scribbles {
        file.write_all_at(data, at).expect("a trainer may write there");
    }
    let opened = region.fd().try_clone_to_owned().map(Region::open).expect("a descriptor").is_ok();
    region.ask_holders(1, 1, &[(1, 1)]);
    assert!(region.holders_asked().is_none_or(|asked| asked.blocks.len() <= 256), "more blocks than there is room for");
    let (mut notes, mut reader) = (0, region.notes_reader());
    let mut said = [0_usize; 2];
    while let Some(note) = reader.pop() {
        said[usize::from(messages::read(&note).is_some())] += 1;
        notes += note.len() + 1;
        assert!(notes < READ_MAX, "more notes than there is room for");
    }
    let (mut entries, mut reader) = (0, dictionary::Reader::new(region.clone()));
    while reader.pop().is_some() {
        entries += 1;
        assert!(entries < READ_MAX, "more entries than there is room for");
    }
    let mut records = 0;
    for device in 0..region.devices() {
        // SAFETY: the only consumer of this device.
        let mut consumer = unsafe { region.consumer(device) };
        records += consumer.read(u64::MAX, |record| {
            let _ = record.event(|ticks| ticks.0);
        });
        assert!(consumer.available() == 0, "what was read is gone");
    }
    let some = |count: usize| if count > 0 { "some" } else { "no" };
    let [bad, good] = said.map(some);
    let state = format!("{:?} {:?} {:?}", region.state(), region.level(), region.python().is_some());
    let (entries, records) = (some(entries), some(records as usize));
    format!("opens {opened}, notes: {good} good, {bad} bad, {entries} entries, {records} records, {state}")
}

/// A spool segment after a crash or a disk fault. Its remaining content is read, is read again by the next process, and
/// that process can append to it.
pub fn spool(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = resealed(bytes);
    let own = folder.path().join(session_of(&bytes).unwrap_or_default());
    fs::create_dir_all(&own).expect("a folder");
    fs::write(own.join("00000007.spool"), &bytes).expect("a segment");
    let Some(mut held) = left_by_a_process(folder.path()) else { return "no session's".into() };
    let first = contents(&mut held);
    drop(held);
    if !first.is_empty() {
        let mut again = left_by_a_process(folder.path()).expect("it opens again");
        assert_eq!(contents(&mut again), first, "what was read is read again");
        let item = v1::Item { seq: u64::MAX, kind: 1, ..v1::Item::default() };
        let place = again.append(&item).expect("it goes on");
        assert_eq!(again.read(place, u64::MAX).expect("what was appended is there"), item);
        again.forget(u64::MAX);
        assert_eq!(again.places().count(), 0, "all of it was delivered");
    }
    ["nothing is held", "one item", "several items"][first.len().min(2)].into()
}

/// The folder of the session that a segment belongs to.
fn session_of(segment: &[u8]) -> Option<String> {
    let length = segment.get(8..12)?;
    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
    let session = v1::SessionInfo::decode(segment.get(16..16_usize.saturating_add(length))?).ok()?;
    Some(SessionInfo::try_from(session).ok()?.id.to_string())
}

fn left_by_a_process(folder: &Path) -> Option<Spool> {
    Spool::orphans(folder).pop()
}

fn contents(spool: &mut Spool) -> HashMap<u64, Vec<u8>> {
    let places: Vec<(u64, Place)> = spool.places().collect();
    let read = |(seq, place)| (seq, spool.read(place, seq).expect("what it lists it gives").payload.to_vec());
    places.into_iter().map(read).collect()
}

/// With the checksums of the header and of every record corrected, as far as their lengths fit.
fn resealed(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    let mut at = 8;
    while let Some(head) = sealed.get(at..at + 8) {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(body) = sealed.get(at + 8..(at + 8).saturating_add(length)) else { break };
        let sum = crc32c::crc32c(body).to_le_bytes();
        sealed[at + 4..at + 8].copy_from_slice(&sum);
        at += 8 + length;
    }
    sealed
}

/// A configuration file: an error describes the problem, and accepted values are within their bounds.
pub fn config(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "not UTF-8".into() };
    let layer = match config::from_text(text, "memctl.toml") {
        // Another target tests the rules file, and its path may be anything.
        Ok(layer) => config::Layer { alerts: None, ..layer },
        Err(error) => return error.to_string(),
    };
    let defaults = config::Defaults { data_dir: Some("/d".into()), socket: Some("/d/socket".into()) };
    match config::resolve(&[("memctl.toml".to_owned(), layer)], &defaults) {
        Ok(config) => {
            assert!(config.limits.session_bytes <= config.limits.total_bytes && config.judge_memory > 0);
            format!("{:?} {}", config.retention.age_ns.is_some(), config.judging)
        }
        Err(error) => error.to_string(),
    }
}
