//! The output of `-f FILE`: a file, or standard output.
//!
//! Guarantees: a file appears whole or not at all; a pipe or a device is written directly.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// What to call the output in an error.
#[must_use]
pub fn name_of(file: Option<&Path>) -> String {
    file.map_or_else(|| "standard output".to_owned(), |file| file.display().to_string())
}

/// Where the output goes.
pub enum Target<'a> {
    /// Standard output.
    Stdout(&'a mut (dyn Write + Send)),
    /// Becomes the named file when it is complete.
    File(std::io::BufWriter<tempfile::NamedTempFile>, PathBuf),
    /// A pipe or a device, which cannot be renamed.
    Special(std::io::BufWriter<std::fs::File>, PathBuf),
}

impl<'a> Target<'a> {
    /// Opens the named file, else standard output.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(file: Option<&Path>, out: &'a mut (dyn Write + Send)) -> Result<Self, Failure> {
        let Some(file) = file else { return Ok(Self::Stdout(out)) };
        let cannot = |error: std::io::Error| Failure::output(&file.display().to_string(), &error);
        if file.exists() && !file.is_file() {
            let opened = std::fs::OpenOptions::new().write(true).open(file).map_err(cannot)?;
            return Ok(Self::Special(std::io::BufWriter::new(opened), file.to_owned()));
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".memctl-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As for any new file, the umask decides; temporary files would be 0600.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let temporary = builder.tempfile_in(folder).map_err(cannot)?;
        Ok(Self::File(std::io::BufWriter::with_capacity(1 << 20, temporary), file.to_owned()))
    }

    /// The writer.
    pub fn writer(&mut self) -> &mut (dyn Write + Send) {
        match self {
            Self::Stdout(out) => *out,
            Self::File(out, _) => out,
            Self::Special(out, _) => out,
        }
    }

    /// Completes the output: a temporary file gets its name.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(self) -> Result<(), Failure> {
        match self {
            Self::Stdout(out) => out.flush().map_err(|error| Failure::output("standard output", &error)),
            Self::File(out, path) => {
                let cannot = |error: &std::io::Error| Failure::output(&path.display().to_string(), error);
                let temporary = out.into_inner().map_err(|error| cannot(error.error()))?;
                temporary.persist(&path).map(|_| ()).map_err(|error| cannot(&error.error))
            }
            Self::Special(mut out, path) => {
                out.flush().map_err(|error| Failure::output(&path.display().to_string(), &error))
            }
        }
    }
}
