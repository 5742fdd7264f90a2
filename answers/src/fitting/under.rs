//! The peak, explained, and the measures that bring it below a number of bytes.
//!
//! Guarantees: every measure is replayed by itself, with its arithmetic. What the recording does not contain is not
//! guessed: the batch size if it was not given, and the precision of optimizer state except by its bytes.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use memctl_analysis::classes::Class;
use memctl_analysis::modules;
use memctl_model::HumanBytes;
use memctl_replay::advice::{recommended, tried};
use memctl_replay::fit::Fit;
use memctl_replay::fit::measures::{Form, Going, QUANTIZED, QUANTIZED_MIN, RANKS_ASSUMED, must_go, with_state};
use memctl_replay::{Conf, Limit, Version};

use super::Meaning;
use super::changes::{checkpointed, outcome, saved_bytes};
use super::refused::{Refused, Wanted};
use crate::Frame;
use crate::fit::{Gone, Growing, Held, Holder, LeftOut, Measure, Peak, Under};

/// The most sites and modules in an answer.
const LISTED_MAX: usize = 40;

/// Live memory at the peak.
pub(super) fn peak(fit: &Fit, meaning: &Meaning) -> Peak {
    let peak = fit.script().peak(fit.conf());
    let live: Vec<(usize, u64)> =
        peak.live.iter().map(|&(request, bytes)| (fit.script().origin(request), bytes)).collect();
    let classes = summed(&live, |request| meaning.class(request));
    let modules = summed(&live, |request| meaning.modules.around(request));
    let sites = summed(&live, |request| meaning.holders.get(request).copied());
    let failed: HashSet<usize> = fit.script().failed().iter().map(|failed| failed.request).collect();
    let (modules, modules_left_out) = listed(modules);
    let (sites, sites_left_out) = listed(sites);
    let held = |(name, (blocks, bytes)): (Option<String>, (u64, u64))| Held { name, blocks, bytes };
    Peak {
        allocated_bytes: peak.outcome.counts.peak_allocated_bytes,
        peak_reserved_bytes: peak.outcome.counts.peak_reserved_bytes,
        failed_bytes: peak.live.iter().filter(|(request, _)| failed.contains(request)).map(|(_, bytes)| bytes).sum(),
        classes: classes.into_iter().map(|(class, it)| held((Some(class.name().to_owned()), it))).collect(),
        modules: modules.into_iter().map(held).collect(),
        sites: sites.into_iter().map(|(id, (blocks, bytes))| holder(id, blocks, bytes, meaning)).collect(),
        modules_left_out,
        sites_left_out,
    }
}

fn holder(id: Option<u32>, blocks: u64, bytes: u64, meaning: &Meaning) -> Holder {
    let place = id.and_then(|id| meaning.places.get(id as usize));
    let (site, class) =
        place.map_or((None, Class::Unknown), |(frame, class)| (frame.as_ref().map(Frame::from), *class));
    Holder { site, class: class.name().into(), blocks, bytes }
}

/// Blocks and bytes, grouped by the key that `of` returns, most bytes first.
fn summed<K: Eq + Hash + Ord + Clone>(live: &[(usize, u64)], of: impl Fn(usize) -> K) -> Vec<(K, (u64, u64))> {
    let mut sums: HashMap<K, (u64, u64)> = HashMap::new();
    for &(request, bytes) in live {
        let (blocks, sum) = sums.entry(of(request)).or_default();
        (*blocks, *sum) = (*blocks + 1, sum.saturating_add(bytes));
    }
    let mut sums: Vec<(K, (u64, u64))> = sums.into_iter().collect();
    sums.sort_by_key(|(key, (_, bytes))| (std::cmp::Reverse(*bytes), key.clone()));
    sums
}

type Summed<K> = Vec<(K, (u64, u64))>;

fn listed<K>(mut sums: Summed<K>) -> (Summed<K>, LeftOut) {
    let rest = sums.split_off(sums.len().min(LISTED_MAX));
    (sums, LeftOut { count: rest.len() as u64, bytes: rest.iter().map(|(_, (_, bytes))| bytes).sum() })
}

/// The circumstances of a recording's run.
pub(super) struct Ran {
    /// What grows in it.
    pub growing: Option<Growing>,
    /// Ranks of the job.
    pub world: u32,
    /// The oldest version of PyTorch that it may be of.
    pub oldest: Version,
}

/// The query about a recording.
pub(super) struct LimitQuery<'a> {
    /// Reserved bytes.
    pub limit: u64,
    /// The size that was recorded.
    pub size: Option<u64>,
    /// How it ran.
    pub ran: &'a Ran,
    pub wanted: Wanted<'a>,
}

/// The measures that bring the peak below a limit, and what was not analysed.
pub(super) fn under(asked: &LimitQuery<'_>, fit: &Fit, meaning: &Meaning) -> Result<(Under, Vec<String>), Refused> {
    let LimitQuery { limit, size, ran, wanted } = *asked;
    let (_, reserved) = outcome(fit, fit.script());
    let goes = |request: usize| {
        let stays = matches!(meaning.class(request), Class::Parameters | Class::Gradients);
        meaning.holders.get(request).copied().filter(|_| !stays)
    };
    let going = must_go(fit.script(), fit.conf(), limit, goes, wanted.0);
    wanted.check()?;
    let reached = going.last().map_or(reserved, |last| last.peak_reserved_bytes);
    let gone = |&Going { holder: id, blocks, bytes, peak_reserved_bytes }: &Going| Gone {
        holder: holder(Some(id), blocks, bytes, meaning),
        peak_reserved_bytes,
    };
    let mut weighing = Weighing { limit, reserved, fit, meaning, measures: Vec::new(), remarks: Vec::new() };
    weighing
        .remarks
        .push("Parameters and gradients are never among what must go: without them nothing trains.".to_owned());
    weighing.setting(ran.oldest);
    wanted.check()?;
    weighing.checkpointing();
    wanted.check()?;
    weighing.smaller(size, wanted);
    wanted.check()?;
    weighing.optimizer(ran.world);
    let Weighing { mut measures, remarks, .. } = weighing;
    measures.sort_by_key(|measure| (!measure.is_enough, measure.peak_reserved_bytes));
    let under = Under {
        limit_bytes: limit,
        peak_reserved_bytes: reserved,
        excess_bytes: reserved.saturating_sub(limit),
        must_go: going.iter().map(gone).collect(),
        is_enough: reached <= limit,
        first: ran.growing.as_ref().map(first),
        measures,
    };
    Ok((under, remarks))
}

/// The sentence that precedes the measures if memory grows.
fn first(growing: &Growing) -> String {
    let level = "the measures lower the level at best, they do not stop the growth";
    match (growing.is_bounded, growing.is_leak) {
        (true, _) => "What memory fills is bounded: give it a smaller bound first, or count with all of it.".to_owned(),
        (false, true) => format!("Remove the leak first: {level}. {}", growing.advice.as_deref().unwrap_or_default()),
        (false, false) => format!("Find out first why memory grows, and whether it stops: {level}."),
    }
}

/// Collects measures while they are replayed.
struct Weighing<'a> {
    limit: u64,
    reserved: u64,
    fit: &'a Fit,
    meaning: &'a Meaning,
    measures: Vec<Measure>,
    remarks: Vec<String>,
}

impl Weighing<'_> {
    fn add(&mut self, kind: &'static str, what: String, peak_reserved_bytes: u64, arithmetic: String) {
        let is_enough = peak_reserved_bytes <= self.limit;
        let saves_bytes = saved_bytes(self.reserved, peak_reserved_bytes);
        self.measures.push(Measure {
            kind: kind.into(),
            what,
            peak_reserved_bytes,
            saves_bytes,
            is_enough,
            arithmetic,
        });
    }

    /// Adds the allocator setting that `memctl what-if` would recommend.
    fn setting(&mut self, version: Version) {
        let fit = self.fit;
        let texts = tried(version);
        let replayed = |conf: &Conf| fit.script().outcome(conf, Limit::None);
        let confs = texts.iter().filter_map(|text| Conf::parse(text, version).ok().map(|(conf, _)| (*text, conf)));
        let outcomes: Vec<_> = confs.map(|(text, conf)| (text, replayed(&conf))).collect();
        let baseline = replayed(fit.conf());
        let trials: Vec<_> = outcomes.iter().map(|(_, outcome)| *outcome).collect();
        match recommended(&baseline, &trials) {
            Some((chosen, _)) => {
                let (text, outcome) = outcomes[chosen];
                let reserved = outcome.counts.peak_reserved_bytes;
                let replay = format!("replayed: {} instead of {}", HumanBytes::of(reserved), HumanBytes::of(self.reserved));
                self.add("allocator_setting", format!("PYTORCH_CUDA_ALLOC_CONF={text}"), reserved, replay);
            }
            None => self.remarks.push(format!(
                "No allocator setting is among the measures: of {} that were replayed none saves enough to be worth a change.",
                trials.len()
            )),
        }
    }

    fn checkpointing(&mut self) {
        let modules = self.meaning.modules.all();
        let calls = modules::chosen(&modules, "all");
        let edited = checkpointed(self.fit.script(), &calls, self.meaning);
        if edited.calls == 0 {
            let why = "the recording shows no modules that keep something for a backward pass";
            return self.remarks.push(format!("Checkpointing is not among the measures: {why}."));
        }
        let (_, reserved) = outcome(self.fit, &edited.script);
        let share = 100.0 * edited.repeated_bytes as f64 / edited.forward_bytes.max(1) as f64;
        let arithmetic = format!(
            "replayed: {} calls give back what they keep, and {} of {} that forward passes ask for ({share:.0} %) is asked for again",
            edited.calls,
            HumanBytes::of(edited.repeated_bytes),
            HumanBytes::of(edited.forward_bytes),
        );
        self.add("checkpointing", "torch.utils.checkpoint around every block".to_owned(), reserved, arithmetic);
    }

    /// Adds the largest smaller size that suffices, else 1.
    fn smaller(&mut self, size: Option<u64>, wanted: Wanted<'_>) {
        let Some(size) = size else {
            let way = "name the number that was recorded: --job A=4";
            return self.remarks.push(format!("A smaller batch is not among the measures: {way}."));
        };
        let reserved = |number: u64| self.fit.at(number as f64, None).likely.counts.peak_reserved_bytes;
        let (mut enough, mut above) = (1, size);
        if size <= 1 || reserved(size) <= self.limit {
            return;
        }
        while above - enough > 1 && (wanted.0)() {
            let middle = u64::midpoint(enough, above);
            if reserved(middle) <= self.limit { enough = middle } else { above = middle }
        }
        let from = if self.fit.scaled().is_some() { "concluded from one recording" } else { "from two recordings" };
        let arithmetic = format!("replayed with the bytes that each request would have at {enough}, {from}");
        let bytes = reserved(enough);
        self.add("smaller_size", format!("{enough} instead of {size}"), bytes, arithmetic);
    }

    fn optimizer(&mut self, world: u32) {
        let is_state = |request: usize| self.meaning.class(request) == Class::OptimizerState;
        let script = self.fit.script();
        let live = script.peak(self.fit.conf()).live;
        let state = || live.iter().filter(|(request, _)| is_state(script.origin(*request)));
        let (blocks, bytes): (usize, u64) = (state().count(), state().map(|(request, _)| script.bytes(*request)).sum());
        if bytes == 0 {
            return self.remarks.push(
                "No optimizer state lives at the peak: other forms of it are not among the measures.".to_owned(),
            );
        }
        let in_form = |form: Form| state().map(|(request, _)| form.bytes(script.bytes(*request))).sum::<u64>();
        let replayed = |form: Form| with_state(script, self.fit.conf(), form, is_state).counts.peak_reserved_bytes;
        let said = format!("{blocks} tensors of optimizer state take {} at the peak", HumanBytes::of(bytes));
        let ranks = if world > 1 { world } else { RANKS_ASSUMED };
        let (eight, sharded) = (Form::EightBit, Form::Sharded(ranks));
        let (eight_peak, sharded_peak) = (replayed(eight), replayed(sharded));
        let eight_said = format!(
            "{said}: 4 bytes an element; in 1 byte, with 4 for each {QUANTIZED} elements, and tensors below {QUANTIZED_MIN} elements \
             as they are, {}",
            HumanBytes::of(in_form(eight)),
        );
        let sharded_said = format!("{said}: a part in {ranks} is {}", HumanBytes::of(in_form(sharded)));
        self.add("optimizer_8_bit", "an 8-bit optimizer".to_owned(), eight_peak, eight_said);
        self.add(
            "optimizer_sharded",
            format!("optimizer state sharded over {ranks} ranks"),
            sharded_peak,
            sharded_said,
        );
        self.remarks.push("Optimizer state is taken to have 4 bytes an element: a recording has bytes, not types. The temporary memory for gathering or unpacking it is not counted.".to_owned());
    }
}
