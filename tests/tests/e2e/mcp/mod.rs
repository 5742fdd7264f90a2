//! `memctl mcp` as assistants use it: real recordings, the real program, JSON-RPC over its standard streams and HTTP.

mod answers;
mod http;
mod questions;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run, run_json};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The most bytes of an answer: 8,000 tokens of three bytes.
const ANSWER_BYTES_MAX: usize = 24_000;

/// A daemon with recordings, each a job of its name, in this order.
struct Store {
    daemon: DaemonProcess,
    _folder: TempDir,
}

impl Store {
    fn with(names: &[&str]) -> Self {
        let folder_of_store = tempfile::tempdir().unwrap();
        let daemon = DaemonProcess::sqlite(folder_of_store.path(), free_port());
        for name in names {
            run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", name]).arg(folder(name)));
        }
        Self { daemon, _folder: folder_of_store }
    }

    fn assistant(&self) -> Assistant {
        Assistant::start(memctl().args(["mcp", "--daemon", &self.daemon.url]))
    }

    /// What a command prints as JSON.
    fn json(&self, words: &[&str]) -> Value {
        run_json(memctl().args(words).args(["-q", "-o", "json", "--daemon", &self.daemon.url]))
    }
}

/// A program that speaks the protocol with `memctl mcp`.
struct Assistant {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    asked: u64,
    greeting: Value,
}

impl Assistant {
    /// Starts the program and shakes hands.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("memctl mcp starts");
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("its output")));
        let mut this = Self { child, to, from, asked: 0, greeting: Value::Null };
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"},
        });
        this.greeting = this.ask("initialize", hello)["result"].clone();
        this.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        this
    }

    fn send(&mut self, message: &Value) {
        let to = self.to.as_mut().expect("an open input");
        writeln!(to, "{message}").and_then(|()| to.flush()).expect("memctl mcp reads");
    }

    /// The response to a request.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let mut line = String::new();
        self.from.read_line(&mut line).expect("memctl mcp answers");
        let response: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert_eq!(response["id"], id, "{response}");
        response
    }

    /// The result of a tool, whose size and frame are checked.
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let response = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        let result = response["result"].clone();
        assert!(result.is_object(), "{tool}: {response}");
        let bytes = result.to_string().len();
        assert!(bytes <= ANSWER_BYTES_MAX, "{tool} answers {bytes} bytes");
        result
    }

    /// The structured content of a tool that must succeed.
    fn answer(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments.clone());
        assert_eq!(result["isError"], false, "{tool} {arguments}: {result}");
        let content = result["structuredContent"].clone();
        assert_eq!(content["tool"], tool);
        assert!(content["units"].as_str().unwrap().contains("_bytes are bytes"));
        let next = content["next"].as_array().unwrap();
        assert!(!next.is_empty(), "{tool} names no next question");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("```text\n") && text.contains("\nNext:\n- "), "{text}");
        content
    }

    /// Closes its input and waits for its end.
    fn leave(mut self) {
        drop(self.to.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Assistant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
