//! Reading snapshots: memctl against Python's own `pickle.load`, in time and peak memory.
//!
//! A real recording's events are repeated with shifted times until the file has the wanted size, in the opcodes and
//! with the sharing of CPython's pickler (protocol 4). Guarantees: both sides read the same file, one after the other,
//! from the page cache; memory is the peak of the whole process. Refuses to report a run in which the two disagree
//! about the number of events.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use memctl_model::{Action, BlockUse, Event, MarkKind, Phase, SegmentKind};
use memctl_snapshot::{Recording, load};

/// Loads a pickle and prints seconds, peak KiB and events. The peak is the process's own: `ru_maxrss` would include its
/// parent.
const PYTHON: &str = "
import pickle, sys, time
begun = time.perf_counter()
with open(sys.argv[1], 'rb') as f: snapshot = pickle.load(f)
seconds = time.perf_counter() - begun
peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))
print(seconds, peak, sum(len(trace) for trace in snapshot['device_traces']))
";

/// One side's result.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// Seconds, the median of the runs.
    pub seconds: f64,
    /// Peak resident bytes, the highest of the runs.
    pub peak_bytes: u64,
    /// Events read.
    pub events: u64,
}

/// One file's results.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Bytes of the pickle.
    pub file_bytes: u64,
    /// `memctl`.
    pub memctl: Side,
    /// `pickle.load`; `None` where there is no `python3`.
    pub python: Option<Side>,
}

/// Makes a file of each size (bytes) from `recording`, reads it `runs` times with each side, and returns a table.
///
/// # Errors
/// The recording cannot be read, `work_dir` cannot be written, or the sides disagree.
pub fn run(recording: &Path, work_dir: &Path, sizes: &[u64], runs: usize) -> io::Result<String> {
    let source = load(recording, &mut |_| {}).map_err(io::Error::other)?;
    let mut table =
        String::from("| file MB | events | memctl s | MB/s | peak / file | pickle.load s | peak / file | faster |\n");
    table.push_str("|---|---|---|---|---|---|---|---|\n");
    for &size in sizes {
        let path = work_dir.join(format!("import-{size}.pickle"));
        let mut out = BufWriter::new(File::create(&path)?);
        write_snapshot(&source, size, &mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        let row = compare(&path, runs);
        fs::remove_file(&path)?;
        render(&mut table, &row?);
    }
    Ok(table)
}

fn render(table: &mut String, row: &Row) {
    let (mb, ratio) = (row.file_bytes as f64 / 1e6, |bytes: u64| bytes as f64 / row.file_bytes as f64);
    let ours = row.memctl;
    let theirs = row.python.map_or_else(
        || "- | - | -".into(),
        |python| {
            format!("{:.2} | {:.2} | {:.1}x", python.seconds, ratio(python.peak_bytes), python.seconds / ours.seconds)
        },
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        table,
        "| {mb:.0} | {} | {:.2} | {:.0} | {:.2} | {theirs} |",
        ours.events,
        ours.seconds,
        mb / ours.seconds,
        ratio(ours.peak_bytes)
    );
}

fn compare(path: &Path, runs: usize) -> io::Result<Row> {
    let file_bytes = fs::metadata(path)?.len();
    let memctl = median((0..runs).map(|_| with_memctl(path)).collect::<io::Result<_>>()?);
    let has_python = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    let python = match has_python {
        true => Some(median((0..runs).map(|_| with_python(path)).collect::<io::Result<_>>()?)),
        false => None,
    };
    if let Some(python) = python
        && python.events != memctl.events
    {
        return Err(io::Error::other(format!("memctl read {} events, Python {}", memctl.events, python.events)));
    }
    Ok(Row { file_bytes, memctl, python })
}

fn median(mut sides: Vec<Side>) -> Side {
    sides.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let middle = sides[sides.len() / 2];
    Side { peak_bytes: sides.iter().map(|side| side.peak_bytes).max().unwrap_or(0), ..middle }
}

fn with_memctl(path: &Path) -> io::Result<Side> {
    // 5 resets the process's peak to its current memory. What earlier runs left counts, so the figure may be too high.
    fs::write("/proc/self/clear_refs", "5")?;
    let begun = Instant::now();
    let recording = load(path, &mut |_| {}).map_err(io::Error::other)?;
    let seconds = begun.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status")?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    Ok(Side { seconds, peak_bytes: peak.unwrap_or(0) * 1024, events: recording.events() })
}

fn with_python(path: &Path) -> io::Result<Side> {
    let output = Command::new("python3").arg("-c").arg(PYTHON).arg(path).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<f64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    match fields[..] {
        [seconds, peak_kib, events] => Ok(Side { seconds, peak_bytes: peak_kib as u64 * 1024, events: events as u64 }),
        _ => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Writes a snapshot of at least `size` bytes that repeats a recording; returns its number of events.
///
/// # Errors
/// The writer's; or the recording has no events.
pub fn write_snapshot(recording: &Recording, size: u64, out: &mut dyn Write) -> io::Result<u64> {
    let device = recording.devices.iter().find(|device| !device.events.is_empty());
    let device = device.ok_or_else(|| io::Error::other("the recording has no events to repeat"))?;
    let mut pickle = Pickler::new(out, recording)?;
    pickle.bytes(b"}\x94(")?;
    pickle.text("segments")?;
    pickle.list(device.final_segments.iter(), |pickle, segment| {
        pickle.dict_begin()?;
        pickle.pair("device", u64::from(device.device.0))?;
        pickle.pair("address", segment.addr)?;
        pickle.pair("total_size", segment.size)?;
        pickle.pair("stream", segment.stream)?;
        pickle.text("segment_type")?;
        pickle.text(if segment.kind == SegmentKind::Small { "small" } else { "large" })?;
        pickle.text("blocks")?;
        pickle.list(segment.blocks.iter(), |pickle, block| {
            pickle.dict_begin()?;
            pickle.pair("address", block.addr)?;
            pickle.pair("size", block.size)?;
            pickle.pair("requested_size", block.requested)?;
            pickle.text("state")?;
            pickle.text(match block.usage {
                BlockUse::Inactive => "inactive",
                BlockUse::Allocated => "active_allocated",
                BlockUse::PendingFree => "active_pending_free",
            })?;
            pickle.text("frames")?;
            pickle.frames(block.stack.0, false)?;
            pickle.bytes(b"u")
        })?;
        pickle.bytes(b"u")
    })?;
    // Rounds are one microsecond apart, so that times stay in order.
    let span_us = (recording.ended_ns - recording.started_ns) / 1000 + 1;
    let (mut events, mut rounds) = (0, 0);
    pickle.text("device_traces")?;
    pickle.bytes(b"]\x94(]\x94(")?;
    while pickle.written < size {
        let mut before: Option<Event> = None;
        for event in device.events.iter() {
            pickle.event(&event, before, rounds * span_us)?;
            events += 1;
            if events % 1000 == 0 {
                pickle.bytes(b"e(")?;
            }
            before = Some(event);
        }
        rounds += 1;
    }
    pickle.bytes(b"ee")?;
    pickle.text("external_annotations")?;
    pickle.annotations(recording, u64::from(device.device.0))?;
    pickle.bytes(b"u.")?;
    pickle.flush_frame()?;
    Ok(events)
}

/// Writes the opcodes that CPython's pickler writes for a snapshot.
struct Pickler<'a> {
    out: &'a mut dyn Write,
    recording: &'a Recording,
    /// The current frame of protocol 4.
    frame: Vec<u8>,
    written: u64,
    memo_len: u32,
    texts: HashMap<String, u32>,
    frame_memos: HashMap<u32, u32>,
    last_list: u32,
}

/// CPython ends a frame when it has this many bytes.
const FRAME_BYTES: usize = 64 << 10;

impl<'a> Pickler<'a> {
    fn new(out: &'a mut dyn Write, recording: &'a Recording) -> io::Result<Self> {
        out.write_all(&[0x80, 4])?;
        Ok(Self {
            out,
            recording,
            frame: Vec::with_capacity(FRAME_BYTES * 2),
            written: 2,
            memo_len: 0,
            texts: HashMap::new(),
            frame_memos: HashMap::new(),
            last_list: 0,
        })
    }

    /// Opcodes; each 0x94 in them is a MEMOIZE.
    fn bytes(&mut self, opcodes: &[u8]) -> io::Result<()> {
        self.memo_len += opcodes.iter().filter(|&&byte| byte == 0x94).count() as u32;
        self.raw(opcodes)
    }

    fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frame.extend_from_slice(bytes);
        if self.frame.len() >= FRAME_BYTES { self.flush_frame() } else { Ok(()) }
    }

    fn flush_frame(&mut self) -> io::Result<()> {
        self.out.write_all(&[0x95])?;
        self.out.write_all(&(self.frame.len() as u64).to_le_bytes())?;
        self.out.write_all(&self.frame)?;
        self.written += self.frame.len() as u64 + 9;
        self.frame.clear();
        Ok(())
    }

    fn get(&mut self, index: u32) -> io::Result<()> {
        match u8::try_from(index) {
            Ok(index) => self.raw(&[b'h', index]),
            Err(_) => {
                let [a, b, c, d] = index.to_le_bytes();
                self.raw(&[b'j', a, b, c, d])
            }
        }
    }

    /// Writes a string that Python shares: in full the first time, then as a reference.
    fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&index) = self.texts.get(text) {
            return self.get(index);
        }
        self.texts.insert(text.to_owned(), self.memo_len);
        let mut opcodes = match u8::try_from(text.len()) {
            Ok(len) => vec![0x8c, len],
            Err(_) => [&b"X"[..], &(text.len() as u32).to_le_bytes()].concat(),
        };
        opcodes.extend_from_slice(text.as_bytes());
        self.raw(&opcodes)?;
        self.bytes(&[0x94])
    }

    fn int(&mut self, n: u64) -> io::Result<()> {
        let le = n.to_le_bytes();
        match n {
            0..=0xff => self.raw(&[b'K', le[0]]),
            0x100..=0xffff => self.raw(&[b'M', le[0], le[1]]),
            0x1_0000..=0x7fff_ffff => self.raw(&[b'J', le[0], le[1], le[2], le[3]]),
            _ => {
                // In two's complement, a number with a leading one needs another byte.
                let len = (64 - n.leading_zeros() as usize) / 8 + 1;
                let mut opcodes = vec![0x8a, len as u8];
                opcodes.extend((0..len).map(|at| le.get(at).copied().unwrap_or(0)));
                self.raw(&opcodes)
            }
        }
    }

    fn pair(&mut self, key: &str, value: u64) -> io::Result<()> {
        self.text(key)?;
        self.int(value)
    }

    fn dict_begin(&mut self) -> io::Result<()> {
        self.bytes(b"}\x94(")
    }

    /// A list in batches of a thousand.
    fn list<T>(
        &mut self,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.bytes(b"]\x94(")?;
        for (at, item) in items.enumerate() {
            if at > 0 && at % 1000 == 0 {
                self.bytes(b"e(")?;
            }
            write(self, item)?;
        }
        self.bytes(b"e")
    }

    /// The list of a stack's frames: torch makes one list per captured stack, and two consecutive events may share it.
    fn frames(&mut self, stack: u32, shared: bool) -> io::Result<()> {
        if shared {
            return self.get(self.last_list);
        }
        self.last_list = self.memo_len;
        self.bytes(b"]\x94")?;
        let recording = self.recording;
        let Some(frames) = stack.checked_sub(1).and_then(|at| recording.stacks.get(at as usize)) else { return Ok(()) };
        self.bytes(b"(")?;
        for &frame in frames {
            if let Some(&index) = self.frame_memos.get(&frame.0) {
                self.get(index)?;
                continue;
            }
            let Some(known) = recording.frames.get(frame.0 as usize) else { continue };
            self.frame_memos.insert(frame.0, self.memo_len);
            self.dict_begin()?;
            self.text("name")?;
            self.text(&known.function)?;
            self.text("filename")?;
            self.text(&known.file)?;
            self.pair("line", u64::from(known.line))?;
            self.bytes(b"u")?;
        }
        self.bytes(b"e")
    }

    fn event(&mut self, event: &Event, before: Option<Event>, shift_us: u64) -> io::Result<()> {
        let follows = |action| before.is_some_and(|before| before.action == action && before.stack == event.stack);
        let shared = match event.action {
            Action::FreeCompleted => follows(Action::FreeRequested),
            Action::Alloc => follows(Action::SegmentAlloc),
            _ => false,
        };
        self.dict_begin()?;
        self.text("action")?;
        self.text(event.action.name())?;
        self.pair(if event.action == Action::Oom { "device_free" } else { "addr" }, event.addr)?;
        self.pair("size", event.size)?;
        self.pair("stream", event.stream)?;
        self.pair("time_us", event.time_ns / 1000 + shift_us)?;
        self.text("compile_context")?;
        self.text("N/A")?;
        self.text("user_metadata")?;
        // Torch makes a new empty string each time.
        self.bytes(b"\x8c\x00\x94")?;
        self.text("frames")?;
        self.frames(event.stack.0, shared)?;
        self.bytes(b"u")
    }

    /// The marks of the first round as annotations.
    fn annotations(&mut self, recording: &Recording, device: u64) -> io::Result<()> {
        self.list(recording.marks.iter(), |pickle, mark| {
            let (name, begins) = named(&mark.kind);
            pickle.dict_begin()?;
            pickle.text("stage")?;
            pickle.text(if begins { "START" } else { "END" })?;
            pickle.text("name")?;
            pickle.text(&name)?;
            pickle.pair("device", device)?;
            pickle.pair("time_us", mark.time_ns / 1000)?;
            pickle.bytes(b"u")
        })
    }
}

/// The annotation that a mark came from.
fn named(kind: &MarkKind) -> (String, bool) {
    let phase = |phase: &Phase| match phase {
        Phase::Optimizer => "Optimizer.step#SGD.step".to_owned(),
        phase => phase.name().to_owned(),
    };
    match kind {
        MarkKind::EpochBegin(n) => (format!("epoch#{n}"), true),
        MarkKind::EpochEnd(n) => (format!("epoch#{n}"), false),
        MarkKind::StepBegin(n) => (format!("step#{n}"), true),
        MarkKind::StepEnd(n) => (format!("step#{n}"), false),
        MarkKind::PhaseBegin(p) => (phase(p), true),
        MarkKind::PhaseEnd(p) => (phase(p), false),
        MarkKind::RegionBegin(name) | MarkKind::Note(name) => (name.clone(), true),
        MarkKind::RegionEnd(name) => (name.clone(), false),
        MarkKind::WindowEnd(n) => (format!("window#{n}"), false),
    }
}
