//! The spool keeps unacknowledged items on disk while the daemon cannot be reached.
//!
//! A spool is a folder of segment files. A segment begins with a magic number and the session. Records of `length u32,
//! crc32c u32, item` follow.
//! Guarantees: damaged content never prevents opening: a segment is cut after its last valid record. The spool stays
//! within its limit, except for the item with the session's end. Segments whose items are all acknowledged are deleted.
//! Only the owner can access folder and files.
//! Refuses: two owners (the folder is locked).
//!
//! The page cache protects against the death of the process. A crash of the host is different: the delivering thread
//! syncs written data once a second while it grows, and at the end ([`Spool::unsynced`]). Training never syncs. A crash
//! of the host loses the last one or two seconds, and the next opening cuts off what the disk had not written.
//! (Over 400 lines: one format on disk is written, read, listed and taken over here.)

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memctl_model::SessionInfo;
use memctl_model::limits::MESSAGE_BYTES_MAX;
use memctl_proto::v1;
use prost::Message as _;

use crate::private_files;
use crate::secret::SessionSecret;

/// The file with the session's secret, beside the segments.
const SECRET: &str = "secret";
const MAGIC: &[u8; 8] = b"MCSPOOL1";
/// A segment that reaches this size is closed. It is small enough that disk space is freed soon after an outage.
const SEGMENT_BYTES: u64 = 8 << 20;
const RECORD_HEADER_BYTES: u64 = 8;

/// Where an item is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    segment: u32,
    offset: u64,
    /// Bytes of the encoded item.
    pub bytes: u32,
}

struct Segment {
    file: Arc<File>,
    path: PathBuf,
    len: u64,
    last_seq: u64,
}

/// Syncs a file to its disk.
type SyncFile = Arc<dyn Fn(&File) -> io::Result<()> + Send + std::marker::Sync>;

/// The files that were written since the last sync. They are synced without blocking the spool.
pub struct Unsynced {
    files: Vec<Arc<File>>,
    folder: Option<PathBuf>,
    sync: SyncFile,
}

impl Unsynced {
    /// Syncs the files. Blocks on the disk.
    ///
    /// # Errors
    /// The disk's error.
    pub fn sync(self) -> io::Result<()> {
        for file in &self.files {
            (self.sync)(file)?;
        }
        // After a crash, a new file exists only if its folder was synced as well.
        self.folder.map_or(Ok(()), |folder| (self.sync)(&File::open(folder)?))
    }
}

/// The spool of one session.
pub struct Spool {
    folder: PathBuf,
    session: SessionInfo,
    segments: BTreeMap<u32, Segment>,
    next_segment: u32,
    bytes: u64,
    bytes_max: u64,
    places: BTreeMap<u64, Place>,
    full_logged: bool,
    /// Segments that were written since the last sync.
    unsynced: BTreeSet<u32>,
    /// A segment was created since the last sync.
    folder_unsynced: bool,
    sync: SyncFile,
    _lock: File,
}

impl Spool {
    /// Opens (or creates) the spool of a session below `folder`.
    ///
    /// # Errors
    /// When the folder cannot be created or another process owns it.
    pub fn open(folder: &Path, session: &SessionInfo, bytes_max: u64) -> io::Result<Self> {
        let folder = folder.join(session.id.to_string());
        private_files::folder(&folder)?;
        let lock = lock(&folder)?;
        let mut spool = Self {
            folder,
            session: session.clone(),
            segments: BTreeMap::new(),
            next_segment: 1,
            bytes: 0,
            bytes_max,
            places: BTreeMap::new(),
            full_logged: false,
            unsynced: BTreeSet::new(),
            folder_unsynced: false,
            sync: Arc::new(File::sync_data),
            _lock: lock,
        };
        spool.load()?;
        Ok(spool)
    }

    /// The spools below `folder` that no living process owns. They hold undelivered data of dead processes.
    #[must_use]
    pub fn orphans(folder: &Path) -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        entries.flatten().filter_map(|entry| Self::orphan(&entry.path())).collect()
    }

    /// The sessions below `folder` that living processes are writing.
    #[must_use]
    pub fn living(folder: &Path) -> Vec<SessionInfo> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let folders = entries.flatten().map(|entry| entry.path());
        folders.filter(|folder| folder.is_dir() && lock(folder).is_err()).filter_map(|folder| owner(&folder)).collect()
    }

    /// Every session below `folder`: its own folder, its bytes there, and whether a living process owns it.
    #[must_use]
    pub fn sessions(folder: &Path) -> Vec<(PathBuf, SessionInfo, u64, bool)> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let known = |folder: PathBuf| {
            let session = owner(&folder)?;
            let sizes = segment_paths(&folder).ok()?.into_values().filter_map(|path| path.metadata().ok());
            let bytes = sizes.map(|metadata| metadata.len()).sum();
            let is_owned = lock(&folder).is_err();
            Some((folder, session, bytes, is_owned))
        };
        entries.flatten().filter_map(|entry| known(entry.path())).collect()
    }

    /// Removes a session's undelivered data.
    ///
    /// # Errors
    /// A living process owns it, or the disk refuses.
    pub fn discard(folder: &Path) -> io::Result<()> {
        let _lock = lock(folder)?;
        std::fs::remove_dir_all(folder)
    }

    /// The spool of one session, unless a living process owns it.
    pub fn orphan(folder: &Path) -> Option<Self> {
        let lock = lock(folder).ok()?;
        let session = owner(folder)?;
        drop(lock);
        Self::open(folder.parent()?, &session, u64::MAX).ok()
    }

    /// Stores the session's secret, so that another process can deliver the rest.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_secret(&mut self, secret: &SessionSecret) -> io::Result<()> {
        let path = self.folder.join(SECRET);
        let mut file = private_files::file().write(true).create(true).truncate(true).open(&path)?;
        file.write_all(secret.bytes())?;
        // Without the secret, items that survived a crash of the host could not be delivered.
        file.sync_all()
    }

    /// The session's secret. It is empty for a session of a version without secrets.
    #[must_use]
    pub fn secret(&self) -> SessionSecret {
        std::fs::read(self.folder.join(SECRET))
            .map_or_else(|_| SessionSecret::none(), |bytes| SessionSecret::read(&bytes))
    }

    /// The session of these items.
    #[must_use]
    pub fn session(&self) -> &SessionInfo {
        &self.session
    }

    /// Bytes on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The numbers and places of the items, ascending.
    pub fn places(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        self.places.iter().map(|(&seq, &place)| (seq, place))
    }

    /// Appends an item. Returns `None` when the limit is reached or the disk fails, which is logged once.
    pub fn append(&mut self, item: &v1::Item) -> Option<Place> {
        let payload = item.encode_to_vec();
        let record = RECORD_HEADER_BYTES + payload.len() as u64;
        // The item with the session's end has a few bytes. It is written even beyond the limit.
        if self.bytes + record > self.bytes_max && item.kind() != v1::ItemKind::End {
            self.log_full("its limit is reached");
            return None;
        }
        match self.write(item.seq, &payload) {
            Ok(place) => {
                self.full_logged = false;
                Some(place)
            }
            Err(error) => {
                self.log_full(&error.to_string());
                None
            }
        }
    }

    fn log_full(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.full_logged, true) {
            tracing::warn!(folder = %self.folder.display(), bytes = self.bytes, reason, "spool takes no more; events will be dropped and counted");
        }
    }

    fn write(&mut self, seq: u64, payload: &[u8]) -> io::Result<Place> {
        let number = match self.segments.last_key_value() {
            Some((&number, segment)) if segment.len < SEGMENT_BYTES => number,
            _ => self.new_segment()?,
        };
        let segment = self.segments.get_mut(&number).ok_or_else(|| io::Error::other("segment is gone"))?;
        let mut record = Vec::with_capacity(payload.len() + 8);
        record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        record.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
        record.extend_from_slice(payload);
        if let Err(error) = segment.file.write_all_at(&record, segment.len) {
            // A partial record must not precede the next one.
            let _ = segment.file.set_len(segment.len);
            return Err(error);
        }
        let place = Place { segment: number, offset: segment.len + RECORD_HEADER_BYTES, bytes: payload.len() as u32 };
        segment.len += record.len() as u64;
        segment.last_seq = seq;
        self.unsynced.insert(number);
        self.bytes += record.len() as u64;
        self.places.insert(seq, place);
        Ok(place)
    }

    fn new_segment(&mut self) -> io::Result<u32> {
        let number = self.next_segment;
        let path = self.folder.join(format!("{number:08}.spool"));
        let mut header = MAGIC.to_vec();
        let session = v1::SessionInfo::from(&self.session).encode_to_vec();
        header.extend_from_slice(&(session.len() as u32).to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&session).to_le_bytes());
        header.extend_from_slice(&session);
        let mut file = private_files::file().read(true).write(true).create(true).truncate(true).open(&path)?;
        file.write_all(&header)?;
        self.next_segment += 1;
        self.bytes += header.len() as u64;
        self.folder_unsynced = true;
        self.segments.insert(number, Segment { file: Arc::new(file), path, len: header.len() as u64, last_seq: 0 });
        Ok(number)
    }

    /// Reads an item back.
    ///
    /// # Errors
    /// The disk does not return what was written.
    pub fn read(&mut self, place: Place, seq: u64) -> io::Result<v1::Item> {
        let segment = self.segments.get(&place.segment).ok_or_else(|| io::Error::other("segment is gone"))?;
        let mut bytes = vec![0; place.bytes as usize];
        segment.file.read_exact_at(&mut bytes, place.offset)?;
        v1::Item::decode(bytes.as_slice())
            .ok()
            .filter(|item| item.seq == seq)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the spool returned a different item"))
    }

    /// Forgets the items up to `seq`, which the daemon has stored. Segments without other items are deleted.
    pub fn forget(&mut self, seq: u64) {
        self.places = seq.checked_add(1).map_or_else(BTreeMap::new, |next| self.places.split_off(&next));
        while let Some(entry) = self.segments.first_entry() {
            if entry.get().last_seq > seq {
                return;
            }
            self.unsynced.remove(entry.key());
            let segment = entry.remove();
            self.bytes = self.bytes.saturating_sub(segment.len);
            // If the file cannot be removed, the next start reads it again and recognises its items as delivered.
            let _ = std::fs::remove_file(&segment.path);
        }
    }

    /// Whether everything is on the disk.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.unsynced.is_empty() && !self.folder_unsynced
    }

    /// The files that may not be on the disk yet, if there are any. They count as synced from now on.
    pub fn unsynced(&mut self) -> Option<Unsynced> {
        let written = std::mem::take(&mut self.unsynced);
        let files: Vec<_> = written.iter().filter_map(|number| Some(self.segments.get(number)?.file.clone())).collect();
        let folder = std::mem::take(&mut self.folder_unsynced).then(|| self.folder.clone());
        let sync = self.sync.clone();
        (!files.is_empty() || folder.is_some()).then_some(Unsynced { files, folder, sync })
    }

    fn load(&mut self) -> io::Result<()> {
        for (number, path) in segment_paths(&self.folder)? {
            // A segment with the highest possible number is ignored, because no number follows it.
            let Some(next) = number.checked_add(1) else { continue };
            self.next_segment = next;
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            if !self.load_segment(number, &path, file)? {
                tracing::warn!(file = %path.display(), "a spool segment without a readable header was removed");
                std::fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn load_segment(&mut self, number: u32, path: &Path, mut file: File) -> io::Result<bool> {
        let len = file.metadata()?.len();
        let mut bytes = Vec::new();
        // A segment may exceed SEGMENT_BYTES by one item.
        Read::by_ref(&mut file).take(SEGMENT_BYTES + MESSAGE_BYTES_MAX as u64 + 1024).read_to_end(&mut bytes)?;
        let Some((_, mut at)) = read_header(&bytes) else { return Ok(false) };
        let mut last_seq = 0;
        // A crash may leave zeros, which would be read as items without a number.
        while let Some((item, size)) = read_record(&bytes[at..]).filter(|(item, _)| item.seq > last_seq) {
            let offset = at as u64 + RECORD_HEADER_BYTES;
            self.places.insert(item.seq, Place { segment: number, offset, bytes: size });
            last_seq = item.seq;
            at += RECORD_HEADER_BYTES as usize + size as usize;
        }
        if (at as u64) < len {
            tracing::warn!(file = %path.display(), kept_bytes = at, cut_bytes = len - at as u64, "an incomplete or damaged end of a spool segment was cut off");
            file.set_len(at as u64)?;
        }
        file.seek(SeekFrom::Start(at as u64))?;
        self.bytes += at as u64;
        self.segments.insert(number, Segment { file: Arc::new(file), path: path.to_owned(), len: at as u64, last_seq });
        Ok(true)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if self.places.is_empty() {
            // Everything is delivered, so the folder is removed.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn lock(folder: &Path) -> io::Result<File> {
    let file = private_files::file().create(true).truncate(false).write(true).open(folder.join("lock"))?;
    file.try_lock().map_err(|error| io::Error::other(format!("{}: {error}", folder.display())))?;
    Ok(file)
}

fn segment_paths(folder: &Path) -> io::Result<BTreeMap<u32, PathBuf>> {
    Ok(std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "spool"))
        .filter_map(|path| Some((path.file_stem()?.to_str()?.parse().ok()?, path)))
        .collect())
}

/// The session of a folder.
fn owner(folder: &Path) -> Option<SessionInfo> {
    segment_paths(folder).ok()?.into_values().find_map(|path| {
        let mut bytes = Vec::new();
        // A header holds a session and its labels. Its size is far below this limit.
        File::open(path).ok()?.take(MESSAGE_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
        read_header(&bytes).map(|(session, _)| session)
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The session of a segment and the length of its header.
fn read_header(bytes: &[u8]) -> Option<(SessionInfo, usize)> {
    if bytes.get(..8)? != MAGIC {
        return None;
    }
    let (len, crc) = (word(bytes, 8)? as usize, word(bytes, 12)?);
    let session = bytes.get(16..16_usize.checked_add(len)?)?;
    if crc32c::crc32c(session) != crc {
        return None;
    }
    let session = v1::SessionInfo::decode(session).ok()?.try_into().ok()?;
    Some((session, 16 + len))
}

fn read_record(bytes: &[u8]) -> Option<(v1::Item, u32)> {
    let (len, crc) = (word(bytes, 0)?, word(bytes, 4)?);
    let payload = bytes.get(8..8_usize.checked_add(len as usize)?)?;
    if crc32c::crc32c(payload) != crc {
        return None;
    }
    Some((v1::Item::decode(payload).ok()?, len))
}

#[cfg(test)]
#[path = "spool_tests.rs"]
mod tests;
#[cfg(test)]
pub(super) use tests::session as tests_session;
