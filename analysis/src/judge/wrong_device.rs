//! A rank that allocates on another rank's device.
//!
//! Guarantees: a device counts as a rank's own if most of the rank's reserved memory is there. Devices are
//! distinguished by identity (UUID, else host and index) and never by index alone. Intended sharing is not reported:
//! processes of one rank, other roles beside the training, and a rank's further devices that no other rank owns.

use std::collections::BTreeMap;

use memctl_model::{EvidenceValue, Finding, FindingKind, Frame, HumanBytes, JudgedKind, Severity};

use super::subjects::{self, Subject};
use super::watch::RankWatch;
use crate::wording::opening;

/// A finding and its device.
pub(super) struct Wrong {
    pub device: Option<String>,
    pub finding: Finding,
}

/// One rank on a device that is not its own.
struct Stray<'a> {
    watch: &'a RankWatch,
    owner: Subject,
    site: Option<(&'a Frame, Vec<Frame>)>,
    bytes: u64,
}

/// The key of a finding: the line, the device's index, and the owner.
type Key = (Option<(String, String)>, u8, Subject);

/// Devices were compared if there are several.
pub(super) fn judged(watches: &[&RankWatch]) -> Option<JudgedKind> {
    (watches.len() > 1).then(|| JudgedKind { kind: FindingKind::WrongDevice, boundaries: Vec::new() })
}

/// All findings about ranks on another rank's device.
pub(super) fn findings(watches: &[&RankWatch]) -> Vec<Wrong> {
    let mut by_place: BTreeMap<Key, Vec<Stray<'_>>> = BTreeMap::new();
    let own = own_devices(watches);
    for &watch in watches.iter().filter(|watch| is_rank(watch)) {
        let (rank, device) = (watch.facts.rank, watch.facts.device_id.as_deref());
        if device.is_none() || own.get(&rank).is_none_or(|own| own.facts.device_id.as_deref() == device) {
            continue;
        }
        let is_owner = |other: &&&RankWatch| other.facts.rank != rank && other.facts.device_id.as_deref() == device;
        let Some(owner) = own.values().find(is_owner).map(|owner| owner.who()) else { continue };
        let bytes = reserved(watch);
        if bytes == 0 {
            continue;
        }
        let site = watch.largest_site();
        let place = site.as_ref().map(|(site, _)| (site.function.to_string(), site.file.to_string()));
        by_place.entry((place, watch.facts.device, owner.clone())).or_default().push(Stray {
            watch,
            owner,
            site,
            bytes,
        });
    }
    by_place.into_values().filter_map(|strays| wrong(&strays, watches)).collect()
}

fn is_rank(watch: &RankWatch) -> bool {
    watch.facts.process.is_empty() && watch.facts.role.is_empty()
}

/// The device that holds most of each rank's bytes.
fn own_devices<'a>(watches: &[&'a RankWatch]) -> BTreeMap<u32, &'a RankWatch> {
    let mut own: BTreeMap<u32, &RankWatch> = BTreeMap::new();
    for &watch in watches.iter().filter(|watch| is_rank(watch)) {
        let known = own.entry(watch.facts.rank).or_insert(watch);
        if reserved(watch) > reserved(known) {
            *known = watch;
        }
    }
    own
}

fn reserved(watch: &RankWatch) -> u64 {
    watch.history.highest_reserved()
}

/// `train.py:24`.
fn line(site: &Frame) -> String {
    let file = site.file.rsplit(['/', '\\']).next().unwrap_or_default();
    if site.line == 0 { file.to_owned() } else { format!("{file}:{}", site.line) }
}

fn wrong(strays: &[Stray<'_>], watches: &[&RankWatch]) -> Option<Wrong> {
    let most = strays.iter().max_by_key(|stray| stray.bytes)?;
    let subjects: Vec<Subject> = strays.iter().map(|stray| stray.watch.who()).collect();
    let all: Vec<Subject> = watches.iter().map(|watch| watch.who()).collect();
    // The sentence names the device anyway.
    let bare = |subjects: &[Subject]| {
        subjects.iter().map(|who| Subject { device: 0, ..who.clone() }).collect::<Vec<Subject>>()
    };
    let (bare_whos, bare_all) = (bare(&subjects), bare(&all));
    let on = subjects::on(&bare_whos.iter().collect::<Vec<_>>(), &bare_all.iter().collect::<Vec<_>>());
    let (device, owner) = (most.watch.facts.device, most.owner.name());
    let verb = if strays.len() == 1 { "allocates" } else { "allocate" };
    let at = most.site.as_ref().map_or_else(String::new, |(site, _)| format!(" ({})", line(site)));
    let context = most.watch.history.outside_bytes();
    let beside = context
        .filter(|&bytes| bytes > 0)
        .map_or_else(String::new, |bytes| format!(", plus {} of context and libraries", HumanBytes::of(bytes)));
    let mut evidence = vec![("reserved_bytes".to_owned(), EvidenceValue::Count(most.bytes))];
    evidence.extend(context.map(|bytes| ("context_bytes".to_owned(), EvidenceValue::Count(bytes))));
    evidence.push(("device".to_owned(), EvidenceValue::Count(u64::from(device))));
    evidence.push(("device_of".to_owned(), EvidenceValue::Text(owner.clone())));
    let finding = Finding {
        live_bytes: Some(most.bytes),
        site: most.site.as_ref().map(|(site, _)| (*site).clone()),
        stack: most.site.as_ref().map(|(_, stack)| stack.clone()).unwrap_or_default(),
        subject: format!("device {device} of {owner}"),
        title: format!("{} {verb} on device {device}{at}, which belongs to {owner}", opening(&on)),
        explanation: format!(
            "A process that uses a device creates a context and a memory pool of its own there: each reserves up to {} on \
             {owner}'s device{beside}, which {owner} then lacks.",
            HumanBytes::of(most.bytes)
        ),
        advice: "Call torch.cuda.set_device(local_rank) before anything uses CUDA; at this line, pass device= (or use \
                 .to(device)), and give torch.load a map_location."
            .to_owned(),
        evidence,
        processes: subjects::processes(&subjects),
        ..Finding::new(FindingKind::WrongDevice, Severity::Warning, 0.95, subjects::ranks(&subjects))
    };
    Some(Wrong { device: most.watch.facts.device_id.as_deref().map(str::to_owned), finding })
}
