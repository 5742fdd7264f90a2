//! The key of the hashes. It is given, or it is a secret of the user that all their jobs share.
//!
//! Guarantees: names cannot be guessed from the hashes without the key. Many processes, on many hosts that share the
//! folder, may create the key at the same time: all get the same one.
//! Refuses: keys that are short enough to be guessed.

use std::fmt::Write as _;
use std::path::Path;
#[cfg(not(target_family = "wasm"))]
use std::{
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Minimum characters of a given key.
const GIVEN_MIN: usize = 16;
/// Bytes of a generated key.
const MADE_BYTES: usize = 32;
/// Bytes of a hash that are shown. With a million files, a collision occurs once in ten million jobs.
const SHOWN_BYTES: usize = 8;
/// The key's file in the data folder.
const FILE: &str = "source-paths.key";

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The given key is too short.
    #[error("the key of source paths has {0} characters: give 16 or more (MEMCTL_SOURCE_PATHS_KEY)")]
    Short(usize),
    /// There is no folder in which to keep a key.
    #[error("hashed source paths need a key: set MEMCTL_SOURCE_PATHS_KEY, or HOME for a key to be kept in")]
    NoFolder,
    /// The key's file cannot be used.
    #[error("the key of source paths {file}: {source}; make the file readable, or set MEMCTL_SOURCE_PATHS_KEY")]
    File {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// A key.
#[derive(Clone)]
pub struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// The given key.
    ///
    /// # Errors
    /// It is too short.
    pub fn given(text: &str) -> Result<Self, KeyError> {
        match text.chars().count() {
            count if count < GIVEN_MIN => Err(KeyError::Short(count)),
            _ => Ok(Self(text.as_bytes().to_vec())),
        }
    }

    /// The given key, otherwise the key in the data folder.
    ///
    /// # Errors
    /// There is no key, and none can be made.
    pub fn find(given: Option<String>, data_dir: Option<&Path>) -> Result<Self, KeyError> {
        if let Some(text) = given {
            return Self::given(&text);
        }
        let folder = data_dir.ok_or(KeyError::NoFolder)?;
        let file = folder.join(FILE);
        Self::kept(folder, &file).map_err(|source| KeyError::File { file: file.display().to_string(), source })
    }

    /// WebAssembly keeps no secret, so a key is only read there.
    #[cfg(target_family = "wasm")]
    fn kept(_folder: &Path, file: &Path) -> std::io::Result<Self> {
        read(file)?.ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    #[cfg(not(target_family = "wasm"))]
    fn kept(folder: &Path, file: &Path) -> std::io::Result<Self> {
        if let Some(key) = read(file)? {
            return Ok(key);
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut bytes = [0; MADE_BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        let own = PathBuf::from(format!("{}.{}", file.display(), hex(&bytes[..8])));
        let mut made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&own)?;
        let linked = made.write_all(hex(&bytes).as_bytes()).and_then(|()| made.sync_all()).and_then(|()| {
            // Linking is atomic: the first process wins, in a shared folder as well.
            std::fs::hard_link(&own, file)
        });
        let _ = std::fs::remove_file(&own);
        match linked {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
            _ => read(file)?.ok_or_else(|| std::io::ErrorKind::NotFound.into()),
        }
    }

    /// The hash of a text: 16 hexadecimal digits.
    #[must_use]
    pub fn hash(&self, text: &str) -> String {
        // An HMAC takes keys of every length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return "0".repeat(2 * SHOWN_BYTES) };
        mac.update(text.as_bytes());
        hex(&mac.finalize().into_bytes()[..SHOWN_BYTES])
    }
}

fn read(file: &Path) -> std::io::Result<Option<Key>> {
    match std::fs::read_to_string(file) {
        Ok(text) if text.trim().len() >= GIVEN_MIN => Ok(Some(Key(text.trim().as_bytes().to_vec()))),
        Ok(_) => Err(std::io::Error::other("it holds no key")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_the_hmac_of_the_path() {
        // printf %s model/net.py | openssl dgst -sha256 -hmac 0123456789abcdef
        let key = Key::given("0123456789abcdef").unwrap();
        assert_eq!(key.hash("model/net.py"), "a149cfc47906d693");
        assert_ne!(key.hash("model/net.py"), Key::given("0123456789abcdeg").unwrap().hash("model/net.py"));
        assert!(matches!(Key::given("short"), Err(KeyError::Short(5))));
        assert_eq!(format!("{key:?}"), "Key(…)", "a key is not logged");
    }

    #[test]
    fn all_who_make_it_at_once_get_one_key() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("memctl");
        let hashes: Vec<String> = std::thread::scope(|scope| {
            let one = || scope.spawn(|| Key::find(None, Some(&folder)).unwrap().hash("x"));
            let threads: Vec<_> = (0..16).map(|_| one()).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap()).collect();
        assert_eq!(files.len(), 1, "what was tried is gone: {files:?}");
        assert_eq!(files[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn without_a_key_there_are_no_hashes() {
        assert!(matches!(Key::find(None, None), Err(KeyError::NoFolder)));
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(FILE), "").unwrap();
        let error = Key::find(None, Some(home.path())).unwrap_err().to_string();
        assert!(error.contains("source-paths.key: it holds no key") && error.contains("MEMCTL_SOURCE_PATHS_KEY"));
    }
}
