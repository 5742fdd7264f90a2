//! Unusable stores and daemons: the exit code is that of the contract, the message has the problem and its remedy, and
//! old data is unchanged.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::postgres::Database;
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, memctl_path, run, run_json, stderr, stdout};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection, SqliteConnection};

/// No daemon or store to be reached.
const UNREACHABLE: i32 = 3;

fn recorded(rank: u32) -> PathBuf {
    folder("cnn_rank0_cache").join(format!("rank{rank}.pickle.zst"))
}

fn import(data_dir: &Path, job: &str) -> Command {
    let mut command = memctl();
    command.args(["import", "-q", "--job", job, "--data-dir"]).arg(data_dir);
    command
}

fn jobs(data_dir: &Path) -> Command {
    let mut command = memctl();
    command.args(["jobs", "-o", "json", "--data-dir"]).arg(data_dir);
    command
}

/// Asserts that queries, an import and a daemon on this folder are refused with these words.
fn refused(data_dir: &Path, words: &[&str]) {
    for command in [&mut jobs(data_dir), import(data_dir, "new").arg(recorded(1)), &mut daemon(data_dir, free_port())] {
        let output = command.output().unwrap();
        assert_said(&output, words, &format!("{command:?}"));
    }
}

fn assert_said(output: &Output, words: &[&str], what: &str) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(UNREACHABLE), "{what}: {said}");
    for word in words {
        assert!(said.contains(word), "{what}: no {word:?} in {said:?}");
    }
    assert!(!stdout(output).contains("listens on") && !said.contains("panicked"), "{what}: {said}");
}

fn daemon(data_dir: &Path, port: u16) -> Command {
    let mut command = memctl();
    command.args(["daemon", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"]).arg(data_dir);
    command
}

#[test]
fn a_folder_that_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    // Permissions do not stop root; a path below a file and one in /proc stop every user.
    for place in [file.join("store"), file.clone(), PathBuf::from("/proc/memctl")] {
        let name = place.display().to_string();
        let output = import(&place, "new").arg(recorded(1)).output().unwrap();
        assert_said(&output, &[&name, "--data-dir"], &name);
        let output = daemon(&place, free_port()).output().unwrap();
        assert_said(&output, &[&name], &name);
        let output = jobs(&place).output().unwrap();
        assert_said(&output, &[&name], &name);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a folder");
}

#[test]
fn a_database_that_is_garbage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memctl.db");
    let garbage: Vec<u8> = (0..50_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&path, &garbage).unwrap();
    refused(folder.path(), &["memctl.db", "not a SQLite database", "data folder"]);
    assert_eq!(std::fs::read(&path).unwrap(), garbage, "what is not ours is left as it is");
}

#[tokio::test]
async fn a_database_of_another_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memctl.db");
    let url = format!("sqlite:{}?mode=rwc", path.display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE recipe (name TEXT); INSERT INTO recipe VALUES ('soup')")
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    refused(folder.path(), &["memctl.db", "data folder"]);
    assert_eq!(std::fs::read(&path).unwrap(), before, "what is not ours is left as it is");
}

const NEWER_SQLITE: &str = "INSERT INTO memctl_migration SELECT 99, description, installed_on, success, checksum, execution_time FROM memctl_migration LIMIT 1";
const NEWER_POSTGRES: &str = "INSERT INTO memctl.migration SELECT 99, description, installed_on, success, checksum, execution_time FROM memctl.migration LIMIT 1";

#[tokio::test]
async fn a_database_of_a_newer_version() {
    let folder = tempfile::tempdir().unwrap();
    run(import(folder.path(), "kept").arg(recorded(1)));
    let before = run_json(&mut jobs(folder.path()));
    let url = format!("sqlite:{}", folder.path().join("memctl.db").display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    assert_eq!(sqlx::query(NEWER_SQLITE).execute(&mut connection).await.unwrap().rows_affected(), 1);
    refused(folder.path(), &["memctl.db", "version 99", "newer memctl", "another data folder"]);
    // The newer version can continue, because nothing was changed.
    sqlx::query("DELETE FROM memctl_migration WHERE version = 99").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    assert_eq!(run_json(&mut jobs(folder.path())), before);
}

#[tokio::test]
async fn a_postgres_of_a_newer_version() {
    let database = Database::create().await;
    let drained = DaemonProcess::store(&database.url, free_port()).terminate();
    assert_eq!(drained, 0);
    let mut connection = PgConnection::connect(&database.url).await.unwrap();
    assert_eq!(sqlx::query(NEWER_POSTGRES).execute(&mut connection).await.unwrap().rows_affected(), 1);
    connection.close().await.unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let output = memctl().args(["daemon", "--listen", &listen, "--store", &database.url]).output().unwrap();
    assert_said(&output, &["version 99", "newer memctl"], "Postgres");
    database.remove().await;
}

#[test]
fn a_postgres_that_is_not_there() {
    let url = format!("postgres://somebody:secret@127.0.0.1:{}/nowhere", free_port());
    let output = memctl().args(["daemon", "--store", &url]).output().unwrap();
    assert_said(&output, &["127.0.0.1", "nowhere"], "Postgres");
    assert!(!stderr(&output).contains("secret"), "a password is never shown: {}", stderr(&output));
}

#[test]
fn a_daemon_that_is_not_there() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let lines: [&[&str]; 3] = [&["jobs"], &["query", "--job", "latest"], &["import", "--job", "new"]];
    for line in lines {
        let mut command = memctl();
        command.args(line).args(["--daemon", &url]);
        if line[0] == "import" {
            command.arg(recorded(1));
        }
        assert_said(&command.output().unwrap(), &[&url, "no daemon answers", "memctl daemon"], line[0]);
    }
}

#[test]
fn something_else_than_a_daemon() {
    // A listener that never sends HTTP/2; the kernel's backlog accepts its connections.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").unwrap();
    });
    let output = memctl().args(["jobs", "--daemon", &url]).output().unwrap();
    answering.join().unwrap();
    assert_said(&output, &[&url], "an HTTP/1 server");
}

#[test]
fn an_address_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let output = daemon(&folder.path().join("one"), address.port()).output().unwrap();
    assert_said(&output, &[&address.to_string(), "in use", "--listen"], "another program");

    drop(listener);
    let first = DaemonProcess::sqlite(&folder.path().join("two"), free_port());
    let address = first.url.strip_prefix("http://").unwrap();
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let output = daemon(&folder.path().join("three"), port).output().unwrap();
    assert_said(&output, &[address, "in use", "--listen"], "another daemon");
    run(memctl().args(["jobs", "--daemon", &first.url]));
}

#[test]
fn two_daemons_on_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let first = DaemonProcess::sqlite(folder.path(), free_port());
    // A second writer is refused with the id of the process that has the store; queries are answered meanwhile.
    for command in [import(folder.path(), "new").arg(recorded(1)), &mut daemon(folder.path(), free_port())] {
        let output = command.output().unwrap();
        assert_said(&output, &["memctl.db", "in use", "process ", &first.url, "--daemon"], &format!("{command:?}"));
    }
    assert_eq!(run_json(&mut jobs(folder.path()))["jobs"].as_array().unwrap().len(), 0);
    // A changed configuration is checked while its daemon runs.
    let checked = daemon(folder.path(), free_port()).arg("--check").output().unwrap();
    assert!(checked.status.success() && String::from_utf8_lossy(&checked.stdout).contains("memctl.db"), "{checked:?}");
    run(memctl().args(["import", "-q", "--job", "kept", "--daemon", &first.url]).arg(recorded(1)));
    assert_eq!(first.terminate(), 0);
    // The lock ended with the process.
    assert_eq!(run_json(&mut jobs(folder.path()))["jobs"][0]["id"], "kept");

    // The lock also ends with a killed process.
    DaemonProcess::sqlite(folder.path(), free_port()).kill();
    assert_eq!(run_json(&mut jobs(folder.path()))["jobs"][0]["id"], "kept");
}

/// Runs memctl with a file-size limit of `kib` KiB, which acts like a full disk for any user and on any file system.
fn limited(kib: u64, command: &Command) -> Output {
    let mut shell = Command::new("bash");
    shell
        .arg("-c")
        .arg(format!("ulimit -f {kib}; exec \"$@\""))
        .arg("bash")
        .arg(memctl_path())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    // The store's own messages are needed as well.
    shell.env("MEMCTL_LOG", "warn").output().unwrap()
}

fn levels(data_dir: &Path) -> Value {
    run_json(memctl().args(["query", "-o", "json", "--job", "kept", "--data-dir"]).arg(data_dir))
}

#[test]
fn a_disk_that_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path();
    run(import(data_dir, "kept").arg(recorded(1)));
    let (before, sums) = (run_json(&mut jobs(data_dir)), levels(data_dir));
    let kib = std::fs::metadata(data_dir.join("memctl.db")).unwrap().len() / 1024;

    // There is room for a query, but not for a job of four ranks.
    let mut command = import(data_dir, "new");
    command.arg(memctl_tests::recordings::folder("gpt_clean"));
    let output = limited(kib + 16, &command);
    let said = stderr(&output);
    assert!(said.contains("disk I/O error") || said.contains("is full"), "the fault was delivered: {said}");
    let place = data_dir.display().to_string();
    assert_said(&output, &[&place, "full", "space"], "a full disk");

    assert_eq!(levels(data_dir), sums, "what was there is as it was");
    // Data that could not be removed without room can be removed now.
    if run_json(&mut jobs(data_dir)) != before {
        assert!(said.contains("memctl delete --job RUN"), "{said}");
        run(memctl().args(["delete", "-y", "--job", "new", "--data-dir"]).arg(data_dir));
    }
    assert_eq!(run_json(&mut jobs(data_dir)), before);
    run(&mut command);
}

#[test]
fn a_check_whose_reader_has_left_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = daemon(folder.path(), free_port());
    let output = command.arg("--check").stdout(writer).stderr(std::process::Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    // A closed standard error does not change the exit code.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = jobs(&folder.path().join("none")).stderr(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(UNREACHABLE));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = memctl();
    command.args(["run", "--data-dir"]).arg(folder.path()).args(["--", "sh", "-c", "exit 7"]);
    assert_eq!(command.stderr(writer).output().unwrap().status.code(), Some(7));
}

/// `memctl` as an unprivileged user, because root's rights would hide the tested errors.
fn powerless(program: &Path) -> Command {
    use std::os::unix::process::CommandExt as _;
    let mut command = Command::new(program);
    command.env_clear().env("NO_COLOR", "1").env("PATH", "/usr/bin:/bin").env("MEMCTL_SERVICE", "off");
    if std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0) {
        command.uid(65_534).gid(65_534);
    }
    command
}

#[test]
fn a_run_and_an_import_into_a_folder_that_cannot_be_written_end_at_once() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let (program, snapshot) = (folder.path().join("memctl"), folder.path().join("rank1.pickle.zst"));
    std::fs::copy(memctl_path(), &program).unwrap();
    std::fs::copy(recorded(1), &snapshot).unwrap();
    // An empty folder, and one with a store and a spool.
    let (empty, used) = (folder.path().join("empty"), folder.path().join("used"));
    std::fs::create_dir(&empty).unwrap();
    run(import(&used, "old").arg(recorded(1)));
    std::fs::create_dir_all(used.join("spool/local")).unwrap();
    let closed = [&used.join("memctl.db"), &used.join("memctl.db.lock")];
    closed.iter().for_each(|file| open(file, 0o444));
    for place in [folder.path(), &empty, &used, &used.join("spool"), &used.join("spool/local")] {
        open(place, 0o555);
    }
    for data_dir in [&empty, &used] {
        let began = std::time::Instant::now();
        let mut command = powerless(&program);
        let output =
            command.args(["import", "--job", "new", "--data-dir"]).arg(data_dir).arg(&snapshot).output().unwrap();
        assert_said(&output, &["ermission denied"], "import");
        assert!(!stderr(&output).contains("disk full"), "{}", stderr(&output));
        let mut command = powerless(&program);
        command.args(["run", "--data-dir"]).arg(data_dir).args(["--", "sh", "-c", "exit 7"]);
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(7), "{said}");
        assert!(said.contains("ermission denied") && said.contains("the command runs unrecorded"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }
    for place in [folder.path(), &empty, &used, &used.join("spool"), &used.join("spool/local")] {
        open(place, 0o755);
    }
}

#[test]
fn a_doctor_that_finds_a_failure_fails() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("memctl");
    std::fs::copy(memctl_path(), &program).unwrap();
    run(import(folder.path(), "old").arg(recorded(1)));
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    for name in ["memctl.db", "memctl.db.lock"] {
        std::fs::set_permissions(folder.path().join(name), std::fs::Permissions::from_mode(0o444)).unwrap();
    }
    let output = powerless(&program).args(["doctor", "--data-dir"]).arg(folder.path()).output().unwrap();
    assert!(stdout(&output).contains("FAIL  folder"), "{}", stdout(&output));
    assert_said(&output, &["the check of folder failed", "cannot be written"], "doctor");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
}
