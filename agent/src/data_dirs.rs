//! Determines the folders of memctl's data on a machine, and of undelivered data.
//!
//! The environment is passed as a function.
//! Guarantees: each destination has one folder. It is the same for every process that writes into it (a launcher, a
//! process that attached by itself) or delivers from it. Data for one daemon is never delivered to another.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::agent::SpoolConfig;
use crate::reach;

/// Disk space that a session may use while the daemon cannot be reached. It holds hundreds of millions of events.
const SPOOL_BYTES_MAX: u64 = 1 << 30;
/// The spool for this user's daemon and for stores in the data folder. It is the default when no daemon is named.
const LOCAL: &str = "local";

/// The parent of each host's folder, in a data folder that several hosts share.
const HOSTS: &str = "hosts";

/// The variable that names a folder which all nodes of a launch share.
pub const NODES_VARIABLE: &str = "MEMCTL_SHARED_DIR";

/// `statfs` types of file systems that several hosts use at once. SQLite's log must not be on them. They are NFS, SMB
/// and CIFS, Lustre, GPFS, Ceph, AFS, BeeGFS, PanFS and OCFS2. The numbers are from linux/magic.h, or from the source
/// of the file system if they are not there.
const SHARED: [u32; 10] = [
    0x0000_6969,
    0xfe53_4d42,
    0xff53_4d42,
    0x0bd0_0bd0,
    0x4750_4653,
    0x00c3_6400,
    0x5346_414f,
    0x1983_0326,
    0xaad7_aaea,
    0x7461_636f,
];

/// The data folder of this host. It is a subfolder of its own if other hosts may use the data folder at the same time.
#[must_use]
pub fn data_dir(environment: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    shared_dir(environment).map(|folder| of_host(folder, &is_shared, &host))
}

/// A folder for data that all nodes of a launch can reach: the one that the environment names, otherwise the data
/// folder or a folder below the working folder if other hosts may use their file system. `None` if there is none.
#[must_use]
pub fn of_all_nodes(environment: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    among_shared(environment, std::env::current_dir().ok(), &is_shared)
}

fn among_shared(
    environment: &dyn Fn(&str) -> Option<PathBuf>,
    working: Option<PathBuf>,
    is_shared: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let named = environment(NODES_VARIABLE).filter(|folder| !folder.as_os_str().is_empty());
    let below = |folder: PathBuf| folder.ancestors().find(|folder| folder.exists()).is_some_and(is_shared);
    let data = || shared_dir(environment).filter(|folder| below(folder.clone()));
    let working = || working.filter(|folder| below(folder.clone())).map(|folder| folder.join(".memctl"));
    named.and_then(|folder| std::path::absolute(folder).ok()).or_else(data).or_else(working)
}

/// The folder of this host. `is_shared` reports whether other hosts may use the file system of a folder.
fn of_host(folder: PathBuf, is_shared: &dyn Fn(&Path) -> bool, host: &str) -> PathBuf {
    // A folder that does not exist yet will be on the file system of its nearest existing ancestor.
    let there = folder.ancestors().find(|folder| folder.exists());
    match there.is_some_and(is_shared) {
        true => folder.join(HOSTS).join(plain(host)),
        false => folder,
    }
}

fn is_shared(folder: &Path) -> bool {
    // (The magic number is 32 bits wide in all kernels; the field is wider in some.)
    rustix::fs::statfs(folder).is_ok_and(|found| SHARED.contains(&(found.f_type as u32)))
}

/// The folders of other hosts' stores next to this host's folder, and of a store above them that all hosts share.
/// Sorted.
#[must_use]
pub fn other_stores(folder: &Path) -> Vec<PathBuf> {
    let hosts = folder.parent().filter(|parent| parent.file_name() == Some(OsStr::new(HOSTS)));
    let Some(hosts) = hosts else { return Vec::new() };
    let beside = std::fs::read_dir(hosts).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = beside.chain(hosts.parent().map(Path::to_path_buf)).collect();
    found.retain(|other| other != folder && other.join("memctl.db").is_file());
    found.sort();
    found
}

/// A host's name in a form that is valid as a folder's name.
fn plain(host: &str) -> String {
    let plain =
        |character: char| if character.is_ascii_alphanumeric() || ".-".contains(character) { character } else { '_' };
    let name: String = host.chars().map(plain).take(200).collect();
    if name.trim_matches('.').is_empty() { "host".to_owned() } else { name }
}

/// `$XDG_DATA_HOME/memctl`, otherwise `~/.local/share/memctl`; `None` when neither variable is set.
fn shared_dir(environment: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // The XDG specification: relative paths are ignored.
    let absolute = |name: &str| environment(name).filter(|folder| folder.is_absolute());
    absolute("XDG_DATA_HOME")
        .map(|folder| folder.join("memctl"))
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share/memctl")))
}

/// The folder for undelivered data of a destination. The destination is the daemon that was named, otherwise the local
/// one. This user's daemon counts as the local one, also when it is named.
#[must_use]
pub fn spool_folder(data_dir: &Path, daemon: Option<&str>) -> PathBuf {
    let other = daemon.filter(|url| *url != reach::own_url());
    data_dir.join("spool").join(other.map_or_else(|| LOCAL.to_owned(), folder_name))
}

/// The spool of a destination, with the default limit.
#[must_use]
pub fn spool(data_dir: &Path, daemon: Option<&str>) -> SpoolConfig {
    SpoolConfig { folder: spool_folder(data_dir, daemon), bytes_max: SPOOL_BYTES_MAX }
}

/// A daemon's address in a form that is valid as a folder's name.
fn folder_name(url: &str) -> String {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => character,
        _ => '_',
    };
    // The result is never `.` or `..`, and never longer than a folder's name may be.
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
    fn nodes_share_the_named_folder_or_one_on_a_file_system_of_several_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let (home, scratch) = (folder.path().join("home"), folder.path().join("scratch"));
        [&home, &scratch].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let found = |named: Option<&str>, shared: &[&Path]| {
            let environment = |name: &str| match name {
                NODES_VARIABLE => named.map(PathBuf::from),
                "HOME" => Some(home.clone()),
                _ => None,
            };
            among_shared(&environment, Some(scratch.clone()), &|folder| shared.contains(&folder))
        };
        assert_eq!(found(Some("/all"), &[&home]), Some("/all".into()));
        assert_eq!(found(Some(""), &[&home, &scratch]), Some(home.join(".local/share/memctl")));
        assert_eq!(found(None, &[&scratch]), Some(scratch.join(".memctl")));
        assert_eq!(found(None, &[]), None);
    }

    #[test]
    fn hosts_that_share_a_home_have_a_folder_each() {
        let home = tempfile::tempdir().unwrap();
        let base = home.path().join("not/there/yet");
        let on = |shared: bool, host: &str| of_host(base.clone(), &|folder| folder == home.path() && shared, host);
        assert_eq!(on(false, "a"), base);
        assert_eq!(on(true, "gpu-1.cluster"), base.join("hosts/gpu-1.cluster"));
        assert_eq!(on(true, "../x"), base.join("hosts/.._x"));
        assert_eq!(on(true, ".."), base.join("hosts/host"));
        assert!(!is_shared(Path::new("/proc")), "a file system of this host alone");
        let store = |folder: &Path| {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("memctl.db"), "").unwrap();
        };
        let (a, b) = (on(true, "a"), on(true, "b"));
        [&base, &a, &b].into_iter().for_each(|folder| store(folder));
        std::fs::create_dir(base.join("hosts/empty")).unwrap();
        assert_eq!(other_stores(&a), [base.clone(), b]);
        assert_eq!(other_stores(&base), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_data_folder_follows_xdg() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            shared_dir(&|name| if name == "HOME" { home } else { xdg }.map(PathBuf::from))
        };
        assert_eq!(of(Some("/x"), Some("/h")), Some(PathBuf::from("/x/memctl")));
        assert_eq!(of(Some("x"), Some("/h")), Some(PathBuf::from("/h/.local/share/memctl")));
        assert_eq!(of(None, Some("h")), None);
        assert_eq!(of(None, None), None);
    }
}
