//! Notifies a program: it gets JSON on its standard input.
//!
//! Guarantees: no shell is used, unless the command is a shell. The program is ended at its timeout, with every process
//! in its group. Its output is read and bounded, so it can neither block nor fill the memory.

use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// Bytes of output that are kept per stream.
const OUTPUT_BYTES_MAX: usize = 4_096;
/// Time to read the remaining output after the program has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Kills the process group on drop, even if the future that waits for it is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // An error means that the group no longer exists.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs the program once; returns its output.
pub(super) async fn run(command: &[String], body: &[u8], timeout: Duration) -> Result<String, String> {
    let (program, arguments) = command.split_first().ok_or("there is no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{program} cannot be started: {error}"))?;
    let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
    match tokio::time::timeout(timeout, tell(&mut child, group, body)).await {
        Ok(sent) => sent,
        Err(_) => Err(format!("{program} did not end within {} s and was killed", timeout.as_secs_f64())),
    }
}

async fn tell(child: &mut Child, group: Group, body: &[u8]) -> Result<String, String> {
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let writing = async {
        if let Some(mut input) = input {
            // A program may ignore its input; only its exit code counts.
            let _ = input.write_all(body).await;
        }
    };
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let status = {
        let mut talking = pin!(async { tokio::join!(writing, read(output, &mut said), read(errors, &mut complained)) });
        let (status, open) = tokio::select! {
            status = child.wait() => (status, true),
            _ = &mut talking => (child.wait().await, false),
        };
        // Other processes in its group are killed with it, which closes their pipes. Processes that left the group are
        // not waited for.
        drop(group);
        if open {
            let _ = tokio::time::timeout(LAST_WORDS, talking).await;
        }
        status.map_err(|error| format!("its exit status is unknown: {error}"))?
    };
    let words = if complained.is_empty() { &said } else { &complained };
    let words = String::from_utf8_lossy(words).trim().to_owned();
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    if status.success() { Ok(format!("exit code 0{words}")) } else { Err(format!("{status}{words}")) }
}

async fn read(from: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 1_024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let room = OUTPUT_BYTES_MAX.saturating_sub(into.len());
        into.extend_from_slice(&buffer[..count.min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn it_reads_json_and_its_exit_code_counts() {
        assert_eq!(run(&sh("cat"), b"{\"a\":1}", LONG).await.unwrap(), "exit code 0: {\"a\":1}");
        let failed = run(&sh("echo no >&2; exit 3"), b"", LONG).await.unwrap_err();
        assert_eq!(failed, "exit status: 3: no");
        let missing = run(&["/no/such/program".into()], b"", LONG).await.unwrap_err();
        assert!(missing.starts_with("/no/such/program cannot be started: "), "{missing}");
    }

    #[tokio::test]
    async fn what_it_does_not_read_or_says_too_much_of_does_no_harm() {
        let large = vec![b'x'; 1 << 20];
        assert_eq!(run(&sh("exit 0"), &large, LONG).await.unwrap(), "exit code 0");
        let said = run(&sh("yes | head -c 10000000"), b"", LONG).await.unwrap();
        assert!(said.len() <= OUTPUT_BYTES_MAX + 20, "{}", said.len());
    }

    #[tokio::test]
    async fn it_is_killed_with_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        // The grandchild holds the pipes open and writes its process id.
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let late = run(&sh(&script), b"", Duration::from_secs(2)).await.unwrap_err();
        assert!(late.contains("did not end within 2 s"), "{late}");
        let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let gone = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let deadline = std::time::Instant::now() + LONG;
        while !gone() {
            assert!(std::time::Instant::now() < deadline, "{pid} still runs");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn one_that_leaves_a_child_behind_is_not_waited_for() {
        // The child keeps the pipes open. Without the time limit after the program's end, this would take 1000 s.
        assert_eq!(run(&sh("sleep 1000 & echo done"), b"", LONG).await.unwrap(), "exit code 0: done");
    }
}
