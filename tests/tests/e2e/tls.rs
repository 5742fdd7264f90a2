//! TLS: accepted and refused peers, on the daemon's ports and towards Postgres; certificates replaced under load.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use memctl_tests::certificates::{Authority, Identity};
use memctl_tests::daemon::DaemonProcess;
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run, run_json, stderr};

fn daemon(home: &Path, server: &Identity, flags: &[&str]) -> DaemonProcess {
    let mut command = memctl();
    command.args(["daemon", "--listen", "127.0.0.1:0", "--data-dir"]).arg(home.join("store"));
    command.arg("--tls-cert").arg(&server.cert).arg("--tls-key").arg(&server.key).args(flags);
    let daemon = DaemonProcess::of(&mut command);
    assert!(daemon.url.starts_with("https://127.0.0.1:"), "{}", daemon.url);
    daemon
}

fn jobs(url: &str, ca: &Path, client: Option<&Identity>) -> Output {
    let mut command = memctl();
    command.args(["jobs", "--daemon", url, "--tls-ca"]).arg(ca);
    if let Some(client) = client {
        command.arg("--tls-cert").arg(&client.cert).arg("--tls-key").arg(&client.key);
    }
    command.output().unwrap()
}

#[test]
fn a_daemon_is_believed_for_its_certificate_alone() {
    let home = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(home.path(), "ours"), Authority::new(home.path(), "other"));
    let daemon = daemon(home.path(), &ours.issue("daemon"), &[]);
    run(memctl()
        .arg("import")
        .arg(folder("cnn_rank0_cache"))
        .args(["--job", "enciphered", "--daemon", &daemon.url, "--tls-ca"])
        .arg(&ours.file));
    let found = run_json(
        memctl()
            .args(["query", "--job", "enciphered", "-o", "json", "--daemon", &daemon.url])
            .env("MEMCTL_TLS_CA", &ours.file),
    );
    assert_eq!(found["completeness"]["exact"], true);
    let output = jobs(&daemon.url, &other.file, None);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("certificate"), "{}", stderr(&output));
    // Without TLS no client is accepted.
    let plain = daemon.url.replace("https", "http");
    let output = memctl().args(["jobs", "--daemon", &plain]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn clients_show_a_certificate_where_it_is_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(home.path(), "ours"), Authority::new(home.path(), "other"));
    let (server, client, stranger) = (ours.issue("daemon"), ours.issue("client"), other.issue("stranger"));
    let ca = ours.file.to_str().unwrap();
    for (mode, without) in [("required", 6), ("optional", 0)] {
        let daemon = daemon(home.path(), &server, &["--tls-client-ca", ca, "--tls-client-auth", mode]);
        for (who, expected) in [(Some(&client), 0), (None, without), (Some(&stranger), 6)] {
            let output = jobs(&daemon.url, &ours.file, who);
            assert_eq!(output.status.code(), Some(expected), "{mode}: {}", stderr(&output));
        }
        assert_eq!(daemon.terminate(), 0);
    }
}

#[test]
fn a_mistake_in_ones_own_certificate_is_named() {
    let home = tempfile::tempdir().unwrap();
    let ours = Authority::new(home.path(), "ours");
    let (server, client, other) = (ours.issue("daemon"), ours.issue("client"), ours.issue("other"));
    let daemon = daemon(home.path(), &server, &["--tls-client-ca", ours.file.to_str().unwrap()]);
    let old = Identity { cert: home.path().join("old.pem"), key: home.path().join("old.key") };
    let request = home.path().join("old.csr");
    let mut asked = Command::new("openssl");
    asked.args(["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=old", "-keyout"]).arg(&old.key);
    run(asked.arg("-out").arg(&request));
    let mut signed = Command::new("openssl");
    signed.args(["x509", "-req", "-days", "2", "-in"]).arg(&request).arg("-signkey").arg(&old.key);
    run(signed.arg("-out").arg(&old.cert));
    let mixed = Identity { key: other.key.clone(), ..client.clone() };
    let (key, cert) = (mixed.key.display(), mixed.cert.display());
    for (shown, words) in [
        (&mixed, format!("the key {key} is not of the certificate {cert}")),
        (&old, format!("{} is an X.509 version 1 certificate; version 3 is needed", old.cert.display())),
    ] {
        let output = jobs(&daemon.url, &ours.file, Some(shown));
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(&words) && !stderr(&output).contains("answer"), "{}", stderr(&output));
        let mut doctor = memctl();
        doctor.args(["doctor", "--daemon", &daemon.url, "--tls-ca"]).arg(&ours.file);
        let output = doctor.arg("--tls-cert").arg(&shown.cert).arg("--tls-key").arg(&shown.key).output().unwrap();
        assert!(!output.status.success() && stderr(&output).contains(&words), "{}", stderr(&output));
        assert!(!stderr(&output).contains("memctl doctor"), "{}", stderr(&output));
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn other_machines_are_not_let_in_without_tls() {
    let home = tempfile::tempdir().unwrap();
    let server = Authority::new(home.path(), "ours").issue("daemon");
    let started = |flags: &[&str]| {
        let mut command = memctl();
        command.args(["daemon", "--check", "--data-dir"]).arg(home.path().join("store")).args(flags);
        command.output().unwrap()
    };
    let (cert, key) = (server.cert.to_str().unwrap(), server.key.to_str().unwrap());
    for exposed in ["0.0.0.0:0", "[::]:0", "http://0.0.0.0:0"] {
        let output = started(&["--listen", exposed]);
        assert_eq!(output.status.code(), Some(2), "{exposed}: {}", stderr(&output));
        assert!(stderr(&output).contains("--insecure"), "{}", stderr(&output));
    }
    let output = started(&["--listen", "http://0.0.0.0:0", "--tls-cert", cert, "--tls-key", key]);
    assert_eq!(output.status.code(), Some(2), "it has a certificate and does not use it: {}", stderr(&output));
    assert_eq!(started(&["--listen", "127.0.0.1:0"]).status.code(), Some(0));
    assert_eq!(started(&["--listen", "0.0.0.0:0", "--insecure"]).status.code(), Some(0));
    // A configuration that cannot start does not pass `--check` either.
    let output = started(&["--listen", "https://127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("there is no certificate for https://"), "{}", stderr(&output));
    // A key that does not belong to the certificate is detected before the ports open.
    let other = Authority::new(home.path(), "other").issue("stranger");
    let output = started(&["--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", other.key.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("does not go with the key"), "{}", stderr(&output));
}

/// `openssl req -x509` creates such a certificate by default.
#[test]
fn an_authoritys_own_certificate_is_told_from_a_servers() {
    use std::io::Read as _;
    let home = tempfile::tempdir().unwrap();
    for (constraints, code, words) in [("critical,CA:TRUE", 3, "CA:FALSE"), ("critical,CA:FALSE", 0, "")] {
        let (cert, key) = (home.path().join("cert.pem"), home.path().join("key.pem"));
        run(Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=memctl.example.org", "-addext", "subjectAltName=IP:127.0.0.1"])
            .args(["-addext", &format!("basicConstraints={constraints}"), "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&cert));
        let mut command = memctl();
        command.args(["daemon", "--listen", "127.0.0.1:0", "--data-dir"]).arg(home.path().join("store"));
        command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key).stderr(Stdio::piped());
        let mut daemon = DaemonProcess::of(&mut command);
        let mut said = daemon.said().unwrap();
        let output = jobs(&daemon.url, &cert, None);
        assert_eq!(output.status.code(), Some(code), "{constraints}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
        assert_eq!(daemon.terminate(), 0);
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!(text.contains("authority's own certificate"), code != 0, "{text}");
    }
}

/// Clients would refuse a certificate that is not valid now, so it does not replace a valid one.
#[test]
fn a_certificate_that_is_not_valid_now_does_not_replace_a_valid_one() {
    let home = tempfile::tempdir().unwrap();
    let ours = Authority::new(home.path(), "ours");
    let server = ours.issue("daemon");
    let mut command = memctl();
    command.args(["daemon", "--listen", "127.0.0.1:0", "--data-dir"]).arg(home.path().join("store"));
    command.arg("--tls-cert").arg(&server.cert).arg("--tls-key").arg(&server.key).stderr(Stdio::piped());
    let mut daemon = DaemonProcess::of(&mut command);
    let mut said = BufReader::new(daemon.said().unwrap()).lines().map_while(Result::ok);
    assert!(jobs(&daemon.url, &ours.file, None).status.success());
    ours.issue_until("old", (2020, 1, 1)).replaces(&server);
    let line = said.find(|line| line.contains("the certificates were")).expect("the daemon looks every ten seconds");
    assert!(line.contains("were not reloaded") && line.contains("it expired at 2020-01-01"), "{line}");
    let output = jobs(&daemon.url, &ours.file, None);
    assert!(output.status.success(), "{}", stderr(&output));
    ours.issue_between("early", (2500, 1, 1), (2999, 1, 1)).replaces(&server);
    let line = said.find(|line| line.contains("the certificates were")).expect("the daemon looks every ten seconds");
    assert!(line.contains("were not reloaded") && line.contains("it is valid from 2500-01-01"), "{line}");
    ours.issue("renewed").replaces(&server);
    let line = said.find(|line| line.contains("the certificates were")).expect("the daemon looks every ten seconds");
    assert!(line.contains("the certificates were reloaded"), "{line}");
    assert_eq!(daemon.terminate(), 0);
}

/// Each TLS problem is named with its remedy, and none is reported as a missing daemon.
#[test]
fn what_tls_dislikes_is_named() {
    let home = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(home.path(), "ours"), Authority::new(home.path(), "other"));
    let said = |url: &str, ca: Option<&Path>| {
        let mut command = memctl();
        command.args(["jobs", "--daemon", url]);
        if let Some(ca) = ca {
            command.arg("--tls-ca").arg(ca);
        }
        let output = command.output().unwrap();
        let words = stderr(&output);
        assert!(!words.contains("start one with") && !words.contains("no daemon answers"), "{words}");
        (output.status.code(), words)
    };
    let check = |what: &str, (code, words): (Option<i32>, String), expected: i32, way_out: &str| {
        assert_eq!(code, Some(expected), "{what}: {words}");
        assert!(words.contains(way_out), "{what}: {words}");
    };
    let served = daemon(home.path(), &ours.issue("daemon"), &[]);
    check("another authority", said(&served.url, Some(&other.file)), 3, "--tls-ca");
    check("no authority", said(&served.url, None), 3, "--tls-ca");
    check("a file that is missing", said(&served.url, Some(&home.path().join("gone.pem"))), 2, "gone.pem");
    let by_name = served.url.replace("127.0.0.1", "[::ffff:127.0.0.1]");
    check("another name", said(&by_name, Some(&ours.file)), 3, "name that the certificate has");
    check("no TLS", said(&served.url.replace("https", "http"), None), 3, "https://");
    assert_eq!(served.terminate(), 0);

    let expired = daemon(home.path(), &ours.issue_until("old", (2020, 1, 1)), &[]);
    check("an old certificate", said(&expired.url, Some(&ours.file)), 3, "renew it");
    assert_eq!(expired.terminate(), 0);

    let plain = DaemonProcess::sqlite(&home.path().join("plain"), memctl_tests::daemon::free_port());
    check("TLS where there is none", said(&plain.url.replace("http", "https"), Some(&ours.file)), 3, "http://");
    assert_eq!(plain.terminate(), 0);
}

#[test]
fn insecure_is_said_at_every_start() {
    use std::io::Read as _;
    let home = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut command = memctl();
        command.args(["daemon", "--listen", "0.0.0.0:0", "--insecure", "--data-dir"]).arg(home.path());
        let mut daemon = DaemonProcess::of(command.stderr(Stdio::piped()));
        let mut said = daemon.said().unwrap();
        assert_eq!(daemon.terminate(), 0);
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert!(text.contains("WARN") && text.contains("--insecure: any client that reaches this address"), "{text}");
    }
}

/// The files are replaced while a job streams: the stream continues, and new connections get the new certificate.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_exchanged_without_losing_a_stream() {
    use memctl_tests::raw::{Stream, session};
    use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
    let home = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(home.path(), "old"), Authority::new(home.path(), "new"));
    let server = old.issue("daemon");
    let daemon = daemon(home.path(), &server, &[]);
    let connect = async |authority: &Authority| {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(std::fs::read(&authority.file).unwrap()));
        Endpoint::from_shared(daemon.url.clone()).unwrap().tls_config(tls).unwrap().connect().await
    };
    let channel = connect(&old).await.unwrap();
    let (mut stream, resume_after) = Stream::welcome(channel, &session(1)).await;
    assert!(connect(&new).await.is_err(), "the new authority is not in use yet");
    new.issue("renewed").replaces(&server);
    // Waits for the new state, because the daemon checks its files every few seconds.
    while connect(&new).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(connect(&old).await.is_err(), "the old certificate is gone");
    // The earlier stream continues.
    let item = memctl_tests::raw::item(resume_after + 1, 0);
    stream.send(item).await;
    stream.until_durable(resume_after + 1).await;
    assert_eq!(daemon.terminate(), 0);
}

/// A separate Postgres that accepts only TLS.
struct Postgres {
    folder: tempfile::TempDir,
    url: String,
}

impl Postgres {
    fn start(server: &Identity) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::Builder::new().prefix("memctl-tls-").tempdir_in("/tmp").unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("postgres");
        let url = run(Command::new(&script).arg("start").arg(folder.path())).trim().to_owned();
        run(Command::new(&script).arg("stop").arg(folder.path()));
        let data = folder.path().join("data");
        let owner = std::os::unix::fs::MetadataExt::uid(&data.metadata().unwrap());
        for (from, name) in [(&server.cert, "server.crt"), (&server.key, "server.key")] {
            std::fs::copy(from, data.join(name)).unwrap();
            std::fs::set_permissions(data.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(data.join(name), Some(owner), None).unwrap();
        }
        let mut settings = std::fs::read_to_string(data.join("postgresql.conf")).unwrap();
        settings.push_str("\nssl = on\n");
        std::fs::write(data.join("postgresql.conf"), settings).unwrap();
        std::fs::write(data.join("pg_hba.conf"), "hostssl all all 127.0.0.1/32 trust\n").unwrap();
        let url_now = run(Command::new(&script).arg("start").arg(folder.path())).trim().to_owned();
        assert!(url_now.starts_with("postgres://") && url.starts_with("postgres://"));
        Self { folder, url: url_now }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("postgres");
        let _ = Command::new(script).arg("stop").arg(self.folder.path()).output();
    }
}

#[test]
fn postgres_is_reached_over_tls_and_believed_for_its_certificate() {
    let home = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(home.path(), "ours"), Authority::new(home.path(), "other"));
    let postgres = Postgres::start(&ours.issue("postgres"));
    let check = |parameters: &str| {
        memctl().args(["daemon", "--check", "--store", &format!("{}?{parameters}", postgres.url)]).output().unwrap()
    };
    let root = |authority: &Authority| format!("sslrootcert={}", authority.file.display());
    let output = check(&format!("sslmode=verify-full&{}", root(&ours)));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(check("sslmode=require").status.code(), Some(0), "encrypted, without verification");
    let output = check(&format!("sslmode=verify-full&{}", root(&other)));
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let output = check("sslmode=disable");
    assert_eq!(output.status.code(), Some(3), "this server takes nothing else: {}", stderr(&output));
}
