//! Servers: processes that answer requests of any length. They have no optimizer, no steps and no epochs. They are
//! generated, not recorded.
//!
//! Guarantees: the draws of a server determine its events: the weights, the memory of each request, the changing load,
//! and the pauses. The memory of a request can be key-value caches that grow with every token, caches of fixed length,
//! padded batches, states of running sequences, or latents. A server runs for five to eight minutes. Blocks are placed
//! by the caching allocator's rules.

use std::sync::Arc;

use memctl_model::{Event, Frame, StackId};

use super::arena::Arena;
use super::base::{Base, Span};
use super::draw::Draw;
use super::overlay::{Added, Change};

/// What a server does for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Generates token by token. With every token, each layer's cache is replaced by one that is a token longer.
    GrowingCache,
    /// Pads the waiting requests to a batch, and embeds the batch.
    PaddedBatch,
    /// Denoises a latent.
    Diffusion,
    /// Generates into caches of the maximum length.
    FixedCache,
    /// Runs many sequences concurrently in a pool of pages that is allocated at the start.
    Paged,
    /// Generates many samples of one prompt, in rounds, as a rollout worker does.
    Rollout,
}

impl Style {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GrowingCache => "growing caches",
            Self::PaddedBatch => "padded batches",
            Self::Diffusion => "diffusion",
            Self::FixedCache => "fixed caches",
            Self::Paged => "paged engine",
            Self::Rollout => "rollouts",
        }
    }

    /// The files and functions of a request. The outermost comes first, and the last ones belong to libraries.
    const fn frames(self) -> &'static [(&'static str, &'static str, u32)] {
        const NN: &str = "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py";
        match self {
            Self::GrowingCache => &[
                ("/srv/app/serve.py", "main", 88),
                ("/srv/app/serve.py", "handle", 61),
                ("/usr/lib/python3.11/site-packages/transformers/generation/utils.py", "generate", 2539),
                ("/usr/lib/python3.11/site-packages/transformers/generation/utils.py", "_sample", 2870),
                (NN, "_call_impl", 1784),
                ("/usr/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", "forward", 459),
            ],
            Self::PaddedBatch => &[
                ("/srv/embed/worker.py", "run", 44),
                ("/srv/embed/worker.py", "embed", 29),
                (NN, "_call_impl", 1784),
                ("/srv/embed/model.py", "forward", 73),
            ],
            Self::Diffusion => &[
                ("/srv/images/api.py", "worker", 102),
                ("/usr/lib/python3.11/site-packages/diffusers/pipelines/pipeline.py", "__call__", 1012),
                (NN, "_call_impl", 1784),
                ("/usr/lib/python3.11/site-packages/diffusers/models/unet.py", "forward", 1214),
            ],
            Self::FixedCache => &[
                ("/srv/chat/main.py", "loop", 140),
                ("/srv/chat/engine.py", "complete", 77),
                ("/srv/chat/engine.py", "decode", 52),
                (NN, "_call_impl", 1784),
                ("/srv/chat/transformer.py", "forward", 118),
            ],
            Self::Paged => &[
                ("/srv/llm/launch.py", "main", 33),
                ("/srv/llm/scheduler.py", "step", 210),
                ("/srv/llm/runner.py", "execute", 164),
                (NN, "_call_impl", 1784),
                ("/srv/llm/model.py", "forward", 91),
            ],
            Self::Rollout => &[
                ("/home/user/grpo/actor.py", "rollout", 119),
                ("/home/user/grpo/actor.py", "sample", 84),
                ("/usr/lib/python3.11/site-packages/transformers/generation/utils.py", "generate", 2539),
                (NN, "_call_impl", 1784),
                ("/usr/lib/python3.11/site-packages/transformers/models/qwen2/modeling_qwen2.py", "forward", 402),
            ],
        }
    }
}

/// The purposes of allocations within a request.
#[derive(Clone, Copy)]
enum Subject {
    Weights,
    Input,
    Keys,
    Values,
    Hidden,
    Attention,
    Output,
}

impl Subject {
    const ALL: [(Self, &'static str, u32); 7] = [
        (Self::Weights, "load", 12),
        (Self::Input, "to", 31),
        (Self::Keys, "update", 119),
        (Self::Values, "update", 120),
        (Self::Hidden, "linear", 134),
        (Self::Attention, "scaled_dot_product_attention", 81),
        (Self::Output, "sample", 208),
    ];
}

const BEGIN_NS: u64 = 1_767_225_600_000_000_000;
const SECOND_NS: f64 = 1e9;
/// This address is below all addresses that the benchmark adds.
const FIRST_ADDRESS: u64 = 1 << 45;

struct Server<'a> {
    draw: Draw,
    arena: Arena,
    events: Vec<Event>,
    stacks: &'a [Vec<Frame>],
    blocks: u32,
    now_ns: f64,
}

impl Server<'_> {
    fn keep(&mut self, who: Subject, bytes: u64) -> Added {
        let block = Added(self.blocks);
        self.blocks += 1;
        let stack = StackId(who as u32 + 1);
        debug_assert!((stack.0 as usize) <= self.stacks.len());
        let events = &mut self.events;
        let change = Change::Keep { size: bytes.max(4), stack };
        self.arena.change(block, change, self.now_ns as u64, &mut |event| events.push(event));
        block
    }

    fn drop(&mut self, block: Added) {
        let events = &mut self.events;
        self.arena.change(block, Change::Drop, self.now_ns as u64, &mut |event| events.push(event));
    }

    fn brief(&mut self, who: Subject, bytes: u64) {
        let block = self.keep(who, bytes);
        self.drop(block);
    }

    fn pass(&mut self, seconds: f64) {
        self.now_ns += seconds * SECOND_NS;
    }
}

/// The stacks of a style, innermost frame first, in the order of [`Subject`].
fn stacks(style: Style) -> Arc<Vec<Vec<Frame>>> {
    let frame =
        |&(file, function, line): &(&str, &str, u32)| Frame { function: function.into(), file: file.into(), line };
    let stack = |(who, function, line): &(Subject, &str, u32)| {
        let frames = style.frames();
        // The program itself allocates weights and inputs. The model allocates the rest.
        let depth = match who {
            Subject::Weights => 1,
            Subject::Input | Subject::Output => 2,
            _ => frames.len(),
        };
        let mut stack: Vec<Frame> = frames[..depth.min(frames.len())].iter().map(frame).collect();
        let file = match who {
            Subject::Keys | Subject::Values => "/usr/lib/python3.11/site-packages/transformers/cache_utils.py",
            _ => "/usr/lib/python3.11/site-packages/torch/nn/functional.py",
        };
        if !matches!(who, Subject::Weights) {
            stack.push(frame(&(file, function, *line)));
        }
        stack.reverse();
        stack
    };
    Arc::new(Subject::ALL.iter().map(stack).collect())
}

/// The arrival of requests: a rate per second that varies in waves, with occasional pauses.
struct Load {
    rate: f64,
    wave: f64,
    period: f64,
    pause: f64,
}

/// Makes a server that runs for five to eight minutes.
#[must_use]
pub fn server(style: Style, seed: u64) -> Base {
    let stacks = stacks(style);
    let mut draw = Draw::fork(seed, "server");
    let load = Load {
        rate: draw.real(0.8_f64.ln(), 4.0_f64.ln()).exp(),
        wave: draw.real(0.0, 0.8),
        period: draw.real(20.0, 120.0),
        pause: if draw.chance(0.3) { draw.real(5.0, 25.0) } else { 0.0 },
    };
    let seconds = draw.real(300.0, 480.0);
    let mut server = Server {
        draw,
        arena: Arena::from(FIRST_ADDRESS),
        events: Vec::new(),
        stacks: &stacks,
        blocks: 0,
        now_ns: BEGIN_NS as f64,
    };
    let unit = server.draw.log_int(256, 8192);
    for _ in 0..server.draw.int(12, 40) {
        let bytes = server.draw.log_int(1 << 16, 64 << 20);
        server.keep(Subject::Weights, bytes);
        server.pass(0.01);
    }
    if style == Style::Paged {
        (0..8).for_each(|_| {
            server.keep(Subject::Keys, 256 << 20);
        });
    }
    let end_ns = BEGIN_NS as f64 + seconds * SECOND_NS;
    let (mut steps, mut releases) = (Vec::new(), Vec::new());
    while server.now_ns < end_ns {
        wait(&mut server, &load);
        if style == Style::Paged {
            paged(&mut server, unit, &mut steps, &mut releases);
        } else {
            let begin = server.events.len();
            let held = request(&mut server, style, unit);
            let release = server.events.len();
            held.into_iter().for_each(|block| server.drop(block));
            let end = server.events.len().saturating_sub(1);
            steps.push(Span { begin, end });
            releases.push(release);
        }
    }
    let events = server.events;
    let mut base = Base::made(events, stacks.clone(), steps);
    base.releases = releases;
    base.epochs = twentieths(&base.steps);
    base
}

/// The run in twenty parts. They are used in place of epochs.
#[must_use]
pub fn twentieths(steps: &[Span]) -> Vec<Span> {
    let pieces = steps.chunks((steps.len() / 20).max(1));
    pieces.filter_map(|piece| Some(Span { begin: piece.first()?.begin, end: piece.last()?.end })).collect()
}

fn wait(server: &mut Server<'_>, load: &Load) {
    let seconds = (server.now_ns - BEGIN_NS as f64) / SECOND_NS;
    let wave = 1.0 + load.wave * (seconds / load.period * std::f64::consts::TAU).sin();
    let gap = -(1.0 - server.draw.unit()).ln() / (load.rate * wave.max(0.05));
    let pause = if load.pause > 0.0 && server.draw.chance(0.004) { load.pause } else { 0.0 };
    server.pass(gap.min(15.0) + pause);
}

/// Generates one request or one batch of requests. Returns the blocks that it still holds when its response is ready.
fn request(server: &mut Server<'_>, style: Style, unit: u64) -> Vec<Added> {
    let length = server.draw.log_int(8, 1024);
    let mut held = vec![server.keep(Subject::Input, length * 8)];
    let layers = 2 + unit % 3;
    match style {
        Style::GrowingCache | Style::Rollout => {
            let samples = if style == Style::Rollout { server.draw.int(4, 16) } else { 1 };
            let tokens = server.draw.log_int(3, 16);
            let mut caches: Vec<(Added, Added)> = Vec::new();
            for _ in 0..layers {
                server.brief(Subject::Attention, samples * length * unit);
                let (keys, values) = (samples * length * unit, samples * length * unit);
                caches.push((server.keep(Subject::Keys, keys), server.keep(Subject::Values, values)));
            }
            for token in 1..=tokens {
                server.pass(0.002);
                for cache in &mut caches {
                    let bytes = samples * (length + token) * unit;
                    for (who, old) in [(Subject::Keys, &mut cache.0), (Subject::Values, &mut cache.1)] {
                        let longer = server.keep(who, bytes);
                        server.drop(std::mem::replace(old, longer));
                    }
                    server.brief(Subject::Hidden, samples * unit * 2);
                }
            }
            held.extend(caches.into_iter().flat_map(|(keys, values)| [keys, values]));
        }
        Style::FixedCache => {
            let caches = (0..2 * layers).map(|index| {
                let who = if index % 2 == 0 { Subject::Keys } else { Subject::Values };
                server.keep(who, 1024 * unit)
            });
            held.extend(caches.collect::<Vec<_>>());
            for _ in 0..server.draw.log_int(3, 16) {
                server.pass(0.002);
                for _ in 0..layers {
                    server.brief(Subject::Attention, length * 64);
                    server.brief(Subject::Hidden, unit * 2);
                }
            }
        }
        Style::Diffusion => {
            held.push(server.keep(Subject::Hidden, unit * 64));
            for _ in 0..server.draw.int(4, 20) {
                server.pass(0.01);
                let down: Vec<Added> =
                    (0..layers).map(|layer| server.keep(Subject::Hidden, (unit * 256) >> layer)).collect();
                server.brief(Subject::Attention, length * unit);
                down.into_iter().rev().for_each(|block| server.drop(block));
            }
        }
        Style::PaddedBatch | Style::Paged => {
            let batch = server.draw.int(1, 16);
            let mut hidden = server.keep(Subject::Hidden, batch * length * unit);
            for _ in 0..2 * layers {
                server.brief(Subject::Attention, batch * length * 64);
                let next = server.keep(Subject::Hidden, batch * length * unit);
                server.drop(std::mem::replace(&mut hidden, next));
            }
            server.pass(0.01);
            held.push(hidden);
        }
    }
    held.push(server.keep(Subject::Output, length * 4));
    held
}

/// Generates a number of concurrent sequences that end one after the other. Each holds a small state of its own.
fn paged(server: &mut Server<'_>, unit: u64, steps: &mut Vec<Span>, releases: &mut Vec<usize>) {
    let count = server.draw.int(1, 6) as usize;
    let mut running: Vec<(usize, Vec<Added>, u64)> = Vec::new();
    let mut waiting = count;
    while waiting > 0 || !running.is_empty() {
        if waiting > 0 {
            waiting -= 1;
            let begin = server.events.len();
            let length = server.draw.log_int(8, 1024);
            let state = vec![server.keep(Subject::Input, length * 8), server.keep(Subject::Output, unit * 4)];
            let tokens = server.draw.log_int(3, 24);
            running.push((begin, state, tokens));
        }
        server.pass(0.004);
        let batch = running.len() as u64;
        server.brief(Subject::Hidden, batch * unit * 16);
        server.brief(Subject::Attention, batch * unit * 4);
        server.brief(Subject::Output, batch * 128_000);
        running.iter_mut().for_each(|(.., left)| *left -= 1);
        while let Some(done) = running.iter().position(|(.., left)| *left == 0) {
            let (begin, state, _) = running.swap_remove(done);
            releases.push(server.events.len());
            state.into_iter().for_each(|block| server.drop(block));
            steps.push(Span { begin, end: server.events.len().saturating_sub(1) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_repeat_last_minutes_and_give_everything_back() {
        let styles = [
            Style::GrowingCache,
            Style::PaddedBatch,
            Style::Diffusion,
            Style::FixedCache,
            Style::Paged,
            Style::Rollout,
        ];
        for style in styles {
            let base = server(style, 7);
            let again = server(style, 7);
            assert_eq!(base.moments.len(), again.moments.len());
            let seconds = (base.time_ns(base.moments.len() - 1) - base.time_ns(0)) as f64 / 1e9;
            assert!((250.0..600.0).contains(&seconds), "{style:?}: {seconds} s");
            assert!(base.steps.len() > 100, "{style:?}: {} requests", base.steps.len());
            assert!(base.steps.is_sorted_by_key(|span| span.end));
            assert!((0..base.steps.len()).all(|step| base.held_to_the_end(step).count() >= 1), "{style:?}");
            let request = base.steps[0].begin;
            assert!(base.lives.iter().filter(|life| life.born >= request).all(|life| life.died.is_some()));
        }
    }
}
