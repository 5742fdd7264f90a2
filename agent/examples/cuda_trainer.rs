//! A trainer written in Rust on a real GPU, with cudarc, that records its device memory with memctl.
//!
//! `cargo run -p memctl-agent --features cuda --example cuda_trainer` fits a line to 64 batches of points in 4 epochs.
//! It streams a job `cuda-trainer` to the daemon at `MEMCTL_DAEMON`. `memctl query --job cuda-trainer` then shows it.
//! With `--leak`, each epoch leaks a mebibyte, for memctl to find. `--without-kernels` leaves out the arithmetic, for a
//! device that only has memory. The program fails when it did not find the line, or when the daemon did not store
//! everything.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaFunction, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use memctl_agent::cuda::{CudaAgent, Recorded, RecordedStream};
use memctl_agent::{AgentConfig, Daemon};
use memctl_model::{Phase, SessionId, SessionInfo};

/// A kernel that adds the gradient of the squared error of `y = w x + b` over a batch, and the error itself, to `sums`.
/// It uses one thread per point.
const GRADIENT: &str = "
.version 6.4
.target sm_75
.address_size 64
.visible .entry gradient(
    .param .u64 line, .param .u64 xs, .param .u64 ys, .param .u64 sums, .param .u32 count)
{
    .reg .pred %outside;
    .reg .b32 %block, %threads, %thread, %point, %count;
    .reg .b64 %line, %xs, %ys, %sums, %offset;
    .reg .f32 %w, %b, %x, %y, %error, %slope, %square;

    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %point, %block, %threads, %thread;
    ld.param.u32 %count, [count];
    setp.ge.u32 %outside, %point, %count;
    @%outside bra DONE;

    ld.param.u64 %line, [line];
    cvta.to.global.u64 %line, %line;
    ld.param.u64 %xs, [xs];
    cvta.to.global.u64 %xs, %xs;
    ld.param.u64 %ys, [ys];
    cvta.to.global.u64 %ys, %ys;
    ld.param.u64 %sums, [sums];
    cvta.to.global.u64 %sums, %sums;
    mul.wide.u32 %offset, %point, 4;
    add.u64 %xs, %xs, %offset;
    add.u64 %ys, %ys, %offset;

    ld.global.f32 %w, [%line];
    ld.global.f32 %b, [%line+4];
    ld.global.f32 %x, [%xs];
    ld.global.f32 %y, [%ys];
    fma.rn.f32 %error, %w, %x, %b;
    sub.f32 %error, %error, %y;
    mul.f32 %slope, %error, %x;
    mul.f32 %square, %error, %error;
    red.global.add.f32 [%sums], %slope;
    red.global.add.f32 [%sums+4], %error;
    red.global.add.f32 [%sums+8], %square;
DONE:
    ret;
}
";

/// The line that the training has to find.
const TRUE_LINE: [f32; 2] = [1.5, -0.25];
const EPOCHS: u32 = 4;
const STEPS: u64 = 64;
const POINTS: u32 = 4096;
const RATE: f32 = 0.5;
/// Number of floats of a leaked buffer (a mebibyte).
const KEPT: usize = 1 << 18;

type Failure = Box<dyn std::error::Error>;

/// The options of the command line.
#[derive(Default)]
struct Options {
    leak: bool,
    without_kernels: bool,
    job: Option<String>,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--leak" => options.leak = true,
            "--without-kernels" => options.without_kernels = true,
            "--job" => options.job = Some(words.next().ok_or("--job takes a name")?),
            other => return Err(format!("{other} is not known: [--job NAME] [--leak] [--without-kernels]").into()),
        }
    }
    Ok(options)
}

fn session(job: String) -> Result<SessionInfo, Failure> {
    let mut id = [0; 16];
    getrandom::fill(&mut id)?;
    Ok(SessionInfo {
        world_size: Some(1),
        pid: Some(std::process::id()),
        framework: Some("cudarc".into()),
        // The devices are filled in from the contexts.
        ..SessionInfo::live(SessionId(id), job, memctl_agent::now_ns())
    })
}

/// Points on the line, different for every step.
fn batch(step: u64) -> (Vec<f32>, Vec<f32>) {
    let [w, b] = TRUE_LINE;
    // A linear congruential generator is good enough: any spread over -1 to 1 will do.
    let mut state = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let xs: Vec<f32> = (0..POINTS)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        })
        .collect();
    let ys = xs.iter().map(|x| w * x + b).collect();
    (xs, ys)
}

/// The model, which is two floats on the device, and the kernels that improve it.
struct Trainer {
    stream: RecordedStream,
    gradient: Option<CudaFunction>,
    line: Recorded<f32>,
}

impl Trainer {
    /// Makes one step of gradient descent. Returns the mean squared error.
    fn step(&mut self, step: u64) -> Result<f32, DriverError> {
        let (xs, ys) = batch(step);
        let xs = self.stream.clone_htod(&xs)?;
        let ys = self.stream.clone_htod(&ys)?;
        let mut sums = self.stream.alloc_zeros::<f32>(3)?;
        if let Some(gradient) = &self.gradient {
            let mut launch = self.stream.launch_builder(gradient);
            launch.arg(&*self.line).arg(&*xs).arg(&*ys).arg(&mut *sums).arg(&POINTS);
            // SAFETY: the kernel takes these five arguments. It uses `POINTS` floats of `xs` and `ys`, 2 of `line` and
            // 3 of `sums`.
            unsafe { launch.launch(LaunchConfig::for_num_elems(POINTS)) }?;
        }
        let sums = self.stream.clone_dtoh(&*sums)?;
        let mean = |sum: f32| sum / POINTS as f32;
        let mut line = self.stream.clone_dtoh(&*self.line)?;
        line[0] -= RATE * mean(sums[0]);
        line[1] -= RATE * mean(sums[1]);
        self.stream.memcpy_htod(&line, &mut *self.line)?;
        Ok(mean(sums[2]))
    }
}

fn train(memctl: &CudaAgent, context: &Arc<CudaContext>, options: &Options) -> Result<(), Failure> {
    let stream = memctl.stream(&context.default_stream());
    let gradient = match options.without_kernels {
        true => None,
        false => Some(context.load_module(Ptx::from_src(GRADIENT))?.load_function("gradient")?),
    };
    let line = stream.clone_htod(&[0.0_f32, 0.0])?;
    let mut trainer = Trainer { stream: stream.clone(), gradient, line };
    let mut history = Vec::new();
    for epoch in 0..EPOCHS {
        memctl.epoch_begin(epoch);
        memctl.phase_begin(Phase::Train);
        let mut error = 0.0;
        for step in u64::from(epoch) * STEPS..u64::from(epoch + 1) * STEPS {
            memctl.step_begin(step);
            error = trainer.step(step)?;
            memctl.step_end(step);
        }
        memctl.phase_end(Phase::Train);
        if options.leak {
            // This is the leak: every epoch leaves a buffer behind.
            history.push(stream.alloc_zeros::<f32>(KEPT)?);
        }
        memctl.epoch_end(epoch);
        println!("epoch {epoch}: mean squared error {error:.3e}");
    }
    let found = stream.clone_dtoh(&*trainer.line)?;
    println!("y = {:.4} x + {:.4}, {} buffers kept", found[0], found[1], history.len());
    let close = found.iter().zip(TRUE_LINE).all(|(found, truth)| (found - truth).abs() < 1e-3);
    if !options.without_kernels && !close {
        return Err(format!("the line is y = {} x + {}", TRUE_LINE[0], TRUE_LINE[1]).into());
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let options = options()?;
    let daemon = std::env::var("MEMCTL_DAEMON").unwrap_or_else(|_| "http://127.0.0.1:7717".into());
    let context = CudaContext::new(0)?;
    let job = options.job.clone().unwrap_or_else(|| "cuda-trainer".into());
    let config = AgentConfig::new(session(job)?, Daemon::Address(daemon.into()));
    let memctl = CudaAgent::start(config, std::slice::from_ref(&context))?;
    let trained = train(&memctl, &context, &options);
    let failure = trained.as_ref().err().map(ToString::to_string);
    let outcome = memctl.stop(failure, Duration::from_secs(10)).ok_or("the session had ended")?;
    trained?;
    let counts = outcome.counts;
    println!("{} events, {} stored, {} dropped", counts.produced, counts.stored, counts.dropped);
    if !outcome.delivered {
        return Err(outcome.refused.unwrap_or_else(|| "the daemon was not reached in time".into()).into());
    }
    Ok(())
}
