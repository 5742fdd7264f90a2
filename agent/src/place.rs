//! Where memctl keeps its data on a machine, and where in it waits what nobody took.
//!
//! The environment comes in as a function. Guarantees: one folder a destination, the same for whoever writes into
//! it (a launcher, a process that attached by itself) and whoever delivers it; what was meant for one daemon is not
//! found by another.

use std::path::{Path, PathBuf};

use crate::agent::SpoolConfig;
use crate::reach;

/// Disk that a session may use while the daemon is away: hundreds of millions of events.
const SPOOL_BYTES_MAX: u64 = 1 << 30;
/// The spool of this user's daemon and of stores in the data folder: they are one place for whoever names none.
const LOCAL: &str = "local";

/// `$XDG_DATA_HOME/memctl`, else `~/.local/share/memctl`; `None` where neither variable is set.
#[must_use]
pub fn data_dir(environment: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // The XDG specification: a relative path is to be ignored.
    let absolute = |name: &str| environment(name).filter(|folder| folder.is_absolute());
    absolute("XDG_DATA_HOME")
        .map(|folder| folder.join("memctl"))
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share/memctl")))
}

/// The folder of what a destination has not taken: a daemon that was named, else the local one. This user's daemon is
/// the local one, named or not.
#[must_use]
pub fn spool_folder(data_dir: &Path, daemon: Option<&str>) -> PathBuf {
    let other = daemon.filter(|url| *url != reach::own_url());
    data_dir.join("spool").join(other.map_or_else(|| LOCAL.to_owned(), folder_name))
}

/// The spool of a destination, with its usual limit.
#[must_use]
pub fn spool(data_dir: &Path, daemon: Option<&str>) -> SpoolConfig {
    SpoolConfig { folder: spool_folder(data_dir, daemon), bytes_max: SPOOL_BYTES_MAX }
}

/// A daemon's address as a folder's name.
fn folder_name(url: &str) -> String {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => character,
        _ => '_',
    };
    // Never `.` or `..`, and never longer than a folder's name may be.
    format!("daemon-{}", address.chars().map(plain).take(200).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_daemon_has_a_spool_of_its_own() {
        assert_eq!(folder_name("http://host:7717/"), "daemon-host_7717");
        assert_eq!(folder_name("http://[::1]:1"), "daemon-___1__1");
        assert_eq!(folder_name("http://../x"), "daemon-.._x");
        assert_ne!(folder_name("http://local"), LOCAL);
        assert!(folder_name(&"x".repeat(9_999)).len() < 255);
        assert_eq!(folder_name("unix:/run/a.sock"), "daemon-unix__run_a.sock");
        for local in [None, Some(reach::own_url().as_str())] {
            assert_eq!(spool_folder(Path::new("/d"), local), Path::new("/d/spool/local"));
        }
    }

    #[test]
    fn the_data_folder_follows_xdg() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            data_dir(&|name| if name == "HOME" { home } else { xdg }.map(PathBuf::from))
        };
        assert_eq!(of(Some("/x"), Some("/h")), Some(PathBuf::from("/x/memctl")));
        assert_eq!(of(Some("x"), Some("/h")), Some(PathBuf::from("/h/.local/share/memctl")));
        assert_eq!(of(None, Some("h")), None);
        assert_eq!(of(None, None), None);
    }
}
