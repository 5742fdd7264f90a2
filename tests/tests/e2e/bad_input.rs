//! Bad input: the exit code is that of the contract, the message has the problem and its remedy, and nothing is stored.
//!
//! Every refusal is made against a store that already holds a job, and the list of jobs is the same afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;

use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run, run_json, stderr, stdout};
use serde_json::Value;
use tempfile::TempDir;

/// The input is bad.
const BAD_INPUT: i32 = 5;
/// Wrong usage.
const USAGE: i32 = 2;

/// A store with the job `kept` in it, and a folder for files.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap() };
        run(scene.import("kept").arg(recorded(1)));
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = memctl();
        command.args([verb, "-q", "--data-dir"]).arg(self.path("store"));
        command
    }

    fn import(&self, job: &str) -> Command {
        let mut command = self.command("import");
        command.args(["--job", job]);
        command
    }

    fn jobs(&self) -> Value {
        run_json(self.command("jobs").args(["-o", "json"]))
    }

    /// Runs a command, and asserts that it is refused and changes nothing.
    fn refused(&self, command: &mut Command, code: i32, words: &[&str]) -> String {
        let before = self.jobs();
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{command:?}: no {word:?} in {said:?}");
        }
        assert_eq!(stdout(&output), "", "nothing but the refusal");
        assert!(!said.contains("panicked"), "{said}");
        assert_eq!(self.jobs(), before, "{command:?}: what is stored is as it was");
        said
    }

    /// Asserts that an import of these files under a new name is refused.
    fn refused_files(&self, files: &[&Path], words: &[&str]) {
        self.refused(self.import("new").args(files), BAD_INPUT, words);
        let query = self.command("query").args(["--job", "new"]).output().unwrap();
        assert_eq!(query.status.code(), Some(4), "there is no such job: {}", stdout(&query));
    }
}

fn recorded(rank: u32) -> PathBuf {
    folder("cnn_rank0_cache").join(format!("rank{rank}.pickle.zst"))
}

fn plain(rank: u32) -> Vec<u8> {
    zstd::decode_all(std::fs::File::open(recorded(rank)).unwrap()).unwrap()
}

#[test]
fn files_that_are_no_pickle() {
    let scene = Scene::new();
    // A xorshift that never yields a pickle's first byte, so that random data is never taken for a pickle.
    let mut state = 7_u64;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8 | 1
    })
    .take(100_000)
    .collect();
    let files: [(&str, &[u8], &str); 5] = [
        ("a.json", br#"{"device_traces": []}"#, "JSON"),
        ("b.pickle", b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        ("c.pickle", b"", "empty"),
        ("d.pickle", &random, "binary"),
        ("e.pickle.zst", &random, "e.pickle.zst"),
    ];
    for (name, bytes, found) in files {
        let file = scene.file(name, bytes);
        scene.refused_files(&[&file], &[name, "not a pickle", found, "torch.cuda.memory._dump_snapshot"]);
    }
    for name in ["f.pickle.zst", "g.pickle.gz"] {
        let packed = zstd::encode_all(&br#"{"device_traces": []}"#[..], 1).unwrap();
        let file = scene.file(name, &packed);
        scene.refused_files(&[&file], &[name, "not a pickle", "JSON"]);
    }
}

#[test]
fn pickles_of_something_else() {
    let scene = Scene::new();
    // Pickles of protocol 2: `[1, 2]`, `{"a": 1}`, `None`, `{"device_traces": 7}`.
    let pickles: [(&str, &[u8], &str); 4] = [
        ("list.pickle", b"\x80\x02](K\x01K\x02e.", "found a list"),
        ("dict.pickle", b"\x80\x02}X\x01\0\0\0aK\x01s.", "the keys a"),
        ("none.pickle", b"\x80\x02N.", "none.pickle"),
        ("traces.pickle", b"\x80\x02}X\x0d\0\0\0device_tracesK\x07s.", "traces.pickle"),
    ];
    for (name, bytes, found) in pickles {
        let file = scene.file(name, bytes);
        scene.refused_files(&[&file], &[name, found, "device_traces"]);
    }
}

#[test]
fn truncated_snapshots() {
    let scene = Scene::new();
    let whole = plain(0);
    for end in [3, 1000, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        let file = scene.file("rank0.pickle", &whole[..end]);
        scene.refused_files(&[&file], &["rank0.pickle", "truncated", "copy or record it again"]);
    }
    let packed = std::fs::read(recorded(0)).unwrap();
    for end in [20, packed.len() / 2, packed.len() - 1] {
        let file = scene.file("rank0.pickle.zst", &packed[..end]);
        scene.refused_files(&[&file], &["rank0.pickle.zst", "zstd", "copy it again"]);
    }
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    std::io::Write::write_all(&mut encoder, &whole).unwrap();
    let mut flipped = encoder.finish().unwrap();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    let file = scene.file("rank0.pickle.zst", &flipped);
    scene.refused_files(&[&file], &["rank0.pickle.zst"]);
}

#[test]
fn code_in_a_pickle_is_never_executed() {
    let scene = Scene::new();
    let proof = scene.path("executed");
    let shell = format!("touch {}", proof.display());
    let text = |text: &str| [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let call = text(&shell);
    // The ways a pickle calls `os.system(shell)`: GLOBAL, STACK_GLOBAL, INST, OBJ, NEWOBJ.
    let calls: [(&str, Vec<u8>); 5] = [
        ("global", [b"cposix\nsystem\n".as_slice(), &call, b"\x85R"].concat()),
        ("stack_global", [text("posix"), text("system"), b"\x93".to_vec(), call.clone(), b"\x85R".to_vec()].concat()),
        ("inst", [b"(".as_slice(), &call, b"iposix\nsystem\n"].concat()),
        ("obj", [b"(cposix\nsystem\n".as_slice(), &call, b"o"].concat()),
        ("newobj", [b"csubprocess\nPopen\n".as_slice(), &call, b"\x85\x81"].concat()),
    ];
    for (name, code) in calls {
        let alone = scene.file(&format!("{name}.pickle"), &[b"\x80\x04".as_slice(), &code, b"."].concat());
        scene.refused_files(&[&alone], &[name, "contains code", "never executes"]);
        // The same call as the only event of an otherwise valid snapshot.
        let within = [b"\x80\x04}".as_slice(), &text("device_traces"), b"](](", &code, b"ees."].concat();
        let within = scene.file(&format!("in_{name}.pickle"), &within);
        scene.refused_files(&[&within], &[name, "contains code", "never executes"]);
        assert!(!proof.exists(), "{name} was executed");
    }
    assert!(Command::new("sh").args(["-c", &shell]).status().unwrap().success() && proof.exists(), "the proof works");
}

#[test]
fn paths_that_hold_no_job() {
    let scene = Scene::new();
    let empty = scene.path("empty");
    std::fs::create_dir(&empty).unwrap();
    scene.refused_files(&[&empty], &["empty", "contains no snapshot", ".pickle"]);
    std::fs::write(empty.join("README.md"), "nothing").unwrap();
    scene.refused_files(&[&empty], &["empty", "contains no snapshot", ".pickle"]);
    scene.refused_files(&[&scene.path("missing")], &["no file or folder", "missing"]);
    let copy = scene.file("again_rank1.pickle.zst", &std::fs::read(recorded(1)).unwrap());
    scene.refused_files(&[&recorded(1), &copy], &["again_rank1", "both of rank 1", "import one of them"]);
    let nameless = scene.file("last.pickle.zst", &std::fs::read(recorded(2)).unwrap());
    scene.refused_files(&[&recorded(1), &nameless], &["last.pickle.zst", "its rank", "rank3.pickle"]);
}

#[test]
fn one_bad_file_among_good_ones() {
    let scene = Scene::new();
    let whole = plain(3);
    let bad = scene.file("rank3.pickle", &whole[..whole.len() / 2]);
    scene.refused_files(&[&recorded(0), &recorded(1), &recorded(2), &bad], &["rank3.pickle", "truncated"]);
}

#[test]
fn a_job_that_exists() {
    let scene = Scene::new();
    scene.refused(scene.import("kept#1").arg(recorded(0)), USAGE, &["number of a run", "name the job: kept"]);
    run(scene.import("kept").args(["--attempt", "1"]).arg(recorded(0)));
    scene.refused(scene.import("kept").args(["--attempt", "1"]).arg(recorded(0)), BAD_INPUT, &["kept", "attempt 1"]);
    let rank = |attempt: &str| {
        let report = run_json(scene.command("query").args(["--job", "kept", "--attempt", attempt, "-o", "json"]));
        assert_eq!(report["ranks"].as_array().unwrap().len(), 1);
        report["ranks"][0]["rank"].clone()
    };
    assert_eq!((rank("0"), rank("1")), (1.into(), 0.into()));

    // An invalid replacement replaces nothing.
    let whole = plain(2);
    let bad = scene.file("rank2.pickle", &whole[..whole.len() - 1]);
    scene.refused(scene.import("kept").arg("--replace").arg(&bad), BAD_INPUT, &["rank2.pickle", "truncated"]);
    scene.refused(scene.import("kept").arg("--replace").args([&recorded(0), &bad]), BAD_INPUT, &["rank2.pickle"]);
    assert_eq!((rank("0"), rank("1")), (1.into(), 0.into()));

    run(scene.import("kept").arg("--replace").arg(recorded(3)));
    assert_eq!(rank("0"), 3, "the job is the new one");
    assert_eq!(scene.jobs()["jobs"].as_array().unwrap().len(), 1, "both attempts were replaced");
}

#[test]
fn names_that_no_job_can_have() {
    let scene = Scene::new();
    let long = "j".repeat(300);
    for name in ["two words", "", "-first", "new\nline", "a;b", "\u{1b}[31m", &long] {
        let job = format!("--job={name}");
        let said = scene.refused(scene.command("import").arg(job).arg(recorded(0)), USAGE, &["name", "letters"]);
        assert!(!said.contains('\u{1b}'), "nothing that moves the cursor: {said:?}");
    }
    scene.refused(scene.import("latest").arg(recorded(0)), USAGE, &["latest", "another name"]);
}

#[test]
fn questions_about_what_is_not_there() {
    let scene = Scene::new();
    for verb in ["query", "timeline", "sites"] {
        scene.refused(scene.command(verb).args(["--job", "gone"]), 4, &["gone", "memctl jobs"]);
        scene.refused(scene.command(verb).args(["--job", "kept", "--attempt", "3"]), 4, &["kept", "3", "memctl jobs"]);
        scene.refused(scene.command(verb).args(["--job", "kept", "--rank", "7"]), USAGE, &["kept", "rank 7", "rank 1"]);
    }
    for format in ["csv", "folded", "memory-viz"] {
        let export = |job: &str, rank: &str| {
            let mut command = scene.command("export");
            command.args(["--format", format, "--job", job, "--rank", rank]);
            command
        };
        scene.refused(&mut export("gone", "1"), 4, &["gone", "memctl jobs"]);
        scene.refused(&mut export("kept", "7"), USAGE, &["kept", "rank 7", "rank 1"]);
    }
    scene.refused(scene.command("delete").args(["--yes", "--job", "gone"]), 4, &["gone", "memctl jobs"]);
    let at_nine = ["--job", "kept", "--epoch-end", "9"];
    scene.refused(scene.command("sites").args(at_nine), USAGE, &["epoch 9", "rank 1", "0 to 5"]);
}

#[test]
fn wrong_usage() {
    let scene = Scene::new();
    let lines: [&[&str]; 12] = [
        &["query", "kept", "--job", "kept"],
        &["import", "--job", "x"],
        &["no-such-verb"],
        &["query", "--job", "kept", "--rank", "3-1"],
        &["query", "--job", "kept", "--rank", "0-4294967295"],
        &["query", "--job", "kept", "--epoch", "five"],
        &["query", "--job", "kept", "--since", "yesterday"],
        &["query", "--job", "kept", "-o", "xml"],
        &["sites", "--job", "kept", "--peak", "--end"],
        &["sites", "--job", "kept", "--folded", "-o", "json"],
        &["delete", "--job", "latest", "--yes"],
        &["jobs", "--daemon", "localhost:7717"],
    ];
    for line in lines {
        let data_dir = scene.path("store");
        scene.refused(memctl().args(line).arg("--data-dir").arg(data_dir), USAGE, &[]);
    }
    // No confirmation is possible: standard input is not a terminal.
    let mut delete = scene.command("delete");
    scene.refused(delete.args(["--job", "kept"]).stdin(std::process::Stdio::null()), USAGE, &["kept", "--yes"]);
}
