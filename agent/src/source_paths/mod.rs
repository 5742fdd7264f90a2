//! How the paths of source files are sent: in full, in a short form, or as keyed hashes.
//!
//! Paths are treated where items are made, so the original paths never reach the wire, the spool or the store.
//! Guarantees: a frame keeps its kind (the user's own, a library's, a model's, compiled code), so findings are the
//! same. Equal files get equal names on all ranks. With hashes, no name of the user's folders and files is left,
//! neither in frames nor in texts that contain paths.
//! Refuses: to hide names of functions, because a finding without them would be useless. Also refuses to hide names
//! that users choose themselves: jobs, labels, roles, and regions without a path in their name.

mod installed;
mod key;
mod packages;
mod text;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use memctl_model::Frame;

use installed::Installed;
pub use key::{Key, KeyError};

/// The environment variable with the mode.
pub const MODE_VARIABLE: &str = "MEMCTL_SOURCE_PATHS";
/// The environment variable with the key of the hashes.
pub const KEY_VARIABLE: &str = "MEMCTL_SOURCE_PATHS_KEY";
/// Number of folders that a short path keeps if the file is outside the working directory.
const FOLDERS_KEPT: usize = 1;
/// A folder that marks a model's files.
const MODELS: &str = "/models/";
/// Number of files whose treated paths are remembered. A program has thousands of files.
const REMEMBERED_MAX: usize = 1 << 16;
/// Endings that show a file's type. Other endings are part of the name.
const ENDINGS: [&str; 15] =
    ["py", "pyx", "ipynb", "pt", "so", "c", "S", "cpp", "cc", "h", "hpp", "cu", "cuh", "rs", "js"];
/// Prefixes of names in angle brackets that interpreters and libraries generate.
const MADE: [&str; 9] = [
    "<autograd>",
    "<string>",
    "<stdin>",
    "<frozen ",
    "<eval_with_key>",
    "<ipython-input-",
    "<unknown",
    "<__array_",
    "<lambda>",
];

/// How much of a path leaves the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// The full path.
    #[default]
    Full,
    /// The part below the working directory or below the folder of installed packages.
    Short,
    /// A keyed hash instead of every name that is not public.
    Hashed,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Full, Self::Short, Self::Hashed];

    /// The name in flags and variables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Short => "short",
            Self::Hashed => "hashed",
        }
    }
}

impl FromStr for Mode {
    type Err = SourcePathsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| SourcePathsError::Mode(text.to_owned()))
    }
}

/// Why paths cannot be treated as requested. In that case nothing may be recorded.
#[derive(Debug, thiserror::Error)]
pub enum SourcePathsError {
    /// There is no such mode.
    #[error("unknown mode {0:?} for source paths: use full, short or hashed (MEMCTL_SOURCE_PATHS)")]
    Mode(String),
    /// There is no key, and hashes without a key could be guessed.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// How paths are treated. By default they are unchanged.
#[derive(Clone, Debug, Default)]
pub struct SourcePaths {
    how: How,
    /// Working directories, without a trailing slash.
    roots: Arc<[String]>,
}

#[derive(Clone, Debug, Default)]
enum How {
    #[default]
    Full,
    Short,
    Hashed(Key),
}

impl SourcePaths {
    /// Short paths from which a user can still find the file. A path below one of `roots` begins there.
    #[must_use]
    pub fn short(roots: &[PathBuf]) -> Self {
        Self { how: How::Short, roots: texts(roots) }
    }

    /// Hashed paths.
    #[must_use]
    pub fn hashed(key: Key, roots: &[PathBuf]) -> Self {
        Self { how: How::Hashed(key), roots: texts(roots) }
    }

    /// The treatment that `mode` requires. The key comes from [`KEY_VARIABLE`], otherwise from the user's data folder,
    /// where it is created if needed.
    ///
    /// # Errors
    /// There is no key, and no folder to store a new one.
    pub fn of(
        mode: Mode,
        environment: &dyn Fn(&str) -> Option<String>,
        data_dir: Option<&Path>,
        roots: &[PathBuf],
    ) -> Result<Self, SourcePathsError> {
        Ok(match mode {
            Mode::Full => Self::default(),
            Mode::Short => Self::short(roots),
            Mode::Hashed => Self::hashed(Key::find(environment(KEY_VARIABLE), data_dir)?, roots),
        })
    }

    /// The treatment that [`MODE_VARIABLE`] requires.
    ///
    /// # Errors
    /// There is no such mode, or no key.
    pub fn from_environment(
        environment: &dyn Fn(&str) -> Option<String>,
        data_dir: Option<&Path>,
    ) -> Result<Self, SourcePathsError> {
        let mode = environment(MODE_VARIABLE).map_or(Ok(Mode::Full), |text| text.parse())?;
        Self::of(mode, environment, data_dir, &working_directories())
    }

    /// Whether paths stay unchanged.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self.how, How::Full)
    }

    /// The treated path of a file.
    #[must_use]
    pub fn file<'a>(&self, file: &'a str) -> Cow<'a, str> {
        if self.is_full() || file.is_empty() || file == "??" {
            return Cow::Borrowed(file);
        }
        if file.starts_with('<') {
            return self.made(file);
        }
        // Paths of another system occur only in recordings that were made there.
        let file = match file.contains('/') {
            true => Cow::Borrowed(file),
            false => Cow::Owned(file.replace('\\', "/")),
        };
        let file = &*file;
        Cow::Owned(match (packages::split(file), is_compiled(file)) {
            (_, true) => self.compiled(file),
            (Some((folder, inside)), _) => {
                let treated = format!("{folder}{}", self.installed(folder, inside));
                // A folder `models` at any level marks a model's files.
                let is_model = file.contains(MODELS) && !treated.contains(MODELS);
                if is_model { format!("/models{treated}") } else { treated }
            }
            (None, _) => self.own(file),
        })
    }

    /// The treated form of a name that is not a file.
    fn made<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match &self.how {
            How::Hashed(key) if !MADE.iter().any(|made| name.starts_with(made)) => {
                Cow::Owned(format!("<{}>", key.hash(name)))
            }
            _ => Cow::Borrowed(name),
        }
    }

    /// The treated path of compiled code. It shows only that this is compiled code, and which file of it.
    fn compiled(&self, file: &str) -> String {
        let (folder, name) = last_two(file);
        let below = if file.contains("torchinductor_") { "/torchinductor_" } else { "" };
        let is_digest = is_compiled(&format!("/{folder}/{name}")) && !name.starts_with("fx_generated_");
        match &self.how {
            // A digest of the generated code reveals nothing, and `is_digest` recognises it by its form.
            How::Hashed(_) if is_digest => format!("{below}/{folder}/{name}"),
            How::Hashed(key) if name.starts_with("fx_generated_") => {
                format!("{below}/fx_generated_{}.py", key.hash(name))
            }
            How::Hashed(key) => format!("{below}/{}", hashed_name(key, file, name)),
            _ if folder.contains("torchinductor_") => format!("{below}/{name}"),
            _ => format!("{below}/{folder}/{name}"),
        }
    }

    /// The treated path below the folder of installed packages or of the standard library.
    fn installed(&self, folder: &str, inside: &str) -> String {
        match &self.how {
            How::Hashed(key) if !packages::is_public(folder, inside) => packages::hashed(key, inside),
            _ => inside.to_owned(),
        }
    }

    /// The treated path of a user's own file, or of any file on a system without packages.
    fn own(&self, file: &str) -> String {
        let below = self.below_root(file);
        match &self.how {
            How::Hashed(key) => hashed_name(key, below.unwrap_or(file), last_two(file).1),
            _ => below.map_or_else(|| last_parts(file), str::to_owned),
        }
    }

    fn below_root<'a>(&self, file: &'a str) -> Option<&'a str> {
        let file = file.strip_prefix("./").unwrap_or(file);
        if !file.starts_with(['/', '~']) && !file.starts_with("../") && file.get(1..2) != Some(":") {
            return Some(file);
        }
        self.roots.iter().find_map(|root| file.strip_prefix(&**root)?.strip_prefix('/'))
    }

    /// The treated form of a text that may contain paths, such as an exception's message or a region's name.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.how {
            How::Full => Cow::Borrowed(text),
            How::Short => text::treated(text, false, &|path| self.file(path).into_owned()),
            How::Hashed(_) => text::treated(text, true, &|path| self.file(path).into_owned()),
        }
    }

    /// The treated description of how boundaries were inferred, such as `the loop at train.py:31`. With hashes the
    /// file's name is removed, because it has no path to hash.
    #[must_use]
    pub fn found_by(&self, words: &str) -> String {
        let named = words.rsplit_once(" at ").and_then(|(words, place)| Some((words, place.rsplit_once(':')?.1)));
        match (&self.how, named) {
            (How::Hashed(_), Some((words, line))) => format!("{words} at line {line}"),
            _ => words.to_owned(),
        }
    }
}

/// Treated paths by original path.
#[derive(Default)]
pub(crate) struct Treated {
    paths: SourcePaths,
    installed: Installed,
    files: HashMap<Arc<str>, Arc<str>>,
}

impl Treated {
    pub(crate) fn new(paths: SourcePaths) -> Self {
        Self { paths, installed: Installed::default(), files: HashMap::new() }
    }

    /// Frames with treated paths; `None` if all paths are unchanged.
    pub(crate) fn frames(&mut self, frames: &[Frame]) -> Option<Vec<Frame>> {
        let treated: Vec<Frame> =
            frames.iter().map(|frame| Frame { file: self.file(&frame.file), ..frame.clone() }).collect();
        (treated != frames).then_some(treated)
    }

    fn file(&mut self, file: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.files.get(file) {
            return known.clone();
        }
        if self.files.len() == REMEMBERED_MAX {
            self.files.clear();
        }
        let installed = self.installed.path(file);
        let treated: Arc<str> = self.paths.file(installed.as_deref().unwrap_or(file)).into();
        self.files.insert(file.clone(), treated.clone());
        treated
    }

    /// A text with treated paths.
    pub(crate) fn text(&self, text: String) -> String {
        match self.paths.text(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(treated) => treated,
        }
    }
}

/// The working directory, with its name from the kernel and its name from the shell.
#[must_use]
pub fn working_directories() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = std::env::current_dir().into_iter().collect();
    directories.extend(std::env::var_os("PWD").map(PathBuf::from).filter(|shell| {
        let same = |one: &Path, other: &Path| one.canonicalize().ok() == other.canonicalize().ok();
        directories.first().is_some_and(|kernel| kernel != shell && same(kernel, shell))
    }));
    directories
}

/// The roots as texts, without the root directory, which is not a project's.
fn texts(roots: &[PathBuf]) -> Arc<[String]> {
    let texts = roots.iter().filter_map(|root| root.to_str()).map(|root| root.trim_end_matches('/').to_owned());
    texts.filter(|root| root.starts_with('/')).collect()
}

fn is_compiled(file: &str) -> bool {
    Frame { function: "".into(), file: file.into(), line: 0 }.is_compiled()
}

/// The last folder of a path, and the file's name.
fn last_two(file: &str) -> (&str, &str) {
    let (front, name) = file.rsplit_once('/').unwrap_or(("", file));
    (front.rsplit('/').next().unwrap_or_default(), name)
}

fn last_parts(file: &str) -> String {
    let parts: Vec<&str> = file.split('/').filter(|part| !part.is_empty()).collect();
    parts[parts.len().saturating_sub(FOLDERS_KEPT + 1)..].join("/")
}

/// The hash of a path, with the ending of the file's name.
fn hashed_name(key: &Key, path: &str, name: &str) -> String {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending).filter(|ending| ENDINGS.contains(ending));
    let hash = key.hash(path);
    ending.map_or(hash.clone(), |ending| format!("{hash}.{ending}"))
}

#[cfg(test)]
mod tests;
