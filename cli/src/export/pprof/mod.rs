//! Live memory as a profile of pprof: `perftools.profiles.Profile`, packed with gzip.
//!
//! Guarantees: the sums of `inuse_space` and `inuse_objects` are the live bytes and blocks of the sites, also of those
//! that an answer sums up. Stacks begin with the innermost frame. Each stack, function and text is written once.
//! A number that is 0 has a unit, because readers drop a label whose text, number and unit are all 0.

mod messages;

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use memctl_answers::Frame;
use memctl_answers::format::folded::NO_STACK;
use memctl_answers::format::text::safe;
use memctl_answers::format::time;
use memctl_answers::sites::{RankSites, Site};
use prost::Message;

use messages::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

/// The frame of the sites that an answer sums up.
const FURTHER: &str = "(smaller sites)";
/// The only program of a profile.
const MAPPING: u64 = 1;

/// See the module. Takes ranks in any order.
pub struct Pprof {
    profile: Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<(u64, i64), u64>,
    job: i64,
}

impl Pprof {
    /// Begins the profile of a job.
    #[must_use]
    pub fn new(job: &str) -> Self {
        let mut new = Self {
            profile: Profile { string_table: vec![String::new()], ..Profile::default() },
            strings: HashMap::from([(String::new(), 0)]),
            functions: HashMap::new(),
            locations: HashMap::new(),
            job: 0,
        };
        new.job = new.text(job);
        for (name, unit) in [("inuse_objects", "count"), ("inuse_space", "bytes")] {
            let of = ValueType { r#type: new.text(name), unit: new.text(unit) };
            new.profile.sample_type.push(of);
        }
        new.profile.default_sample_type = new.text("inuse_space");
        new.profile.mapping.push(Mapping {
            id: MAPPING,
            filename: new.job,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
        });
        let program = new.text(&format!("written by memctl {}", env!("CARGO_PKG_VERSION")));
        new.profile.comment.push(program);
        new
    }

    /// Whether no memory was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.profile.sample.is_empty()
    }

    /// Adds the live memory of a device of a rank.
    pub fn add(&mut self, of: &RankSites) {
        self.profile.time_nanos = self.profile.time_nanos.max(number(of.at.0));
        let (at, epoch, step, exact) =
            (time::rfc3339(of.at.0), of.epoch, of.step, if of.exact { "" } else { " (not exact)" });
        let remark = format!("rank {} device {}: at {at}, epoch {epoch}, step {step}{exact}", of.rank, of.device);
        let remark = self.text(&remark);
        self.profile.comment.push(remark);
        let labels = self.labels_of(of);
        for site in &of.sites {
            self.site(site, &labels);
        }
        if let Some(further) = of.further {
            let location_id = vec![self.location(&unknown(FURTHER))];
            let value = vec![number(further.live_blocks), number(further.live_bytes)];
            self.profile.sample.push(Sample { location_id, value, label: labels });
        }
    }

    /// Writes the profile.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(self, out: &mut dyn Write) -> io::Result<()> {
        let mut packed = GzEncoder::new(out, Compression::default());
        packed.write_all(&self.profile.encode_to_vec())?;
        packed.finish()?.flush()
    }

    fn site(&mut self, site: &Site, labels: &[Label]) {
        let Site { class, owner, stack, births, live_bytes: _, live_blocks: _, site: _ } = site;
        let mut location_id: Vec<u64> = stack.iter().map(|frame| self.location(frame)).collect();
        if location_id.is_empty() {
            location_id.push(self.location(&unknown(NO_STACK)));
        }
        let mut labels = labels.to_vec();
        for (key, text) in [("class", class), ("owner", owner)] {
            labels.extend(text.as_ref().map(|text| self.label(key, text)));
        }
        for birth in births {
            let mut label = labels.clone();
            label.push(self.count("epoch", u64::from(birth.epoch)));
            let value = vec![number(birth.live_blocks), number(birth.live_bytes)];
            self.profile.sample.push(Sample { location_id: location_id.clone(), value, label });
        }
    }

    fn labels_of(&mut self, of: &RankSites) -> Vec<Label> {
        let key = self.text("job");
        let mut labels = vec![Label { key, str: self.job, ..Label::default() }];
        labels.push(self.count("rank", u64::from(of.rank)));
        labels.push(self.label("device", &format!("cuda:{}", of.device)));
        // The process's name, where the rank alone is not its name.
        if !of.process.is_empty() && of.process != format!("rank {}", of.rank) {
            labels.push(self.label("process", &of.process));
        }
        labels
    }

    fn label(&mut self, key: &str, text: &str) -> Label {
        Label { key: self.text(key), str: self.text(text), ..Label::default() }
    }

    /// A number as a label; its unit is its name.
    fn count(&mut self, key: &str, count: u64) -> Label {
        let key = self.text(key);
        Label { key, num: number(count), num_unit: key, ..Label::default() }
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        let function = if frame.function.is_empty() { "?" } else { &frame.function };
        let (name, filename) = (self.text(function), self.text(&frame.file));
        let functions = &mut self.profile.function;
        let function_id = *self.functions.entry((name, filename)).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(Function { id, name, system_name: name, filename });
            id
        });
        let line = frame.line.map_or(0, i64::from);
        let locations = &mut self.profile.location;
        *self.locations.entry((function_id, line)).or_insert_with(|| {
            let id = locations.len() as u64 + 1;
            locations.push(Location { id, mapping_id: MAPPING, line: vec![Line { function_id, line }] });
            id
        })
    }

    /// The index of a text. Control characters of a recorded name would reach the reader's terminal.
    fn text(&mut self, text: &str) -> i64 {
        let text = safe(text);
        if let Some(&index) = self.strings.get(text.as_ref()) {
            return index;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.clone().into_owned());
        self.strings.insert(text.into_owned(), index);
        index
    }
}

/// A frame without a file.
fn unknown(name: &str) -> Frame {
    Frame { function: name.to_owned(), ..Frame::default() }
}

/// A number in the format's type. It saturates, because figures come from the network.
fn number(of: u64) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_answers::sites::{Birth, Further};

    #[test]
    fn every_byte_and_block_is_in_a_sample() {
        let birth = |epoch, live_bytes, live_blocks| Birth { epoch, live_bytes, live_blocks };
        let frame = |name: &str, line| Frame { function: name.into(), file: "a.py".into(), line: Some(line) };
        let site = Site {
            class: Some("activations".into()),
            births: vec![birth(0, 100, 1), birth(3, 50, 2)],
            ..Site::new(vec![frame("inner", 3), frame("outer\u{1b}", 9)])
        };
        let no_stack = Site { births: vec![birth(0, 7, 1)], ..Site::default() };
        let further = Some(Further { sites: 2, live_bytes: 1000, live_blocks: 20 });
        let rank = RankSites { rank: 0, sites: vec![site, no_stack], further, ..RankSites::default() };
        let mut profile = Pprof::new("job");
        assert!(profile.is_empty());
        profile.add(&rank);
        let Pprof { profile, .. } = profile;
        let sum = |at: usize| profile.sample.iter().map(|sample| sample.value[at]).sum::<i64>();
        assert_eq!((sum(0), sum(1)), (24, 1157));
        let text = |index: i64| profile.string_table[index as usize].as_str();
        let stack = |sample: &Sample| -> Vec<&str> {
            let function = |id: &u64| &profile.location[*id as usize - 1].line[0].function_id;
            let name = |id: &u64| text(profile.function[*function(id) as usize - 1].name);
            sample.location_id.iter().map(name).collect()
        };
        let stacks: Vec<Vec<&str>> = profile.sample.iter().map(stack).collect();
        let with_site = vec!["inner", "outer\\u{1b}"];
        assert_eq!(stacks, [with_site.clone(), with_site, vec![NO_STACK], vec![FURTHER]]);
        let labels: Vec<(&str, &str, i64, &str)> = profile.sample[1]
            .label
            .iter()
            .map(|label| (text(label.key), text(label.str), label.num, text(label.num_unit)))
            .collect();
        let expected = [
            ("job", "job", 0, ""),
            ("rank", "", 0, "rank"),
            ("device", "cuda:0", 0, ""),
            ("class", "activations", 0, ""),
            ("epoch", "", 3, "epoch"),
        ];
        assert_eq!(labels, expected);
    }
}
