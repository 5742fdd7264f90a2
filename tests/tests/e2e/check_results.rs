//! `memctl assert` and `memctl run --assert`: results as JUnit, SARIF and annotations of a GitHub workflow.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memctl_tests::daemon::free_port;
use memctl_tests::jobs::{Training, record, session, train};
use memctl_tests::{memctl, run, stderr, stdout};
use serde_json::Value;

/// Where the leak of the recording is allocated.
const LEAK: (&str, u32) = ("scenarios.py", 26);

/// A checkout with the files of the recordings, and a store.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.path("checkout")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn memctl(&self, words: &[&str]) -> Command {
        let mut command = memctl();
        command.args(words).current_dir(self.path("checkout")).env("XDG_DATA_HOME", self.path("data"));
        command.env_remove("GITHUB_BASE_REF").env_remove("GITHUB_STEP_SUMMARY");
        command
    }

    fn import(&self, name: &str, job: &str) {
        let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/recordings");
        run(self.memctl(&["import", "--job", job]).arg(recordings.join(name)));
    }

    fn git(&self, words: &[&str]) {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=ci", "-c", "user.email=ci@example.org", "-C"]).arg(self.path("checkout"));
        let ran = command.args(words).output().unwrap();
        assert!(ran.status.success(), "{words:?}: {}", stderr(&ran));
    }

    /// Writes a file of 60 lines, of which one may differ.
    fn source(&self, name: &str, changed: Option<u32>) {
        let line = |number| if Some(number) == changed { "changed\n".to_owned() } else { format!("{number}\n") };
        std::fs::write(self.path("checkout").join(name), (1..=60).map(line).collect::<String>()).unwrap();
    }
}

/// What a reader of XML finds: the suites' elements with attributes and text, through Python's own parser.
fn parsed(file: &Path) -> Value {
    let script = "import json, sys, xml.etree.ElementTree as tree\n\
        read = lambda at: [at.tag, at.attrib, at.text or '', [read(below) for below in at]]\n\
        print(json.dumps(read(tree.parse(sys.argv[1]).getroot())))";
    let ran = Command::new("python3").args(["-c", script]).arg(file).output().unwrap();
    assert!(ran.status.success(), "{}", stderr(&ran));
    serde_json::from_slice(&ran.stdout).unwrap()
}

fn annotations(output: &Output) -> Vec<String> {
    stdout(output).lines().filter(|line| line.starts_with("::")).map(str::to_owned).collect()
}

#[test]
fn a_failing_condition_names_its_line_in_every_format() {
    let place = Place::new();
    place.source(LEAK.0, None);
    place.import("gpt_val_graph_leak", "leak");
    let words = ["assert", "leak", "no-leak", "no-oom", "--junit", "j.xml", "--sarif", "s.json", "--github"];
    let checked = place.memctl(&words).env("GITHUB_STEP_SUMMARY", place.path("summary.md")).output().unwrap();
    assert_eq!(checked.status.code(), Some(1), "{}", stderr(&checked));

    let lines = annotations(&checked);
    let start = format!("::error file={},line={},title=memctl no-leak::Live memory grows 49.6 MiB", LEAK.0, LEAK.1);
    assert!(lines.len() == 1 && lines[0].starts_with(&start), "{lines:?}");

    let sarif: Value = serde_json::from_slice(&std::fs::read(place.path("checkout/s.json")).unwrap()).unwrap();
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let at = &results[0]["locations"][0]["physicalLocation"];
    assert_eq!((results.len(), &results[0]["ruleId"]), (1, &"no-leak".into()));
    assert_eq!((&at["artifactLocation"]["uri"], &at["region"]["startLine"]), (&LEAK.0.into(), &LEAK.1.into()));
    assert!(results[0]["partialFingerprints"]["memctlFinding/v2"].is_string(), "{sarif}");
    assert_eq!(sarif["runs"][0]["invocations"][0]["toolExecutionNotifications"], Value::Array(Vec::new()));

    let junit = parsed(&place.path("checkout/j.xml"));
    let suite = &junit[3][0];
    assert_eq!(
        (&suite[1]["tests"], &suite[1]["failures"], &suite[1]["errors"]),
        (&"2".into(), &"1".into(), &"0".into())
    );
    let failure = &suite[3][0][3][0];
    assert_eq!((&suite[3][0][1]["name"], &failure[0]), (&"no-leak".into(), &"failure".into()));
    assert!(failure[2].as_str().unwrap().starts_with("scenarios.py:26: Live memory grows"), "{failure}");

    let summary = std::fs::read_to_string(place.path("summary.md")).unwrap();
    assert!(summary.contains("| no-oom | holds |") && summary.contains("| scenarios.py:26 |"), "{summary}");
}

#[test]
fn a_peak_names_the_sites_that_grew_and_changed_lines_come_first() {
    let place = Place::new();
    place.git(&["init", "-q", "-b", "main"]);
    place.source("common.py", None);
    place.git(&["add", "."]);
    place.git(&["commit", "-q", "-m", "base"]);
    place.git(&["checkout", "-q", "-b", "topic"]);
    place.source("common.py", Some(54));
    place.git(&["commit", "-q", "-a", "-m", "change"]);
    place.import("gpt_clean", "clean");
    place.import("gpt_val_graph_leak", "leak");
    run(&mut place.memctl(&["baseline", "save", "clean", "-f", "memory.json"]));
    let words = ["assert", "leak", "peak<=+2%", "--against", "memory.json", "--github"];
    let ask = |base: &str| annotations(&place.memctl(&words).env("GITHUB_BASE_REF", base).output().unwrap());
    let (plain, of_request) = (ask(""), ask("main"));
    assert!(plain.len() == 3 && plain[0].contains("file=common.py,line=45,"), "{plain:?}");
    assert!(of_request[0].contains("file=common.py,line=54,"), "{of_request:?}");
    assert!(of_request[0].contains("more than before. 751 MiB at most"), "{of_request:?}");
    // A base that git does not know changes only the order.
    assert_eq!(ask("no-such-branch"), plain);
}

#[test]
fn what_is_inconclusive_is_no_result_and_fails_all_the_same() {
    let place = Place::new();
    place.import("oom_by_fragmentation", "short");
    let words = ["assert", "short", "growth<1MiB/epoch", "--junit", "j.xml", "--sarif", "s.json"];
    let checked = place.memctl(&words).output().unwrap();
    assert_eq!(checked.status.code(), Some(1), "{}", stderr(&checked));
    let junit = parsed(&place.path("checkout/j.xml"));
    assert_eq!((&junit[3][0][1]["errors"], &junit[3][0][3][0][3][0][0]), (&"1".into(), &"error".into()));
    let sarif: Value = serde_json::from_slice(&std::fs::read(place.path("checkout/s.json")).unwrap()).unwrap();
    let run = &sarif["runs"][0];
    assert_eq!(run["results"], Value::Array(Vec::new()));
    let note = &run["invocations"][0]["toolExecutionNotifications"][0];
    assert_eq!(note["level"], "warning");
    let text = note["message"]["text"].as_str().unwrap();
    assert!(text.starts_with("growth<1MiB/epoch inconclusive: "), "{text}");
}

#[test]
fn formats_for_machines_and_annotations_exclude_each_other() {
    let place = Place::new();
    place.import("gpt_clean", "clean");
    let asked = place.memctl(&["assert", "clean", "no-leak", "--github", "-o", "json"]).output().unwrap();
    assert_eq!(asked.status.code(), Some(2));
    assert!(stderr(&asked).contains("use it without --output"), "{}", stderr(&asked));
    let asked = place.memctl(&["run", "--junit", "j.xml", "--", "true"]).output().unwrap();
    assert_eq!(asked.status.code(), Some(2));
    assert!(stderr(&asked).contains("need a condition: --assert"), "{}", stderr(&asked));
}

/// `memctl run --assert` with the trainer of [`crate::run`].
fn run_with(place: &Place, flags: &[&str], trainer: &str) -> Output {
    let mut command = place.memctl(&["run", "--job", "checked"]);
    command.args(flags).arg("--");
    match trainer {
        "" => command.arg(std::env::current_exe().unwrap()).args([
            "--ignored",
            "--exact",
            "--nocapture",
            "run::fake_trainer",
        ]),
        program => command.args(["sh", "-c", program]),
    };
    command.env("FAKE_FOLDER", place.folder.path()).output().unwrap()
}

#[test]
fn a_run_fails_if_a_condition_does_not_hold() {
    let place = Place::new();
    let held = run_with(&place, &["--assert", "peak<1TiB", "--junit", "j.xml"], "");
    assert_eq!(held.status.code(), Some(0), "{}", stderr(&held));
    let is_held = |line: &str| line.starts_with("holds ") && line.contains("peak<1TiB");
    assert!(stderr(&held).lines().any(is_held), "{}", stderr(&held));
    assert_eq!(parsed(&place.path("checkout/j.xml"))[3][0][1]["failures"], "0");
    assert!(!stdout(&held).contains("holds"), "standard output belongs to the command: {}", stdout(&held));
    let broken = run_with(&place, &["-q", "--assert", "peak<1B", "--github"], "");
    assert_eq!(broken.status.code(), Some(1), "{}", stderr(&broken));
    assert!(stderr(&broken).contains("::error title=memctl peak<1B::"), "{}", stderr(&broken));
    // The command's own failure has precedence, and nothing recorded never passes.
    assert_eq!(run_with(&place, &["--assert", "no-oom"], "exit 7").status.code(), Some(7));
    let nothing = run_with(&place, &["--assert", "no-oom"], "true");
    assert_ne!(nothing.status.code(), Some(0), "{}", stderr(&nothing));
    for wrong in [&["--assert", "no-such-condition"][..], &["--assert", "no-new-leak", "--against", "absent.json"]] {
        let wrong = run_with(&place, wrong, "echo started");
        assert_eq!((wrong.status.code(), stdout(&wrong).as_str()), (Some(2), ""));
    }
}

#[test]
fn an_older_run_is_not_taken_for_one_that_recorded_nothing() {
    let place = Place::new();
    let asked = |words: &[&str]| place.memctl(words).output().unwrap();
    let recorded = || assert_eq!(run_with(&place, &["-q"], "").status.code(), Some(0));
    recorded();
    assert_eq!(asked(&["assert", "checked", "no-oom"]).status.code(), Some(0));
    assert_eq!(run_with(&place, &[], "true").status.code(), Some(0));
    for words in [&["assert", "checked", "no-oom"][..], &["baseline", "save", "checked", "-f", "memory.json"]] {
        let refused = asked(words);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(4), "{said}");
        assert!(said.contains("recorded nothing") && said.contains("'checked#1' is the older run"), "{said}");
    }
    assert!(!place.path("checkout/memory.json").exists());
    for words in [&["query", "checked"][..], &["report", "checked", "-f", "memory.html"]] {
        let noted = asked(words);
        assert_eq!(noted.status.code(), Some(0), "{}", stderr(&noted));
        assert!(stderr(&noted).contains("recorded nothing; this is an older run"), "{}", stderr(&noted));
    }
    let checked = run_with(&place, &["--assert", "no-oom"], "true");
    assert_eq!(checked.status.code(), Some(4), "{}", stderr(&checked));
    assert!(stderr(&checked).contains("recorded nothing; 'checked#1' is the older run"), "{}", stderr(&checked));
    assert_eq!(asked(&["assert", "checked#1", "no-oom"]).status.code(), Some(0), "a run that is named is meant");
    recorded();
    assert_eq!(asked(&["assert", "checked", "no-oom"]).status.code(), Some(0));
}

#[test]
fn a_run_that_recorded_nothing_writes_its_results_too() {
    let place = Place::new();
    let flags = ["--assert", "no-oom", "--assert", "stable", "--junit", "j.xml", "--sarif", "s.json", "--github"];
    let summary = place.path("summary.md");
    let mut command = place.memctl(&["run", "--job", "checked"]);
    let ran = command.args(flags).args(["--", "true"]).env("GITHUB_STEP_SUMMARY", &summary).output().unwrap();
    let said = stderr(&ran);
    assert_eq!(ran.status.code(), Some(4), "{said}");
    assert!(said.contains("memctl: the last `memctl run` of job checked, at ") && !said.contains("no job"), "{said}");
    let annotations: Vec<&str> = said.lines().filter(|line| line.starts_with("::")).collect();
    let start = "::error title=memctl no-oom%2C stable is inconclusive::the last `memctl run` of job checked, at ";
    assert!(annotations.len() == 1 && annotations[0].starts_with(start), "{annotations:?}");
    assert!(std::fs::read_to_string(summary).unwrap().contains("| no-oom | inconclusive |"));
    assert_eq!(parsed(&place.path("checkout/j.xml"))[3][0][1]["errors"], "2");
    let sarif: Value = serde_json::from_slice(&std::fs::read(place.path("checkout/s.json")).unwrap()).unwrap();
    let notes = sarif["runs"][0]["invocations"][0]["toolExecutionNotifications"].as_array().unwrap();
    assert_eq!((notes.len(), &notes[0]["level"]), (1, &"warning".into()));
    // Questions say the same, and nothing of an older run, which is not there.
    place.import("gpt_clean", "clean");
    run(&mut place.memctl(&["baseline", "save", "clean", "-f", "memory.json"]));
    for words in
        [&["diff", "memory.json", "checked"][..], &["query", "checked"], &["report", "checked", "-f", "r.html"]]
    {
        let asked = place.memctl(words).output().unwrap();
        let said = stderr(&asked);
        assert_eq!(asked.status.code(), Some(4), "{said}");
        assert!(said.contains("recorded nothing") && !said.contains("older run") && !said.contains("no job"), "{said}");
    }
}

/// Pipelines on one machine have jobs of different names. What is compared, and what code hosts follow, must not differ.
#[test]
fn no_result_and_no_baseline_depends_on_the_jobs_name() {
    let place = Place::new();
    place.source(LEAK.0, None);
    let written = ["check-7", "check-8"].map(|job| {
        place.import("gpt_val_graph_leak", job);
        run(&mut place.memctl(&["baseline", "save", job, "-f", "memory.json"]));
        let words = ["assert", job, "no-leak", "no-oom", "--junit", "j.xml", "--sarif", "s.json"];
        assert_eq!(place.memctl(&words).output().unwrap().status.code(), Some(1));
        let cases = parsed(&place.path("checkout/j.xml"))[3][0][3].clone();
        let text = |name: &str| std::fs::read_to_string(place.path("checkout").join(name)).unwrap();
        (cases, text("s.json"), text("memory.json").replace(job, "check"))
    });
    assert_eq!(written[0], written[1]);
    let compared =
        place.memctl(&["assert", "check-7", "no-new-leak", "peak<=+2%", "--against", "memory.json"]).output();
    assert_eq!(compared.unwrap().status.code(), Some(0));
}

#[test]
fn growth_that_may_be_a_leak_has_its_line() {
    let place = Place::new();
    place.source("train.py", None);
    let home = tempfile::tempdir().unwrap();
    let (daemon, _) = super::page::served(home.path(), &[]);
    let kept = Training { kept_a_step: 64 << 10, ..Training::default() };
    record(&daemon.url, session("grows", 0), |agent| train(agent, kept));
    let words =
        ["assert", "grows", "no-leak", "--daemon", &daemon.url, "--sarif", "s.json", "--junit", "j.xml", "--github"];
    let checked = place.memctl(&words).output().unwrap();
    let lines = annotations(&checked);
    let start = "::error file=train.py,line=17,title=memctl no-leak is inconclusive::";
    assert!(lines.len() == 1 && lines[0].starts_with(start), "{lines:?} {}", stderr(&checked));
    let sarif: Value = serde_json::from_slice(&std::fs::read(place.path("checkout/s.json")).unwrap()).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 17, "{sarif}");
    assert_eq!(result["level"], "warning");
    let error = &parsed(&place.path("checkout/j.xml"))[3][0][3][0][3][0];
    assert!(error[0] == "error" && error[2].as_str().unwrap().starts_with("train.py:17: "), "{error}");
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_check_does_not_pass_if_the_daemon_is_away() {
    let place = Place::new();
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let flags = ["--patience", "0s", "--daemon", &nowhere, "--assert", "peak<1TiB"];
    let ran = run_with(&place, &flags, "");
    assert_eq!(ran.status.code(), Some(3), "{}", stderr(&ran));
}

/// The script of the composite action, as the runner starts it: with inputs in variables.
#[test]
fn the_actions_script_runs_checks_and_keeps_the_exit_code() {
    let action = include_str!("../../../deploy/github/action.yml");
    let (_, script) = action.split_once("      run: |\n").expect("the last step has a script");
    let script: String = script.lines().map(|line| format!("{}\n", line.trim_start_matches("        "))).collect();
    let place = Place::new();
    let program =
        format!("'{}' --ignored --exact --nocapture run::fake_trainer", std::env::current_exe().unwrap().display());
    let step = |command: &str, conditions: &str| {
        let path = memctl_tests::memctl_path().parent().unwrap().display().to_string();
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", &script]);
        bash.current_dir(place.path("checkout")).env("XDG_DATA_HOME", place.path("data"));
        bash.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()));
        bash.env("FAKE_FOLDER", place.folder.path()).env("GITHUB_STEP_SUMMARY", place.path("summary.md"));
        bash.env("COMMAND", command).env("JOB", "").env("CONDITIONS", conditions).env("BASELINE", "");
        bash.env("GITHUB_RUN_ID", "7").env("GITHUB_RUN_ATTEMPT", "2").env("GITHUB_JOB", "memory");
        bash.env("RUNNER_NAME", "gpu box/1").env("GITHUB_OUTPUT", place.path("output"));
        bash.env("JUNIT", "j.xml").env("SARIF", "s.json").env("REPORT", "memory.html").output().unwrap()
    };
    let held = step(&program, "peak<1TiB\nno-oom\n");
    assert_eq!(held.status.code(), Some(0), "{}", stderr(&held));
    for file in ["j.xml", "s.json", "memory.html"] {
        assert!(place.path("checkout").join(file).metadata().unwrap().len() > 100, "{file}");
    }
    // The job's name is one of this run of the workflow alone, and later steps can use it.
    assert_eq!(std::fs::read_to_string(place.path("output")).unwrap(), "job=check-7-2-memory-gpu-box-1\n");
    assert_eq!(place.memctl(&["query", "check-7-2-memory-gpu-box-1"]).output().unwrap().status.code(), Some(0));
    let broken = step(&program, "peak<1B");
    assert_eq!(broken.status.code(), Some(1), "{}", stderr(&broken));
    assert!(stderr(&broken).contains("::error title=memctl peak<1B::"), "{}", stderr(&broken));
    let summary = std::fs::read_to_string(place.path("summary.md")).unwrap();
    assert!(summary.contains("| peak&lt;1B | does not hold |"), "{summary}");
    assert_eq!(step("exit 9", "no-oom").status.code(), Some(9));
    // If nothing is recorded, there is no page of an older run.
    std::fs::remove_file(place.path("checkout/memory.html")).unwrap();
    assert_eq!(step("true", "no-oom").status.code(), Some(4));
    assert!(!place.path("checkout/memory.html").exists());
}
