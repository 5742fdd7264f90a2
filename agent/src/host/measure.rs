//! Measures every trainer about once a second, from one thread: device memory by owner, utilisation, resident bytes.
//!
//! A trainer that is ending is no longer measured, so that the last figures are those of its work.
//!
//! Guarantees: neither a trainer nor its delivery waits for a measurement. Without the driver's figures, the kernel's
//! are still sent.

use std::sync::Arc;

use super::{Shared, trainer::Trainer, wait};
use crate::clock::now_ns;
use crate::sample::sampler::{Sampler, Watched};

/// Measures until the host closes.
pub(super) fn run(shared: &Shared) {
    // Opening the driver's library may take seconds and wakes the devices, so it waits until there is a trainer to
    // measure.
    let mut sampler = None;
    loop {
        if let [true] = wait::ready([shared.closing.fd()], Some(shared.config.measure_every)) {
            return;
        }
        let trainers: Vec<Arc<Trainer>> =
            shared.registry().recording.values().filter(|trainer| trainer.is_running()).cloned().collect();
        let watched: Vec<(&Arc<Trainer>, Watched)> = trainers
            .iter()
            .filter_map(|trainer| Some((trainer, Watched { process: trainer.key()?, devices: trainer.devices() })))
            .collect();
        if watched.is_empty() {
            continue;
        }
        let sampler = sampler.get_or_insert_with(|| {
            let sampler = Sampler::open();
            if let Some(reason) = sampler.unavailable() {
                tracing::info!(%reason, "no figures of devices from the driver");
            }
            sampler
        });
        let (trainers, watched): (Vec<_>, Vec<_>) = watched.into_iter().unzip();
        for (trainer, samples) in trainers.into_iter().zip(sampler.sample(&watched, now_ns())) {
            trainer.add(samples);
        }
    }
}
