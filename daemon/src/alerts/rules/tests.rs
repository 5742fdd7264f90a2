//! Tests of the contents of a rules file, of the text of its errors, and of the findings that a rule selects.

use memctl_model::{Finding, FindingKind, Severity};

use super::*;

fn parse(text: &str) -> Result<Rules, String> {
    Rules::parse(text, "r.toml").map_err(|error| error.to_string())
}

pub fn finding(kind: FindingKind, severity: Severity) -> Finding {
    Finding {
        all_ranks: true,
        title: "grows".into(),
        explanation: "it does".into(),
        advice: "detach it".into(),
        ..Finding::new(kind, severity, 0.9, vec![0, 1])
    }
}

#[test]
fn the_built_in_rules_are_read_and_cover_what_matters() {
    let rules = built_in();
    assert_eq!(rules, Rules::default());
    assert_eq!((rules.origin.as_str(), rules.resolve_after_ns / 3_600_000_000_000), (BUILT_IN, 24));
    assert_eq!(rules.to_toml(ReceiverDetail::Everything), DEFAULT);
    for kind in FindingKind::ALL {
        let taken = rules.rules.iter().any(|rule| rule.takes(&finding(kind, Severity::Critical)));
        // Churn slows a job down but does not end it.
        assert_eq!(taken, kind != FindingKind::Churn, "{}", kind.name());
        let info = rules.rules.iter().any(|rule| rule.takes(&finding(kind, Severity::Info)));
        // An out of memory of severity info was caught.
        assert_eq!(info, kind == FindingKind::NearOom, "{}", kind.name());
    }
}

fn built_in() -> Rules {
    super::read::built_in().unwrap()
}

#[test]
fn a_horizon_is_in_time_or_in_epochs() {
    let rules = built_in();
    let rule = rules.rule("OutOfMemoryAhead").unwrap();
    let leak = finding(FindingKind::Leak, Severity::Info);
    let ahead = |seconds, epochs| Finding { time_to_oom_seconds: seconds, epochs_to_oom: epochs, ..leak.clone() };
    assert!(!rule.takes(&leak), "the time is unknown");
    assert!(rule.takes(&ahead(Some(3_600.0), None)) && !rule.takes(&ahead(Some(3_601.0), None)));
    assert!(rule.takes(&ahead(Some(1e9), Some(3.0))) && !rule.takes(&ahead(None, Some(3.1))));
    assert!(!rule.takes(&Finding { confidence: 0.79, ..ahead(Some(1.0), None) }));
    assert!(!rule.takes(&ahead(Some(f64::NAN), Some(f64::NAN))));
}

const WHOLE: &str = r#"
external_url = "https://wiki.example.org/memctl"
resolve_after = "12h"
keep_firing_for = "0s"
imported = true
job_labels = ["team"]

[[receiver]]
name = "am"
type = "alertmanager"
url = "http://127.0.0.1:9093/prefix/"
resend = "30s"
bearer_token_file = "/etc/token"

[[receiver]]
name = "hook"
type = "webhook"
url = "https://hooks.example.org/x?y=1"
timeout = "3s"

[[receiver]]
name = "script"
type = "command"
command = ["/bin/page", "a \"quoted\" \u0007 word"]

[[rule]]
name = "MemoryLeak"
kinds = ["leak"]
severity = "critical"
confidence = 1
horizon = "90m"
horizon_epochs = 2.5
for = "30s"
repeat = "1d"
labels = { team = "ml" }
annotations = { runbook = "https://wiki/\"leaks\"" }
receivers = ["hook"]

[[rule]]
name = "RankSkew"
enabled = false
"#;

#[test]
fn a_file_stands_beside_the_built_in_rules() {
    let rules = parse(WHOLE).unwrap();
    let names: Vec<&str> = rules.rules.iter().map(|rule| rule.name.as_str()).collect();
    let built_in_ones =
        ["MemoryGrowth", "OutOfMemoryAhead", "MemoryFragmented", "OutOfMemory", "RankLost", "JobUnjudged"];
    let expected: Vec<&str> = built_in_ones.into_iter().chain(["MemoryLeak"]).collect();
    assert_eq!(names, expected);
    let own = rules.rule("MemoryLeak").unwrap();
    assert_eq!((own.horizon_seconds, own.repeat_ns, own.receivers.len()), (Some(5_400.0), 86_400_000_000_000, 1));
    assert_eq!(rules.rule("RankLost").unwrap().receivers, ["am", "hook", "script"], "all receivers are notified");
    assert!(parse("default_rules = false").unwrap().rules.is_empty());
    assert_eq!(parse("").unwrap().rules, built_in().rules);
}

#[test]
fn what_is_in_force_reads_as_it_was_without_secrets() {
    let rules = parse(WHOLE).unwrap();
    assert_eq!(parse(&rules.to_toml(ReceiverDetail::Everything)).unwrap(), rules);
    let secret = WHOLE.replace("timeout = \"3s\"", "headers = { X-Token = \"hunter2\" }");
    let rules = parse(&secret).unwrap();
    assert!(
        !rules.to_toml(ReceiverDetail::Everything).contains("hunter2") && !format!("{rules:?}").contains("hunter2")
    );
    assert!(
        rules.to_toml(ReceiverDetail::Everything).contains("# headers that are not shown = X-Token"),
        "{}",
        rules.to_toml(ReceiverDetail::Everything)
    );
    assert!(parse(&rules.to_toml(ReceiverDetail::Everything)).is_ok());
}

#[test]
fn errors_name_file_line_rule_key_and_the_way_out() {
    let rule = |line: &str| format!("[[rule]]\nname = \"R\"\nkinds = [\"leak\"]\n{line}\n");
    let receiver = |lines: &str| format!("[[receiver]]\nname = \"r\"\n{lines}\n");
    for (text, expected) in [
        (
            rule("receivers = [\"nobody\"]"),
            "alert rules r.toml, line 4: rule \"R\", key `receivers`: there is no receiver \"nobody\"; no receivers are defined; add a [[receiver]] of that name",
        ),
        (
            rule("severty = \"info\""),
            "line 4: rule \"R\", key `severty`: there is no such key; valid keys: name, kinds, ",
        ),
        (
            rule("severity = \"bad\""),
            "line 4: rule \"R\", key `severity`: \"bad\" is not one of info, warning, critical",
        ),
        (rule("confidence = 2"), "line 4: rule \"R\", key `confidence`: must be a number from 0 to 1"),
        (rule("confidence = nan"), "key `confidence`: must be a number from 0 to 1"),
        (rule("for = \"soon\""), "key `for`: \"soon\" is not a duration such as 45s, 90m, 12h or 30d"),
        (rule("for = 5"), "key `for`: must be a quoted string, not of type integer"),
        (rule("repeat = \"1s\""), "key `repeat`: 1s is not between 10s and 365d"),
        (rule("labels = { job = \"x\" }"), "key `labels`: \"job\" is reserved for memctl"),
        (rule("labels = { \"a-b\" = \"x\" }"), "key `labels`: \"a-b\" is not a label name"),
        (rule(&format!("labels = {{ a = \"{}\" }}", "x".repeat(1_025))), "\"a\" has more than 1024 bytes"),
        (
            rule("[[rule]]\nname = \"R\"\nkinds = [\"oom\"]"),
            "line 5: rule \"R\", key `name`: there are two rules of this name",
        ),
        (
            "[[rule]]\nname = \"R\"\nkinds = [\"leek\"]".into(),
            "line 3: rule \"R\", key `kinds`: there is no kind \"leek\"; there are leak, eval_graph",
        ),
        ("\n[[rule]]\nname = \"R\"".into(), "line 2: rule \"R\", key `kinds`: is missing"),
        ("[[rule]]\nkinds = [\"leak\"]".into(), "line 1: rule 1, key `name`: is missing"),
        (
            "[[rule]]\nname = \"a b\"\nkinds = [\"leak\"]".into(),
            "key `name`: may contain only letters, digits, _ and -",
        ),
        ("rule = 5".into(), "line 1: key `rule`: write it as [[rule]]"),
        ("a = ".into(), "line 1: this is not TOML: "),
        (
            receiver("type = \"fax\""),
            "line 3: receiver \"r\", key `type`: \"fax\" is not a type; the types are webhook, alertmanager and command",
        ),
        (receiver("type = \"webhook\""), "receiver \"r\", key `url`: is missing; write it like http://127.0.0.1:9093"),
        (
            receiver("type = \"webhook\"\nurl = \"ftp://x\""),
            "line 4: receiver \"r\", key `url`: \"ftp://x\" is not a URL",
        ),
        (
            receiver("type = \"webhook\"\nurl = \"x\"\nresend = \"1m\""),
            "line 5: receiver \"r\", key `resend`: there is no such key",
        ),
        (
            receiver("type = \"webhook\"\nurl = \"http://x\"\nca_file = \"/no/such\""),
            "line 5: receiver \"r\", key `ca_file`: /no/such cannot be read",
        ),
        (
            receiver("type = \"webhook\"\nurl = \"http://x\"\nheaders = { \"a b\" = \"c\" }"),
            "\"a b\" is not a valid HTTP header",
        ),
        (receiver("type = \"command\""), "key `command`: is missing; write it as a list"),
        (
            receiver("type = \"command\"\ncommand = [\"x\"]\ntimeout = \"1h\""),
            "key `timeout`: 1h is not between 0s and 5m",
        ),
        ("[[receiver]]\nname = \"log\"\ntype = \"webhook\"".into(), "`log` is the built-in receiver"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(expected), "{text}\n{error}\n{expected}");
    }
    let password = parse(&receiver("type = \"webhook\"\nurl = \"http://me:hunter2@x\"")).unwrap_err();
    assert!(
        password.contains("a URL must not contain a user and password") && !password.contains("hunter2"),
        "{password}"
    );
    let nowhere = Rules::from_file(std::path::Path::new("/no/such/file")).unwrap_err().to_string();
    assert!(nowhere.starts_with("alert rules /no/such/file: cannot be read: "), "{nowhere}");
}

#[test]
fn any_text_is_read_or_refused() {
    let mut runner = proptest::test_runner::TestRunner::default();
    let piece = proptest::sample::select(vec![
        "[[rule]]\n",
        "[[receiver]]\n",
        "[rule]\n",
        "name = \"a\"\n",
        "kinds = [\"leak\"]\n",
        "kinds = 3\n",
        "type = \"webhook\"\n",
        "url = \"http://x\"\n",
        "for = \"1s\"\n",
        "labels = {}\n",
        "\u{0}",
        "=",
        "é\n",
        "confidence = 1e999\n",
        "confidence = 0x1\n",
    ]);
    let texts = proptest::collection::vec(piece, 0..12);
    runner
        .run(&texts, |pieces| {
            if let Ok(rules) = parse(&pieces.concat()) {
                proptest::prop_assert_eq!(parse(&rules.to_toml(ReceiverDetail::Everything)).unwrap(), rules);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn suspicions_are_not_notified() {
    let rules = Rules::default();
    let sure = Finding {
        time_to_oom_seconds: Some(60.0),
        ..Finding::new(FindingKind::Leak, Severity::Critical, 1.0, vec![0])
    };
    let suspected = Finding { is_suspected: true, ..sure.clone() };
    assert!(rules.rules.iter().any(|rule| rule.takes(&sure)));
    assert!(!rules.rules.iter().any(|rule| rule.takes(&suspected)));
}

#[test]
fn a_rule_with_a_horizon_names_kinds_that_have_an_outlook() {
    let rules = Rules::default();
    let with_horizon =
        rules.rules.iter().filter(|rule| rule.horizon_seconds.is_some() || rule.horizon_epochs.is_some());
    let kinds: Vec<FindingKind> = with_horizon.flat_map(|rule| rule.kinds.clone()).collect();
    assert!(!kinds.is_empty());
    // A finding that does not fill the allocator's memory has no time to out of memory.
    let without: Vec<&FindingKind> =
        kinds.iter().filter(|kind| !kind.fills() && **kind != FindingKind::NearOom).collect();
    assert!(without.is_empty(), "no finding of these kinds ever matches: {without:?}");
}
