//! The class, the site and the module of each recorded request, for the changes and explanations of `memctl fit`.
//!
//! Guarantees: the classes are those of `memctl ledger`, by the same rules, but with the whole lifetime of a block,
//! which shows whether it outlives its step. If no steps are marked, the backward passes replace them.

use std::collections::{HashMap, HashSet};

use memctl_analysis::classes::{Class, Classifier, MemoryRequest, OPEN, Scaling, Stay, copies, step_at};
use memctl_analysis::modules::{Modules, saves_itself};
use memctl_model::{Frame, Stack, StackId};
use memctl_replay::fit::{Life, Scale};

use super::{Birth, Recorded};

/// See the module. Everything is indexed by the request's number in the recording.
pub struct Meaning {
    /// What it was for.
    pub classes: Vec<Class>,
    /// Where it was made.
    pub modules: Modules,
    /// The holder: an index into `places` and a class.
    pub holders: Vec<u32>,
    /// Sites with their classes.
    pub places: Vec<(Option<Frame>, Class)>,
    scalings: Vec<Scaling>,
    /// See [`copies`].
    copies: HashSet<usize>,
    /// By request, the stack; and those of operations that save their own result.
    stacks: Vec<StackId>,
    saving: HashSet<StackId>,
}

impl Meaning {
    /// How a request scales with the size.
    #[must_use]
    pub fn scale(&self, request: usize) -> Scale {
        match self.scalings.get(request) {
            None | Some(Scaling::Fixed) => Scale::Fixed,
            Some(Scaling::Proportional) => Scale::Proportional,
            Some(Scaling::PerhapsFixed) => Scale::PerhapsFixed,
            Some(Scaling::PerhapsProportional) => Scale::PerhapsProportional,
        }
    }

    /// Whether a request is, by its size, autocast's copy of a weight in half the precision.
    #[must_use]
    pub fn is_copy(&self, request: usize) -> bool {
        self.copies.contains(&request)
    }

    /// Whether the operation that made a request saves its own result for its backward pass.
    #[must_use]
    pub fn saves_itself(&self, request: usize) -> bool {
        self.stacks.get(request).is_some_and(|stack| self.saving.contains(stack))
    }

    /// The class of a request.
    #[must_use]
    pub fn class(&self, request: usize) -> Class {
        self.classes.get(request).copied().unwrap_or(Class::Unknown)
    }

    /// The site and the class of a request.
    #[must_use]
    pub fn holder(&self, request: usize) -> Option<&(Option<Frame>, Class)> {
        self.places.get(*self.holders.get(request)? as usize)
    }
}

impl Recorded {
    /// The meaning of its requests; `number` is the recorded size, if it is known.
    #[must_use]
    pub fn meaning(&self, number: Option<u64>) -> Meaning {
        let lives = self.script.lives();
        let steps: Vec<(u64, u64)> = self.steps.iter().map(|&(from, step)| (u64::from(from), step)).collect();
        let ended = |life: &Life| if life.ended == u32::MAX { OPEN } else { u64::from(life.ended) };
        let of_request = |(request, (life, birth)): (usize, (&Life, &Birth))| MemoryRequest {
            stack: birth.stack,
            bytes: self.script.bytes(request),
            phase: birth.phase,
            born: (request >= self.script.initial_count()).then_some(u64::from(life.born)),
            ended: ended(life),
            stay: step_at(&steps, u64::from(life.born)).and_then(|step| Stay::of(&steps, step, ended(life))),
        };
        let asked: Vec<MemoryRequest> = lives.iter().zip(&self.births).enumerate().map(of_request).collect();
        let resolve = |id: StackId| -> Stack { self.dictionary.stack(id) };
        let mut classifier = Classifier::new(&resolve);
        let classes = classifier.requests(&asked);
        let scalings = number.map(|number| classifier.scalings(&asked, &classes, number)).unwrap_or_default();
        let (mut places, mut ids) = (Vec::new(), HashMap::new());
        let mut holders = Vec::with_capacity(asked.len());
        for (asked, &class) in asked.iter().zip(&classes) {
            let site = self.dictionary.site(asked.stack);
            let id = match ids.get(&(site, class)) {
                Some(&id) => id,
                None => {
                    let id = u32::try_from(places.len()).unwrap_or(u32::MAX);
                    places.push((site.cloned(), class));
                    ids.insert((site, class), id);
                    id
                }
            };
            holders.push(id);
        }
        let stacks: Vec<StackId> = self.births.iter().map(|birth| birth.stack).collect();
        let modules = Modules::new(&stacks, &resolve);
        let copies = copies(&asked, &classes, |request| modules.forward(request));
        let distinct: HashSet<StackId> = stacks.iter().copied().collect();
        let saving = distinct.into_iter().filter(|&stack| saves_itself(&resolve(stack))).collect();
        Meaning { classes, modules, holders, places, scalings, copies, stacks, saving }
    }
}
