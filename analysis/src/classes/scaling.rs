//! Finds the requests that grow with the batch, from a recording at one batch size. The result is derived from the
//! purpose of each request.
//!
//! Guarantees: parameters, gradients, optimizer state and workspaces are fixed, and so are sizes that are not
//! divisible by the batch. A size that equals a parameter's, in its own precision or in half of it, is in doubt. If
//! forward passes leave more blocks of such a size behind than there are parameters of it, these blocks are probably
//! not made from a parameter. A library's buffer whose size happens to be divisible is taken to grow. [`copies`] finds
//! the requests that are copies of weights in half their precision.

use std::collections::{HashMap, HashSet};

use memctl_model::{Phase, StackId};

use super::rules::Says;
use super::{Class, Classifier, MemoryRequest, Stay};

/// Whether a request grows with the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// It does not grow.
    Fixed,
    /// It grows in proportion to the batch.
    Proportional,
    /// It probably does not grow.
    PerhapsFixed,
    /// It probably grows.
    PerhapsProportional,
}

/// Requests below this size do not affect any peak, and they often hold the elements of a shape.
const TINY_BYTES: u64 = 512;
/// Minimum size of a weight's copy; a smaller one does not affect any peak.
const COPY_BYTES_MIN: u64 = 1 << 16;

impl Classifier<'_> {
    /// Whether each request grows with the batch. `batch` is the recorded batch size; `classes` are those of
    /// [`Self::requests`].
    #[must_use]
    pub fn scalings(&mut self, asked: &[MemoryRequest], classes: &[Class], batch: u64) -> Vec<Scaling> {
        let of_parameter: HashSet<u64> = self.parameter_sizes.iter().flat_map(|&bytes| [bytes, bytes / 2]).collect();
        let piled_up = self.piled_up(asked, classes);
        let scaling = |(one, class): (&MemoryRequest, &Class)| {
            let within_optimizer = one.phase == Some(Phase::Optimizer)
                || matches!(self.reading(one.stack).says, Says::Optimizer | Says::Module);
            match class {
                Class::Parameters | Class::Gradients | Class::OptimizerState | Class::Workspace => Scaling::Fixed,
                _ if within_optimizer || one.bytes < TINY_BYTES || !one.bytes.is_multiple_of(batch.max(1)) => {
                    Scaling::Fixed
                }
                Class::Activations if piled_up.contains(&(one.stack, one.bytes)) && one.stay == Some(Stay::Kept) => {
                    Scaling::PerhapsProportional
                }
                _ if of_parameter.contains(&one.bytes) => Scaling::PerhapsFixed,
                // What outlives the next step may be a buffer whose items do not depend on the batch.
                Class::Activations if one.stay == Some(Stay::Kept) => Scaling::PerhapsProportional,
                Class::Activations => Scaling::Proportional,
                Class::Temporaries | Class::Unknown => Scaling::PerhapsProportional,
            }
        };
        asked.iter().zip(classes).map(scaling).collect()
    }

    /// Stacks and sizes of outputs that pile up: results of module forwards that have a parameter's size and outlived
    /// their steps more often than there are such parameters. Their size is a coincidence.
    fn piled_up(&mut self, asked: &[MemoryRequest], classes: &[Class]) -> HashSet<(StackId, u64)> {
        let mut parameters: HashMap<u64, usize> = HashMap::new();
        let mut kept: HashMap<(StackId, u64), usize> = HashMap::new();
        for (one, class) in asked.iter().zip(classes) {
            match class {
                Class::Parameters => *parameters.entry(one.bytes).or_default() += 1,
                Class::Activations if one.stay == Some(Stay::Kept) => {
                    *kept.entry((one.stack, one.bytes)).or_default() += 1;
                }
                _ => {}
            }
        }
        let of_size = |bytes: u64| parameters.get(&bytes).copied().unwrap_or(0);
        kept.retain(|&(stack, bytes), times| {
            let weights = of_size(bytes) + of_size(bytes.saturating_mul(2));
            weights > 0 && *times > weights && self.reading(stack).says == Says::Forward
        });
        kept.into_keys().collect()
    }
}

/// Requests of forward passes with half of a parameter's bytes. Their sizes suggest autocast's copies of weights.
/// Autocast casts each weight once in a forward pass, so a size that is requested more often than there are weights of
/// it is something else. `forward` returns the forward pass of a request.
#[must_use]
pub fn copies(asked: &[MemoryRequest], classes: &[Class], forward: impl Fn(usize) -> u32) -> HashSet<usize> {
    let of_class = |class: Class| (0..).zip(asked.iter().zip(classes)).filter(move |(_, (_, it))| **it == class);
    let mut weights: HashMap<u64, usize> = HashMap::new();
    for (_, (asked, _)) in of_class(Class::Parameters) {
        *weights.entry(asked.bytes).or_default() += 1;
    }
    let mut halves: HashMap<(u32, u64), Vec<usize>> = HashMap::new();
    for (at, (asked, _)) in of_class(Class::Activations).filter(|(_, (asked, _))| asked.bytes >= COPY_BYTES_MIN) {
        let whole = asked.bytes.saturating_mul(2);
        if weights.contains_key(&whole) {
            halves.entry((forward(at), whole)).or_default().push(at);
        }
    }
    halves.retain(|(_, whole), halves| halves.len() <= weights[whole]);
    halves.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use memctl_model::{Frame, Stack};

    use super::*;
    use crate::classes::OPEN;

    #[test]
    fn what_was_made_for_the_model_stays_and_what_was_made_of_the_batch_grows() {
        let resolve = |id: StackId| {
            let frames: &[(&str, &str)] = match id.0 {
                1 => &[("__init__", "/v/torch/nn/modules/linear.py"), ("<module>", "train.py")],
                2 => &[("forward", "/v/torch/nn/modules/linear.py"), ("<module>", "train.py")],
                3 => &[("step", "/v/torch/optim/adam.py"), ("<module>", "train.py")],
                _ => &[],
            };
            let frame =
                |&(function, file): &(&str, &str)| Frame { function: function.into(), file: file.into(), line: 1 };
            Stack { frames: frames.iter().map(frame).collect() }
        };
        let mut classifier = Classifier::new(&resolve);
        let mut now = 0;
        let mut asked = |stack: u32, bytes: u64, outlived: bool| {
            now += 2;
            MemoryRequest {
                stack: StackId(stack),
                bytes,
                phase: None,
                born: Some(now),
                ended: if outlived { OPEN } else { now + 1 },
                stay: Some(if outlived { Stay::Kept } else { Stay::Within }),
            }
        };
        let requests = [
            asked(1, 40_000, true),
            asked(2, 8_000, false),
            asked(2, 8_002, false),
            asked(2, 20_000, false),
            asked(3, 8_000, false),
            asked(0, 40_000, false),
            asked(0, 8_000, false),
            asked(2, 400, false),
        ];
        let classes = classifier.requests(&requests);
        assert_eq!(&classes[..2], [Class::Parameters, Class::Activations]);
        use Scaling::{Fixed, PerhapsFixed, PerhapsProportional, Proportional};
        let expected = [Fixed, Proportional, Fixed, PerhapsFixed, Fixed, PerhapsFixed, PerhapsProportional, Fixed];
        assert_eq!(classifier.scalings(&requests, &classes, 4), expected);
        // Outputs with the size of the parameter; more of them stay than there are parameters.
        let piled = [asked(1, 40_000, true), asked(2, 40_000, true), asked(2, 40_000, true), asked(2, 40_000, false)];
        let classes = [Class::Parameters, Class::Activations, Class::Activations, Class::Activations];
        let scalings = classifier.scalings(&piled, &classes, 4);
        assert_eq!(scalings, [Fixed, PerhapsProportional, PerhapsProportional, PerhapsFixed]);
        assert_eq!(classifier.scalings(&piled[..2], &classes[..2], 4), [Fixed, PerhapsFixed], "it may be a copy");
        let buffered = [asked(1, 40_000, true), asked(2, 8_000, true)];
        assert_eq!(classifier.scalings(&buffered, &classes[..2], 4), [Fixed, PerhapsProportional]);
    }

    #[test]
    fn half_of_a_weight_that_a_forward_pass_asks_for_is_its_copy() {
        let asked =
            |bytes: u64| MemoryRequest { stack: StackId(0), bytes, phase: None, born: None, ended: OPEN, stay: None };
        let requests = [asked(1 << 20), asked(1 << 19), asked(1 << 19), asked(1 << 18), asked(1 << 10), asked(1 << 9)];
        let class = |parameter: bool| if parameter { Class::Parameters } else { Class::Activations };
        let mut classes = [true, false, false, false, true, false].map(class);
        classes[2] = Class::Temporaries;
        assert_eq!(
            copies(&requests, &classes, |_| 0),
            HashSet::from([1]),
            "neither of another class nor of a size that changes no peak"
        );
        classes[2] = Class::Activations;
        assert_eq!(copies(&requests, &classes, |_| 0), HashSet::new(), "one weight has no two copies");
        let forward = |request: usize| u32::from(request > 1);
        assert_eq!(copies(&requests, &classes, forward), HashSet::from([1, 2]), "but one in each forward pass");
    }
}
