//! A machine that misbehaves below a daemon: slow or failing disks, a wall clock that jumps, memory that ends.
//!
//! Guarantees: every fault is counted where it happens, so that a test can assert that it did.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `tests/faults/system.c` can be ordered to do; the number is its place in the file of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every sync takes so many milliseconds longer.
    SlowSync = 0,
    /// Every sync fails with this error number.
    FailingSync = 1,
    /// Every write fails with this error number.
    FailingWrite = 2,
    /// The wall clock is so many seconds off.
    WrongClock = 3,
}

/// Orders to the daemons that run with it.
pub struct Machine {
    folder: tempfile::TempDir,
    orders: File,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// One that behaves.
    ///
    /// # Panics
    /// When the library cannot be built.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("faults/system.c");
        let library = folder.path().join("system.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
        crate::run(&mut compiler);
        let path = folder.path().join("orders");
        std::fs::write(&path, [0_u8; 64]).expect("orders");
        let orders = File::options().read(true).write(true).open(path).expect("orders");
        Self { folder, orders }
    }

    /// The variables of a program that is to run on it.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.folder.path().join("system.so")), ("MEMCTL_FAULTS", self.folder.path().join("orders"))]
    }

    /// From now on; 0 ends it.
    ///
    /// # Panics
    /// When the orders cannot be written.
    pub fn order(&self, fault: Fault, value: i64) {
        self.orders.write_all_at(&value.to_ne_bytes(), fault as u64 * 8).expect("orders");
    }

    /// How often it has happened.
    ///
    /// # Panics
    /// When the counts cannot be read.
    #[must_use]
    pub fn happened(&self, fault: Fault) -> u64 {
        let mut bytes = [0; 8];
        self.orders.read_exact_at(&mut bytes, 32 + fault as u64 * 8).expect("counts");
        u64::from_ne_bytes(bytes)
    }
}
