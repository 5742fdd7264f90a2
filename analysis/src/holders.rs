//! The answers of processes to holder queries, shown with the finding that they belong to.
//!
//! Guarantees: the latest answer that names a holder is shown. If none does, the latest answer is shown; without any
//! answer, the reason for its absence. A holder's growth is computed only from two counts of the same process in two
//! epochs. Holders with different identities in two answers are not compared.

use memctl_model::{
    Finding, FindingHolders, FindingKind, Fingerprint, HolderGrowth, HolderPace, HoldersAsked, HoldersFound,
    TensorHolder,
};

use crate::wording::opening;

/// Maximum number of holders that a sentence names; the others are counted.
const NAMED: usize = 3;
/// If the first holder has at least half of the blocks, a holder of less than 1/`FEW` of the blocks is counted and not
/// named.
const FEW: u32 = 20;

/// The known holders of a finding's blocks. `id` is the finding's fingerprint; `asked` are all holder queries to
/// processes of the job, oldest first.
#[must_use]
pub fn of_finding(finding: &Finding, id: &str, asked: &[HoldersAsked]) -> Option<FindingHolders> {
    let own: Vec<&HoldersAsked> = asked.iter().filter(|asked| is_about(asked, finding, id)).collect();
    let names = |asked: &&&HoldersAsked| asked.outcome.as_ref().is_ok_and(|found| !found.holders.is_empty());
    let answers = |asked: &&&HoldersAsked| asked.outcome.is_ok();
    let answer = own.iter().rfind(names).or_else(|| own.iter().rfind(answers)).or(own.last())?;
    let (growth, pace) = match &answer.outcome {
        Ok(found) => {
            let both = |holder| (growth(holder, found, answer, &own), length_growth(holder, found, answer, &own));
            found.holders.iter().map(both).unzip()
        }
        Err(_) => (Vec::new(), Vec::new()),
    };
    let sentence = sentence(answer, &growth);
    Some(FindingHolders { asked: (*answer).clone(), growth, pace, sentence })
}

/// Whether the growth in length of a holder is not known yet, and an earlier answer of the process could show it.
#[must_use]
pub fn is_pace_open(known: &FindingHolders) -> bool {
    let Ok(found) = &known.asked.outcome else { return false };
    let is_open = |(holder, pace): (&TensorHolder, &Option<HolderPace>)| {
        pace.is_none() && holder.length.is_some() && is_only(found, holder.identity)
    };
    found.holders.iter().zip(&known.pace).any(is_open)
}

/// Whether the growth of a holder is not known yet, and an earlier answer of the process could show it.
#[must_use]
pub fn is_growth_open(known: &FindingHolders) -> bool {
    let Ok(found) = &known.asked.outcome else { return false };
    let is_open = |(holder, growth): (&TensorHolder, &Option<HolderGrowth>)| {
        growth.is_none() && holder.tensors.is_some() && is_only(found, holder.identity)
    };
    found.epoch.is_some() && found.holders.iter().zip(&known.growth).any(is_open)
}

/// Whether a holder query was about this finding's blocks. For a graph, the query
/// has the finding's id or its site. Otherwise it is about the same function and exactly the finding's lines, because
/// another line of the function may have another holder.
#[must_use]
pub fn is_about(asked: &HoldersAsked, finding: &Finding, id: &str) -> bool {
    use FindingKind::{EvalGraph, GraphKept, HiddenChain};
    let Some(site) = finding.site.as_ref().filter(|_| finding.kind.is_leak()) else { return false };
    if matches!(finding.kind, EvalGraph | GraphKept | HiddenChain) {
        return asked.finding == id || *site == asked.site;
    }
    (&site.function, &site.file) == (&asked.site.function, &asked.site.file) && asked.lines == finding.all_lines()
}

/// The growth since the first answer of the same process in an earlier epoch that counts the same holder.
fn growth(
    holder: &TensorHolder,
    found: &HoldersFound,
    answer: &HoldersAsked,
    own: &[&HoldersAsked],
) -> Option<HolderGrowth> {
    let (epoch, identity) = (found.epoch?, holder.identity);
    if holder.tensors.is_none() || !is_only(found, identity) {
        return None;
    }
    own.iter().filter(|asked| asked.process == answer.process).find_map(|asked| {
        let before = asked.outcome.as_ref().ok().filter(|before| is_only(before, identity))?;
        let since_epoch = before.epoch.filter(|&since| since < epoch)?;
        let tensors_before = before.holders.iter().find(|other| other.identity == identity)?.tensors?;
        Some(HolderGrowth { since_epoch, tensors_before })
    })
}

/// The growth in length since the first earlier answer of the same process that measures the same holder.
fn length_growth(
    holder: &TensorHolder,
    found: &HoldersFound,
    answer: &HoldersAsked,
    own: &[&HoldersAsked],
) -> Option<HolderPace> {
    let (length_now, identity) = (holder.length?, holder.identity);
    if !is_only(found, identity) {
        return None;
    }
    let is_earlier = |asked: &&&HoldersAsked| asked.process == answer.process && asked.asked_ns < answer.asked_ns;
    own.iter().filter(is_earlier).find_map(|asked| {
        let before = asked.outcome.as_ref().ok().filter(|before| is_only(before, identity))?;
        let length_before = before.holders.iter().find(|other| other.identity == identity)?.length?;
        let (bytes_before, bytes_now) = (before.live_bytes, found.live_bytes);
        Some(HolderPace { since_ns: asked.asked_ns, length_before, length_now, bytes_before, bytes_now })
    })
}

/// Whether exactly one holder of an answer has this identity.
fn is_only(found: &HoldersFound, identity: Fingerprint) -> bool {
    found.holders.iter().filter(|holder| holder.identity == identity).count() == 1
}

fn sentence(asked: &HoldersAsked, growth: &[Option<HolderGrowth>]) -> String {
    let found = match &asked.outcome {
        Ok(found) => found,
        Err(why) => {
            return format!(
                "{} was asked which Python object holds these blocks and did not say: {}.",
                opening(&asked.process),
                why.trim_end_matches('.')
            );
        }
    };
    // Without epochs, only the clock time identifies the blocks that were live then.
    let when =
        found.epoch.map_or_else(|| format!(" at {}", clock(asked.asked_ns)), |epoch| format!(" in epoch {epoch}"));
    let of = match u64::from(found.asked_blocks) {
        _ if found.live_blocks == 1 => "the one live block of this site".to_owned(),
        all if all >= found.live_blocks => format!("all {} live blocks of this site", grouped(found.live_blocks)),
        some => format!("{} of the {} live blocks of this site", grouped(some), grouped(found.live_blocks)),
    };
    let who = &asked.process;
    let cut = if found.complete { "" } else { " The search is not complete." };
    if found.holders.is_empty() {
        let not = found.not_looked_at.join(" ");
        let not = if not.is_empty() { not } else { format!(" Not looked at: {not}") };
        return format!(
            "No Python object was found that holds these blocks; {who} was asked{when} about {of}.{cut}{not}"
        );
    }
    let share = |holder: &TensorHolder| match holder.blocks {
        all if all == found.asked_blocks => String::new(),
        some => format!(" ({} of {} blocks)", grouped(some.into()), grouped(found.asked_blocks.into())),
    };
    let grown = |at: usize| match growth.get(at).copied().flatten() {
        Some(HolderGrowth { since_epoch, tensors_before })
            if found.holders[at].tensors.is_some_and(|now| now != tensors_before) =>
        {
            format!(" ({} in epoch {since_epoch})", grouped(tensors_before))
        }
        _ => String::new(),
    };
    // Next to a holder of most blocks, a holder of a few blocks explains nothing.
    let has_main = found.holders.first().is_some_and(|first| first.blocks * 2 >= found.asked_blocks);
    let is_named = |&(at, holder): &(usize, &TensorHolder)| {
        at == 0 || (at < NAMED && !(has_main && holder.blocks * FEW < found.asked_blocks))
    };
    let named = found.holders.iter().enumerate().filter(is_named);
    let named = named.map(|(at, holder)| format!("{}{}{}", holder.sentence, grown(at), share(holder)));
    let mut parts: Vec<String> = named.collect();
    if found.holders.len() > parts.len() {
        parts.push(format!("{} more", found.holders.len() - parts.len()));
    }
    let without = match found.asked_blocks.saturating_sub(found.found_blocks) {
        0 => String::new(),
        some => format!(" For {} of these no holder was found.", grouped(some.into())),
    };
    // The sentence is in the past tense because the holder may no longer hold these blocks.
    format!("Held{when} by {}. {} was asked about {of}.{without}{cut}", parts.join("; "), opening(who))
}

/// The time of day: `09:52:03 UTC`.
fn clock(ns: u64) -> String {
    let seconds = ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// The number with grouped digits: `1,440`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use memctl_model::{FindingKind, Frame, Severity};

    use super::*;

    fn site(line: u32) -> Frame {
        Frame { function: "keep".into(), file: "train.py".into(), line }
    }

    fn finding() -> Finding {
        Finding { site: Some(site(17)), ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0]) }
    }

    fn list(tensors: u64) -> TensorHolder {
        let chain = ["module `__main__`", "global `KEPT`", &format!("list, {} items", grouped(tensors)), "Tensor"];
        TensorHolder {
            kind: "list".into(),
            sentence: format!("list `KEPT` of module `__main__`, {} tensors", grouped(tensors)),
            chain: chain.map(str::to_owned).to_vec(),
            blocks: 256,
            bytes: 256 << 20,
            tensors: Some(tensors),
            length: Some(tensors),
            subject: "list `KEPT` of module `__main__`".into(),
            identity: Fingerprint(1),
            ..TensorHolder::default()
        }
    }

    fn found(epoch: u32, holders: Vec<TensorHolder>) -> HoldersFound {
        HoldersFound {
            live_blocks: 1_440,
            live_bytes: 1_440 << 20,
            asked_blocks: 256,
            found_blocks: holders.iter().map(|holder| holder.blocks).sum(),
            complete: true,
            holders,
            epoch: Some(epoch),
            ..HoldersFound::default()
        }
    }

    fn asked(asked_ns: u64, outcome: Result<HoldersFound, String>) -> HoldersAsked {
        HoldersAsked {
            rank: 0,
            process: "rank 0".into(),
            asked_ns,
            unasked: true,
            budget_ms: 100,
            site: site(17),
            lines: vec![17],
            finding: String::new(),
            outcome,
        }
    }

    fn sentence_of(asked: &[HoldersAsked]) -> Option<String> {
        of_finding(&finding(), "id", asked).map(|known| known.sentence)
    }

    #[test]
    fn a_holder_is_named_with_what_was_asked() {
        assert_eq!(
            sentence_of(&[asked(1, Ok(found(3, vec![list(1_440)])))]).unwrap(),
            "Held in epoch 3 by list `KEPT` of module `__main__`, 1,440 tensors. Rank 0 was asked about 256 of the 1,440 \
             live blocks of this site."
        );
        let few = TensorHolder { blocks: 6, tensors: None, sentence: "a dict".into(), kind: "dict".into(), ..list(1) };
        let several = HoldersFound { complete: false, live_blocks: 256, ..found(3, vec![few.clone(), few]) };
        assert_eq!(
            sentence_of(&[asked(1, Ok(several))]).unwrap(),
            "Held in epoch 3 by a dict (6 of 256 blocks); a dict (6 of 256 blocks). Rank 0 was asked about all 256 live blocks \
             of this site. For 244 of these no holder was found. The search is not complete."
        );
        let most = TensorHolder { blocks: 250, ..list(1_440) };
        let few = TensorHolder { blocks: 2, sentence: "attribute `grad`".into(), ..list(1) };
        let said = sentence_of(&[asked(1, Ok(found(3, vec![most, few])))]).unwrap();
        assert!(
            said.contains("1,440 tensors (250 of 256 blocks); 1 more."),
            "two of 256 blocks explain nothing: {said}"
        );
    }

    #[test]
    fn what_was_not_found_and_who_did_not_answer_are_told() {
        let not_looked_at = vec!["Objects of C extensions.".to_owned()];
        let none = asked(2, Ok(HoldersFound { not_looked_at, ..found(3, vec![]) }));
        assert_eq!(
            sentence_of(std::slice::from_ref(&none)).unwrap(),
            "No Python object was found that holds these blocks; rank 0 was asked in epoch 3 about 256 of the 1,440 \
             live blocks of this site. Not looked at: Objects of C extensions."
        );
        let failed = asked(3, Err("it did not answer.".into()));
        assert_eq!(
            sentence_of(std::slice::from_ref(&failed)).unwrap(),
            "Rank 0 was asked which Python object holds these blocks and did not say: it did not answer."
        );
        // An answer that names a holder has precedence over later answers that do not.
        let named = asked(1, Ok(found(2, vec![list(9)])));
        assert!(
            sentence_of(&[named, none.clone(), failed.clone()]).unwrap().starts_with("Held in epoch 2 by list `KEPT`")
        );
        assert!(sentence_of(&[none, failed]).unwrap().starts_with("No Python object"));
        assert_eq!(sentence_of(&[]), None);
    }

    #[test]
    fn growth_is_told_where_the_same_holder_was_counted_twice() {
        let first = asked(1, Ok(found(3, vec![list(480)])));
        let grown = |earlier: HoldersAsked, later: HoldersFound| {
            let known = of_finding(&finding(), "id", &[earlier, asked(2, Ok(later))]).unwrap();
            (known.growth[0].map(|growth| (growth.since_epoch, growth.tensors_before)), known.sentence)
        };
        let (growth, words) = grown(first.clone(), found(7, vec![list(1_440)]));
        assert_eq!(growth, Some((3, 480)));
        assert!(
            words.starts_with("Held in epoch 7 by list `KEPT` of module `__main__`, 1,440 tensors (480 in epoch 3).")
        );
        let (_, words) = grown(first.clone(), found(5, vec![list(477)]));
        assert!(words.contains("477 tensors (480 in epoch 3)"), "{words}");
        // None of these shows growth: the tensors are not counted; the epoch is the same or unknown; it is another
        // list; two holders have the same name.
        for later in [
            found(7, vec![TensorHolder { tensors: None, ..list(1_440) }]),
            found(3, vec![list(1_440)]),
            HoldersFound { epoch: None, ..found(7, vec![list(1_440)]) },
            found(7, vec![TensorHolder { identity: Fingerprint(2), ..list(1_440) }]),
            found(7, vec![list(1_440), list(1_441)]),
        ] {
            assert_eq!(grown(first.clone(), later).0, None);
        }
        // `open` returns whether an earlier answer could still show growth.
        let open = |asked: &[HoldersAsked]| is_growth_open(&of_finding(&finding(), "id", asked).unwrap());
        let counted = asked(2, Ok(found(7, vec![list(1_440)])));
        assert!(open(std::slice::from_ref(&counted)));
        assert!(!open(&[first.clone(), counted]), "it is known");
        assert!(!open(&[asked(2, Ok(found(7, vec![TensorHolder { tensors: None, ..list(9) }])))]), "not counted");
        assert!(!open(&[asked(2, Ok(found(7, vec![list(1_440), list(1_441)])))]), "two of one name");
        assert!(!open(&[asked(2, Err("it did not answer.".into()))]));
        let other = HoldersAsked { process: "rank 1".into(), ..first };
        assert_eq!(grown(other, found(7, vec![list(1_440)])).0, None);
    }

    #[test]
    fn how_long_a_holder_has_become_is_told_beside_the_bytes_of_the_site() {
        let first = asked(1, Ok(found(3, vec![list(480)])));
        let pace = |earlier: &HoldersAsked, later: HoldersFound| {
            let known = of_finding(&finding(), "id", &[earlier.clone(), asked(2, Ok(later))]).unwrap();
            (known.pace[0], is_pace_open(&known))
        };
        // A pace is also known within one epoch and without epochs.
        let later = HoldersFound { live_bytes: 9 << 30, epoch: None, ..found(3, vec![list(1_440)]) };
        let (grown, is_open) = pace(&first, later.clone());
        let grown = grown.unwrap();
        assert_eq!((grown.since_ns, grown.length_before, grown.length_now), (1, 480, 1_440));
        assert!(grown.grew_with_bytes() && !is_open);
        let same = HolderPace { length_now: 480, ..grown };
        assert!(!same.grew_with_bytes() && !HolderPace { bytes_now: grown.bytes_before, ..grown }.grew_with_bytes());
        // None of these shows a pace: the length is not measured; it is another process; two holders have the same
        // name.
        let (none, is_open) =
            pace(&first, HoldersFound { holders: vec![TensorHolder { length: None, ..list(9) }], ..later.clone() });
        assert!(none.is_none() && !is_open);
        let other = HoldersAsked { process: "rank 1".into(), ..first.clone() };
        assert_eq!(pace(&other, later.clone()), (None, true));
        assert_eq!(pace(&first, HoldersFound { holders: vec![list(9), list(10)], ..later }), (None, false));
    }

    #[test]
    fn only_what_was_asked_about_it_is_told() {
        let elsewhere = HoldersAsked { site: site(18), lines: vec![18], ..asked(1, Ok(found(3, vec![list(9)]))) };
        assert_eq!(sentence_of(std::slice::from_ref(&elsewhere)), None);
        // The same finding, while another line of the function grew. That line's blocks have a holder of their own.
        let earlier = [HoldersAsked { finding: "id".into(), ..elsewhere }];
        assert_eq!(sentence_of(&earlier), None);
        let graph = Finding { kind: FindingKind::GraphKept, ..finding() };
        assert!(of_finding(&graph, "id", &earlier).is_some());
        let both = Finding { lines: vec![17, 18], ..finding() };
        let about_both = [HoldersAsked { lines: vec![17, 18], ..asked(1, Ok(found(3, vec![list(9)]))) }];
        assert_eq!([&earlier, &about_both].map(|asked| of_finding(&both, "id", asked).is_some()), [false, true]);
        let other = Finding { kind: FindingKind::RankSkew, ..finding() };
        assert_eq!(of_finding(&other, "id", &[asked(1, Ok(found(3, vec![list(9)])))]), None);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(clock(1_795_168_323_226_534_976), "09:52:03 UTC");
    }
}
