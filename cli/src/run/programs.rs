//! Which Python programs of a run were recorded: from their own reports, and from `/proc` for programs that report
//! nothing.
//!
//! A program with our folder in front of its PYTHONPATH writes a line when it starts, one when it has torch, and one
//! when it cannot be recorded. A Python that never looks there (`python -I`, a replaced PYTHONPATH) is noticed in
//! `/proc`, which is checked at intervals while the command runs. Guarantees: bounded, whatever processes write; only
//! the command's descendants are inspected, and never their memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::render::text::plural;

/// The file of lines, beside the socket. Programs stop writing at a quarter of this.
pub const FILE: &str = "seen";
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Reasons that are kept.
const REASONS_MAX: usize = 16;
/// Intervals between scans of `/proc`: short at first, then a few milliseconds of work every ten seconds.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(10)];
/// Characters of a command line that are shown.
const SHOWN_MAX: usize = 60;

/// The state at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramFacts {
    started: BTreeSet<u32>,
    with_torch: BTreeSet<u32>,
    why: Vec<String>,
    /// Programs that use torch and are not recorded, and why, by process.
    pub missed: BTreeMap<u32, String>,
}

impl ProgramFacts {
    /// Reads the programs' reports; `missed` is the result of [`watch`].
    pub fn read(folder: &Path, missed: BTreeMap<u32, String>) -> Self {
        use std::io::Read as _;
        let mut text = Vec::new();
        if let Ok(file) = std::fs::File::open(folder.join(FILE)) {
            // A file that cannot be read reports nothing.
            let _ = file.take(FILE_BYTES_MAX).read_to_end(&mut text);
        }
        let mut seen = Self { missed, ..Self::default() };
        String::from_utf8_lossy(&text).lines().for_each(|line| seen.hear(line));
        seen
    }

    fn hear(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let Some(pid) = words.next().and_then(|pid| pid.parse().ok()) else { return };
        match (words.next(), words.next()) {
            (Some("started"), _) => _ = self.started.insert(pid),
            (Some("torch"), _) => _ = self.with_torch.insert(pid),
            (Some("why"), Some(why)) if self.why.len() < REASONS_MAX && !self.why.iter().any(|known| known == why) => {
                self.why.push(why.to_owned());
            }
            _ => {}
        }
    }

    /// The first reason that a program gave.
    pub fn reason(&self) -> Option<&str> {
        self.why.first().map(String::as_str)
    }

    /// Why nothing was recorded, and what to do.
    pub fn nothing_recorded(&self, words: &[impl AsRef<OsStr>]) -> String {
        let because = if let Some(why) = self.reason() {
            why.to_owned()
        } else if let Some(missed) = self.missed.values().next() {
            missed.clone()
        } else if let Some(missed) = evaded(words, None) {
            missed
        } else if !self.with_torch.is_empty() {
            format!(
                "{} imported torch and none used CUDA; check torch.cuda.is_available() and CUDA_VISIBLE_DEVICES",
                plural(self.with_torch.len() as u64, "program")
            )
        } else if !self.started.is_empty() {
            format!("{} started and none imported torch", plural(self.started.len() as u64, "Python program"))
        } else {
            "no Python started that looks at PYTHONPATH; if the command starts one, keep PYTHONPATH as it is there and \
             leave -I, -E and -S out, or call memctl_agent.attach() in the program"
                .to_owned()
        };
        format!("nothing was recorded: {because}")
    }
}

/// Scans the descendants of `root` until `stop` is dropped.
pub fn watch(root: u32, inject: &Path, stop: &Receiver<()>) -> BTreeMap<u32, String> {
    let mut missed = BTreeMap::new();
    let looks = LOOKS.iter().copied().chain(std::iter::repeat(LOOKS[LOOKS.len() - 1]));
    for pause in looks {
        if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        for pid in descendants(root) {
            if missed.len() < REASONS_MAX
                && !missed.contains_key(&pid)
                && let Some(why) = missed_process(pid, inject)
            {
                tracing::info!(pid, why, "a process is not recorded");
                missed.insert(pid, why);
            }
        }
    }
    missed
}

/// Why a process that uses torch's CUDA libraries is not recorded; `None` for all others.
fn missed_process(pid: u32, inject: &Path) -> Option<String> {
    let proc = Path::new("/proc").join(pid.to_string());
    let words: Vec<Vec<u8>> =
        std::fs::read(proc.join("cmdline")).ok()?.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    let words: Vec<&OsStr> = words.iter().map(|word| OsStr::from_bytes(word)).collect();
    let environment = std::fs::read(proc.join("environ")).ok()?;
    let path = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(b"PYTHONPATH=")).unwrap_or(b"");
    let has_ours = path.split(|byte| *byte == b':').any(|folder| folder == inject.as_os_str().as_bytes());
    let why = evaded(&words, Some(has_ours))?;
    // Checked last: a trainer's list of mappings is long.
    let maps = std::fs::read(proc.join("maps")).ok()?;
    maps.windows(11).any(|window| window == b"libc10_cuda").then_some(why)
}

/// Why a command line's Python does not start with our folder; `None` if it does or is not Python.
fn evaded(words: &[impl AsRef<OsStr>], has_ours: Option<bool>) -> Option<String> {
    let name = Path::new(words.first()?.as_ref()).file_name()?.to_str()?.to_owned();
    if !name.starts_with("python") {
        return None;
    }
    let shown = shown(words);
    if let Some(option) = isolating(&words[1..]) {
        return Some(format!(
            "`{shown}` does not look at PYTHONPATH because of -{option}; leave that out, or call memctl_agent.attach() in \
             the program"
        ));
    }
    (has_ours == Some(false)).then(|| {
        format!(
            "`{shown}` runs with another PYTHONPATH; add to it instead of replacing it (PYTHONPATH=FOLDER:$PYTHONPATH), or \
             call memctl_agent.attach() in the program"
        )
    })
}

/// The interpreter option that prevents Python from using our folder.
fn isolating(options: &[impl AsRef<OsStr>]) -> Option<char> {
    let mut options = options.iter().map(|option| option.as_ref().to_string_lossy());
    while let Some(option) = options.next() {
        let letters = option.strip_prefix('-').filter(|letters| !letters.is_empty() && !letters.starts_with('-'))?;
        for (at, letter) in letters.char_indices() {
            match letter {
                'I' | 'E' | 'S' => return Some(letter),
                // The program and its arguments follow.
                'c' | 'm' => return None,
                // The rest of the word is the option's value, or the next word is.
                'W' | 'X' => {
                    if at + 1 == letters.len() {
                        options.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

fn shown(words: &[impl AsRef<OsStr>]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let line = words.join(" ");
    let line = line.trim();
    match line.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// A process and all its descendants.
fn descendants(root: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pairs: Vec<(u32, u32)> = entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The state and the parent follow the name, which may contain any characters.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(pairs.iter().filter(|(pid, of)| *of == parent && *pid != root).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> ProgramFacts {
        let mut seen = ProgramFacts::default();
        text.lines().for_each(|line| seen.hear(line));
        seen
    }

    #[test]
    fn the_nearest_reason_is_told() {
        let none: [&str; 0] = [];
        let reason = |text: &str| of(text).nothing_recorded(&none);
        assert!(reason("").contains("no Python started that looks at PYTHONPATH"));
        assert!(
            reason("1 started\n2 started\n1 started").contains("2 Python programs started and none imported torch")
        );
        assert!(reason("1 started\n1 torch").contains("1 program imported torch and none used CUDA"));
        assert!(reason("1 started\n1 torch\n1 why no compiler").ends_with("nothing was recorded: no compiler"));
        assert!(reason("rubbish\n\n9\nx y z\n7 why").contains("no Python started"));
        let isolated = of("").nothing_recorded(&["/usr/bin/python3.11", "-I", "train.py"]);
        assert!(isolated.contains("`/usr/bin/python3.11 -I train.py`") && isolated.contains("-I;"), "{isolated}");
    }

    #[test]
    fn options_of_the_interpreter() {
        for (line, found) in [
            ("-I t.py", Some('I')),
            ("-u -E t.py", Some('E')),
            ("-bES -c x", Some('E')),
            ("-W I t.py", None),
            ("-XI t.py", None),
            ("-X importtime -S t.py", Some('S')),
            ("-c -I", None),
            ("-m pkg -I", None),
            ("t.py -I", None),
            ("-um pkg", None),
            ("--version", None),
            ("-", None),
            ("", None),
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(isolating(&words), found, "{line}");
        }
    }

    #[test]
    fn a_path_that_was_replaced() {
        let words = ["/venv/bin/python", "train.py"];
        assert_eq!(evaded(&words, Some(true)), None);
        assert_eq!(evaded(&words, None), None);
        assert!(evaded(&words, Some(false)).is_some_and(|why| why.contains("another PYTHONPATH")));
        assert_eq!(evaded(&["/bin/sh", "-I"], Some(false)), None);
        assert!(descendants(std::process::id()).contains(&std::process::id()));
    }
}
