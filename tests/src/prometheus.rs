//! The real Prometheus and its promtool, in their own process and folder and on their own port; ended by their process
//! ids.
//!
//! Refuses to skip: without the program the test fails and names the way to get it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::daemon::free_port;
use crate::http;

/// A running Prometheus; killed when dropped.
pub struct Prometheus {
    child: Child,
    /// Its address.
    pub url: String,
    _folder: tempfile::TempDir,
}

fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("MEMCTL_TEST_PROMETHEUS") {
        return path.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("prometheus")).find(|path| path.is_file()).expect(
        "no prometheus on PATH and MEMCTL_TEST_PROMETHEUS is not set: ./test gets it (Debian's package prometheus)",
    )
}

/// Runs promtool, which is next to Prometheus; returns its output and whether it succeeded.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn promtool(words: &[&str], folder: &Path, input: &str) -> (bool, String) {
    let mut child = Command::new(program().with_file_name("promtool"))
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

impl Prometheus {
    /// Starts one that scrapes `target` every second, evaluates the rules in `rules` and notifies `alertmanager`; waits
    /// until it is ready. Addresses are `host:port`.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(target: &str, rules: &Path, alertmanager: &str) -> Self {
        Self::scraping(&format!(
            "rule_files: [\"{}/*.rules.yml\"]\n\
             alerting: {{ alertmanagers: [{{ static_configs: [{{ targets: [\"{alertmanager}\"] }}] }}] }}\n\
             scrape_configs: [{{ job_name: memctl, honor_labels: true, static_configs: [{{ targets: [\"{target}\"] }}] }}]\n",
            rules.display()
        ))
    }

    /// Starts one with this configuration and one-second intervals, and waits until it is ready.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn scraping(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let every = "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }";
        let config = format!("{every}\n{config}");
        std::fs::write(folder.path().join("prometheus.yml"), config).expect("its configuration");
        let (port, log) = (free_port(), folder.path().join("log"));
        let child = Command::new(program())
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("its log"))
            .spawn()
            .expect("Prometheus starts");
        let mut running = Self { child, url: format!("http://127.0.0.1:{port}"), _folder: folder };
        let ready = running.ready();
        assert!(ready, "Prometheus did not come up: {}", std::fs::read_to_string(log).unwrap_or_default());
        running
    }

    fn ready(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if self.child.try_wait().expect("its state").is_some() {
                return false;
            }
            if http::get(&format!("{}/-/ready", self.url)).is_some_and(|(status, _)| status == 200) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// The series that a query returns now.
    ///
    /// # Panics
    /// When the query is wrong.
    #[must_use]
    pub fn query(&self, query: &str) -> Vec<Value> {
        let answer = self.get(&format!("query?query={}", encoded(query)));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// The rules that it has loaded.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn rules(&self) -> Vec<Value> {
        let groups = self.get("rules")["data"]["groups"].as_array().cloned().expect("groups");
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
    }

    fn get(&self, path: &str) -> Value {
        let (_, body) = http::get(&format!("{}/api/v1/{path}", self.url)).expect("it answers");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // By its own process id; if it has ended already, the error is ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
