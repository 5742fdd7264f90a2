//! A misbehaving machine below a daemon: slow or failing disks, a wall clock that jumps, exhausted memory.
//!
//! Guarantees: every fault is counted where it happens, so that a test can assert that it did.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The faults of `tests/faults/system.c`; the number is the fault's place in the file of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every sync takes this many milliseconds longer.
    SlowSync = 0,
    /// Every sync fails with this error number.
    FailingSync = 1,
    /// Every write fails with this error number.
    FailingWrite = 2,
    /// The wall clock is this many seconds off.
    WrongClock = 3,
}

/// Orders to the daemons that run on it.
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
    /// A machine without faults.
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

    /// The environment for a program on this machine.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.folder.path().join("system.so")), ("MEMCTL_FAULTS", self.folder.path().join("orders"))]
    }

    /// Sets a fault from now on; 0 ends it.
    ///
    /// # Panics
    /// When the orders cannot be written.
    pub fn order(&self, fault: Fault, value: i64) {
        self.orders.write_all_at(&value.to_ne_bytes(), fault as u64 * 8).expect("orders");
    }

    /// How often the fault has happened.
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
