//! The real Alertmanager, in its own process and folder and on its own port; ended by its process id.
//!
//! Refuses to skip: without the program the test fails and names the way to install it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::daemon::free_port;
use crate::http;

/// A running Alertmanager; killed when dropped.
pub struct Alertmanager {
    child: Child,
    /// Its address.
    pub url: String,
    folder: tempfile::TempDir,
}

fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("MEMCTL_TEST_ALERTMANAGER") {
        return path.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).flat_map(|dir| [dir.join("prometheus-alertmanager"), dir.join("alertmanager")]);
    found.into_iter().find(|path| path.is_file()).expect(
        "no prometheus-alertmanager on PATH and MEMCTL_TEST_ALERTMANAGER is not set: ./test gets it (Debian's package prometheus-alertmanager)",
    )
}

impl Alertmanager {
    /// Starts one that sends every alert to `webhook`, and waits until it is ready.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(webhook: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = format!(
            "route:\n  receiver: test\n  group_by: [job]\n  group_wait: 0s\n  group_interval: 1s\n  repeat_interval: 1h\n\
             receivers:\n- name: test\n  webhook_configs:\n  - url: {webhook}\n    send_resolved: true\n"
        );
        std::fs::write(folder.path().join("config.yml"), config).expect("its configuration");
        let port = free_port();
        let child = spawn(folder.path(), port);
        let mut running = Self { child, url: format!("http://127.0.0.1:{port}"), folder };
        let ready = running.ready();
        let log = std::fs::read_to_string(running.folder.path().join("log")).unwrap_or_default();
        assert!(ready, "Alertmanager did not come up: {log}");
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

    /// Its active alerts, from its own API.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn active(&self) -> Vec<Value> {
        let (status, body) = http::get(&format!("{}/api/v2/alerts?active=true", self.url)).expect("it answers");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("a list of alerts")
    }
}

fn spawn(folder: &Path, port: u16) -> Child {
    let log = std::fs::File::create(folder.join("log")).expect("its log");
    Command::new(program())
        .arg(format!("--config.file={}", folder.join("config.yml").display()))
        .arg(format!("--storage.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        // Without peers it needs no second port.
        .arg("--cluster.listen-address=")
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("Alertmanager starts")
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        // By its own process id; if it has ended already, the error is ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
