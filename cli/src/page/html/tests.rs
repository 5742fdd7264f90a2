//! Tests of the report for jobs with hostile names, without data, or with only a part of the data. End-to-end tests
//! cover reports of real recordings.

use memctl_answers::dossier::{Dossier, Parts};
use memctl_answers::finding::{Finding, FirstSeen, Site};
use memctl_answers::format::time::Time;
use memctl_answers::ledger::{ClassShare, Ledger, Listed, Rank, View};
use memctl_answers::oom::{Failed, Oom};
use memctl_answers::report::{self, EpochEnd, Report};
use memctl_answers::sites::{self, RankSites, Sites};
use memctl_answers::timeline::{Point, RankTimeline, Timeline};
use memctl_answers::{Completeness, Frame, Job, SCHEMA};
use memctl_model::Severity;

use super::{FILE_MAX, Inlined, Shell, ledger};
use crate::page::markdown;

/// A name that contains every kind of injection.
const HOSTILE: &str = "</script><script>alert('x')</script>\" onfocus=\"y\u{202e}`|@all";

fn stack(line: u32) -> Vec<Frame> {
    vec![Frame { function: HOSTILE.into(), file: format!("/home/{HOSTILE}/a.py"), line: Some(line) }]
}

fn report() -> Report {
    let end = |epoch| EpochEnd { epoch, at: Time(u64::from(epoch) * 10 + 9), ..EpochEnd::default() };
    let finding = Finding {
        id: "1".into(),
        kind: "leak".into(),
        severity: Severity::Critical,
        title: format!("Live memory grows in {HOSTILE}"),
        ranks: vec![0],
        first_seen: FirstSeen { epoch: Some(0), ..FirstSeen::default() },
        site: Site::new(None, stack(1)),
        ..Finding::default()
    };
    Report {
        job: Job {
            id: "job".into(),
            name: "job".into(),
            labels: [(HOSTILE.into(), HOSTILE.into())].into(),
            ..Job::default()
        },
        completeness: Completeness { exact: true, events_stored: 4, ..Completeness::default() },
        ranks: vec![report::Rank {
            host: Some(HOSTILE.into()),
            failure: Some(HOSTILE.into()),
            epoch_ends: (0..3).map(end).collect(),
            device_total_bytes: Some(200),
            stands_out: vec![HOSTILE.into()],
            process: HOSTILE.into(),
            ..report::Rank::default()
        }],
        findings: vec![finding],
        ..Report::default()
    }
}

fn sites_of(bytes: &[u64]) -> Sites {
    let site = |(line, &live_bytes): (usize, &u64)| sites::Site {
        live_bytes,
        live_blocks: 1,
        ..sites::Site::new(stack(line as u32))
    };
    let sites = bytes.iter().enumerate().map(site).collect();
    let ranks = vec![RankSites { sites, exact: true, process: HOSTILE.into(), ..RankSites::default() }];
    Sites { ranks, ..Sites::default() }
}

fn rank_ledger() -> Rank {
    let class =
        |class: &str, live_bytes| ClassShare { class: class.into(), live_bytes, share: live_bytes as f64 / 70.0 };
    Rank {
        allocated_bytes: 70,
        classes: vec![class("gradients", 50), class(HOSTILE, 20)],
        cached_bytes: 30,
        device_total_bytes: Some(200),
        exact: true,
        process: HOSTILE.into(),
        ..Default::default()
    }
}

fn dossier() -> Dossier {
    let point = |epoch: u32| Point {
        epoch,
        first_at: Time(u64::from(epoch) * 10),
        last_at: Time(u64::from(epoch) * 10 + 9),
        allocated_bytes: 50,
        peak_allocated_bytes: 90,
        peak_reserved_bytes: 100,
        min_allocated_bytes: 20 + 10 * u64::from(epoch),
        ..Point::default()
    };
    let course =
        RankTimeline { points: (0..3).map(point).collect(), process: HOSTILE.into(), ..RankTimeline::default() };
    let failed = Failed { process: HOSTILE.into(), cause: HOSTILE.into(), at: Time(15), ..Failed::default() };
    let parts = Parts {
        replay: None,
        course: Ok(Timeline { ranks: vec![course], ..Timeline::default() }),
        failures: Ok(Oom { failures: vec![failed], ..Oom::default() }),
        peak: Ok(sites_of(&[40, 30])),
        early: Ok(sites_of(&[10, 30])),
        late: Ok(sites_of(&[40, 20])),
        ledger: Ok(Ledger {
            schema: SCHEMA,
            job: Job::default(),
            completeness: Completeness::default(),
            ranks: vec![Listed { rank: rank_ledger(), blocks: None }],
            not_judged: Vec::new(),
            view: View::default(),
        }),
    };
    Dossier::new(report(), parts)
}

fn page(dossier: &Dossier) -> String {
    let mut inlined = Inlined::new(1000);
    inlined.job = HOSTILE.to_owned();
    Shell::new(dossier, 0).with(&inlined)
}

/// The file without its script and data.
fn static_part(dossier: &Dossier) -> String {
    page(dossier).split("<script").next().unwrap().to_owned()
}

/// Elements that are opened and not closed, and elements that are closed and were not opened.
fn unbalanced(html: &str) -> Vec<String> {
    const VOID: [&str; 5] = ["meta", "!doctype", "input", "br", "hr"];
    let (mut open, mut wrong) = (Vec::new(), Vec::new());
    // The style is not markup, and every `<` in text is escaped.
    let body =
        html.split("<style>").next().unwrap_or_default().to_owned() + html.split("</style>").nth(1).unwrap_or_default();
    for tag in body.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default().to_owned();
        match (tag.starts_with('/'), tag.ends_with('/') || VOID.contains(&name.as_str())) {
            (true, _) if open.last() == Some(&name) => drop(open.pop()),
            (true, _) => wrong.push(name),
            (false, true) => {}
            (false, false) => open.push(name),
        }
    }
    open.retain(|name| !["html", "body"].contains(&name.as_str()));
    wrong.extend(open);
    wrong
}

#[test]
fn no_name_becomes_markup() {
    let html = page(&dossier());
    assert_eq!(html.matches("<script").count(), 2, "its data and its own script alone");
    let html = static_part(&dossier());
    assert_eq!(html.matches("alert(&#39;x&#39;)").count(), html.matches("alert(").count());
    assert!(!html.contains("\" onfocus") && !html.contains('\u{202e}'));
    assert!(html.matches("&lt;/script&gt;&lt;script&gt;").count() > 10, "names are shown");
    assert_eq!(unbalanced(&html), Vec::<String>::new());
    let markdown = markdown::page(&dossier());
    assert!(
        !markdown.contains("<script") && !markdown.contains("@all") && !markdown.contains('\u{202e}'),
        "{markdown}"
    );
}

#[test]
fn what_is_read_without_a_script_is_whole() {
    let html = static_part(&dossier());
    for text in [
        "Verdict",
        "Finding 1",
        "<details open>",
        "Live memory by the innermost",
        "free, or used by what was not measured",
    ] {
        assert!(html.contains(text), "{text}");
    }
    assert!(!html.contains("Not shown"), "{html}");
}

#[test]
fn what_is_missing_is_said_where_it_would_stand() {
    let bare = Dossier::new(report(), Parts::none("it is <gone>."));
    let html = static_part(&bare);
    assert!(markdown::page(&bare).contains("Sites are not shown: it is &lt;gone&gt;.\n"));
    assert_eq!(html.matches("Not shown: it is &lt;gone&gt;.<").count(), 2, "{html}");
    let empty = Dossier::new(Report::default(), Parts::none("nothing was recorded"));
    let html = static_part(&empty);
    assert!(html.contains("Nothing was recorded in this part of the job"), "{html}");
    assert_eq!(unbalanced(&html), Vec::<String>::new());
    assert!(markdown::page(&empty).contains("Nothing was recorded"));
}

#[test]
fn a_file_is_bounded_whatever_was_recorded() {
    let name = HOSTILE.repeat(50);
    let frame = |line| Frame { function: name.clone(), file: "/home/me/a.py".into(), line: Some(line) };
    let site = |line: u32| sites::Site {
        live_bytes: u64::from(1 + line % 7) << 20,
        live_blocks: 1,
        ..sites::Site::new((0..8).map(|above| frame(line * 8 + above)).collect())
    };
    let many = || {
        let sites = (0..1000).map(site).collect();
        let ranks = vec![RankSites { sites, exact: true, process: HOSTILE.into(), ..RankSites::default() }];
        Sites { ranks, ..Sites::default() }
    };
    let parts = Parts { peak: Ok(many()), late: Ok(many()), ..dossier().parts };
    let mut long = report();
    let first = long.ranks[0].clone();
    long.ranks.extend((1..4096).map(|rank| report::Rank { rank, ..first.clone() }));
    long.findings = vec![long.findings[0].clone(); 500];
    let dossier = Dossier::new(long, parts);
    let html = page(&dossier);
    let room = Shell::new(&dossier, 0).room();
    assert!(html.len() + room <= FILE_MAX && room > FILE_MAX / 2, "{} bytes, room for {room}", html.len());
    assert!(html.contains(" more ranks.") && html.contains(" more findings."));
    assert!(markdown::page(&dossier).len() < 1 << 20);
}

#[test]
fn the_ledger_adds_up_to_the_device() {
    let sum = |rank: &Rank| {
        let (parts, total) = ledger::parts(rank);
        (parts.iter().map(|part| part.bytes).sum::<u64>(), total)
    };
    assert_eq!(sum(&rank_ledger()), (200, Some(200)));
    let measured = Rank {
        context_bytes: Some(11),
        others_bytes: Some(7),
        device_used_bytes: Some(120),
        unexplained_bytes: Some(2),
        ..rank_ledger()
    };
    assert_eq!(sum(&measured), (200, Some(200)));
    let unknown = Rank { device_total_bytes: None, ..rank_ledger() };
    assert_eq!(sum(&unknown), (100, None));
    let too_much = Rank { others_bytes: Some(150), ..rank_ledger() };
    assert_eq!(sum(&too_much), (250, Some(200)));
}
