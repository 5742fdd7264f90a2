//! Compares the line numbers that `line` finds with the interpreters' own.
//!
//! First come golden tables of every supported version, then the
//! standard library of each installed Python (`python3`, `python3.10` … on PATH, and $MEMCTL_PYTHONS, separated by
//! colons).

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::lines::line;

/// One code object as `tables.py` prints it.
struct Table {
    version: (u8, u8),
    first_line: u32,
    bytes: Vec<u8>,
    /// Each line and the number of its instructions, in order.
    runs: Vec<(Option<u32>, u32)>,
}

fn parse(row: &str) -> Table {
    let [version, first_line, bytes, runs] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row:?}") };
    let (major, minor) = version.split_once('.').expect("a version");
    let hex = if bytes == "-" { "" } else { bytes };
    Table {
        version: (major.parse().expect("a number"), minor.parse().expect("a number")),
        first_line: first_line.parse().expect("a number"),
        bytes: (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect(),
        runs: runs
            .split(',')
            .map(|run| {
                let (line, count) = run.split_once('x').expect("a run");
                (line.parse().ok(), count.parse().expect("a number"))
            })
            .collect(),
    }
}

/// Compares every instruction. Returns the number of instructions.
fn compare(rows: &str) -> u32 {
    let mut compared = 0;
    for table in rows.lines().map(parse) {
        let mut at_bytes = 0;
        for (wanted, count) in table.runs {
            for _ in 0..count {
                let found = line(table.version, table.first_line, &table.bytes, at_bytes);
                assert_eq!(found, wanted, "{:?} {:02x?} at {at_bytes}", table.version, table.bytes);
                at_bytes += 2;
                compared += 1;
            }
        }
        assert_eq!(line(table.version, table.first_line, &table.bytes, at_bytes), None, "past the end");
    }
    compared
}

#[test]
fn golden_tables_of_every_version() {
    for (version, rows) in [
        ("3.10", include_str!("golden/3.10.txt")),
        ("3.11", include_str!("golden/3.11.txt")),
        ("3.12", include_str!("golden/3.12.txt")),
        ("3.13", include_str!("golden/3.13.txt")),
        ("3.14", include_str!("golden/3.14.txt")),
        ("3.15", include_str!("golden/3.15.txt")),
    ] {
        assert!(rows.lines().all(|row| row.starts_with(version)), "{version}");
        assert!(rows.contains("-x"), "{version}: an instruction without a line");
        assert!(compare(rows) > 300, "{version}");
    }
}

/// An unsupported version has no lines.
#[test]
fn other_versions() {
    let table = parse(include_str!("golden/3.13.txt").lines().next().expect("a row"));
    for at in [0, 2, 40] {
        for version in [(3, 9), (3, 16), (2, 7), (4, 11)] {
            assert_eq!(line(version, 1, &table.bytes, at), None);
        }
    }
}

#[test]
fn every_python_here_agrees_over_its_standard_library() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/python/tables.py");
    let named = std::env::var("MEMCTL_PYTHONS").unwrap_or_default();
    let named: Vec<&str> = named.split(':').filter(|name| !name.is_empty()).collect();
    let on_path = ["python3", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14", "python3.15"];
    let mut compared = Vec::new();
    for python in on_path.iter().chain(&named) {
        // A missing program, or a wrapper without an interpreter, is skipped. An interpreter in MEMCTL_PYTHONS must
        // work.
        let works = Command::new(python).args(["-c", "import sys; sys.exit(sys.version_info < (3, 10))"]).output();
        if !works.is_ok_and(|output| output.status.success()) {
            assert!(!named.contains(python), "{python} of $MEMCTL_PYTHONS is no Python 3.10 or newer");
            continue;
        }
        let output = Command::new(python).args(["-I", "-S"]).arg(&script).output().expect("it ran before");
        assert!(output.status.success(), "{python}: {}", String::from_utf8_lossy(&output.stderr));
        let rows = String::from_utf8(output.stdout).expect("text");
        let version = rows.split(' ').next().unwrap_or_default().to_owned();
        let known = ["3.10", "3.11", "3.12", "3.13", "3.14", "3.15"].contains(&version.as_str());
        if !known || compared.iter().any(|(other, _)| *other == version) {
            continue;
        }
        let instructions = compare(&rows);
        assert!(instructions > 50_000, "{python}: {instructions} instructions");
        compared.push((version, instructions));
    }
    println!("compared: {compared:?}");
    assert!(!compared.is_empty(), "no python3 on PATH: install one, or name interpreters in MEMCTL_PYTHONS");
}

#[test]
fn tables_that_are_cut_short_have_no_line() {
    // For 3.11: bytes that begin no entry, a number that does not end, a number of more than 36 bits, a line below 0.
    for table in
        [&[][..], &[0x00], &[0xe8], &[0xe8, 0x7f], &[0xe8, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x3f], &[0xe8, 0x05]]
    {
        assert_eq!(line((3, 11), 1, table, 0), None, "{table:02x?}");
    }
    for table in [&[][..], &[4], &[4, 0x80], &[4, 0xfe]] {
        assert_eq!(line((3, 10), 1, table, 0), None, "{table:02x?}");
    }
    assert_eq!(line((3, 10), 1, &[4, 1], 3), Some(2));
    assert_eq!(line((3, 11), u32::MAX, &[0xd8, 0], 0), None, "beyond the last line");
}

proptest! {
    #[test]
    fn rubbish_never_panics(
        minor in 9u8..17,
        first_line in any::<u32>(),
        table in proptest::collection::vec(any::<u8>(), 0..600),
        at in prop_oneof![0u32..1_000, any::<u32>()],
    ) {
        let _ = line((3, minor), first_line, &table, at);
    }

    #[test]
    fn entries_of_rubbish_never_panic(
        first_line in any::<u32>(),
        entries in proptest::collection::vec((0x80u8..=0xff, proptest::collection::vec(0u8..0x80, 0..9)), 0..100),
        at in 0u32..2_000,
    ) {
        let table: Vec<u8> = entries.into_iter().flat_map(|(first, rest)| std::iter::once(first).chain(rest)).collect();
        let _ = line((3, 12), first_line, &table, at);
    }
}
