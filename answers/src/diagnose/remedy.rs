//! The knowledge about each kind of finding: the pattern in a sentence, the change as code, the proof.
//!
//! Guarantees: every kind has a proof that `memctl assert`, `query` or `ranks` can check. Code is shown only if one
//! change fits nearly always; it is an example of the pattern, not the user's line. Allocator settings are not part of
//! it, because only a replay of the job shows their effect (`advice.rs`).

use memctl_model::{FindingKind, Pattern};

/// The knowledge about one kind.
pub struct Remedy {
    /// The pattern behind it.
    pub pattern: &'static str,
    /// Code that does it.
    pub before: &'static [&'static str],
    /// Code that does not.
    pub after: &'static [&'static str],
    /// How to prove that a change worked.
    pub proof: Proof,
}

/// How to prove that a change worked, after another run of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// `memctl assert` that no live tensors grow and the level at epoch ends stays.
    NoLeak,
    /// `memctl assert` that no live tensors grow: a chain falls back with every epoch, so epoch ends say nothing.
    NoChain,
    /// `memctl assert` that the level at epoch ends stays.
    Stable,
    /// `memctl assert` that less is reserved for what is allocated at the peak.
    LessFragmented,
    /// `memctl assert` that the peak leaves room on the device.
    PeakFits,
    /// The findings of `memctl query` are gone.
    NoFindings,
    /// The table of `memctl ranks`.
    Ranks,
}

/// The remedy for a kind and for the pattern that its finding names. For a kind of a newer daemon, the proof is only
/// that its findings disappear.
#[must_use]
pub fn remedy(kind: Option<FindingKind>, pattern: Option<Pattern>) -> Remedy {
    use FindingKind as Kind;
    match kind {
        Some(Kind::Leak | Kind::EvalGraph | Kind::GraphKept | Kind::HiddenChain) => kept(kind, pattern),
        Some(Kind::Fragmentation) => Remedy {
            pattern: "Free memory is in pieces that do not fit the requests.",
            before: &[],
            after: &[],
            proof: Proof::LessFragmented,
        },
        Some(Kind::FragmentationGrowth) => Remedy {
            pattern: "Request sizes do not fit what was freed before.",
            before: &[],
            after: &[],
            proof: Proof::Stable,
        },
        Some(Kind::ForeignProcess) => Remedy {
            pattern: "Another process uses this rank's device.",
            before: &["state = torch.load(path)"],
            after: &["torch.cuda.set_device(local_rank)", "state = torch.load(path, map_location=\"cpu\")"],
            proof: Proof::Ranks,
        },
        Some(Kind::Churn) if pattern == Some(Pattern::CacheEmptied) => Remedy {
            pattern: "The cache is emptied, and memory is requested from the driver again.",
            before: &["torch.cuda.empty_cache()  # in every step"],
            after: &["# nothing: the allocator reuses what it has"],
            proof: Proof::NoFindings,
        },
        Some(Kind::Churn) => Remedy {
            pattern: "Memory is requested from the driver in steady state.",
            before: &[],
            after: &[],
            proof: Proof::NoFindings,
        },
        Some(Kind::RankSkew) => {
            Remedy { pattern: "Some ranks do work that others do not.", before: &[], after: &[], proof: Proof::Ranks }
        }
        Some(Kind::Oom | Kind::NearOom) => Remedy {
            pattern: "A request is larger than what is left.",
            before: &[],
            after: &[],
            proof: Proof::PeakFits,
        },
        Some(Kind::OutsideAllocator) => Remedy {
            pattern: "Memory is used outside PyTorch's allocator.",
            before: &[],
            after: &[],
            proof: Proof::Stable,
        },
        Some(Kind::HostGrowth) => {
            Remedy { pattern: "Host memory accumulates.", before: &[], after: &[], proof: Proof::Stable }
        }
        Some(Kind::RankLost) => Remedy {
            pattern: "A process or its connection ended, or the process hangs.",
            before: &[],
            after: &[],
            proof: Proof::Ranks,
        },
        Some(Kind::PrivatePools) => Remedy {
            pattern: "CUDA graphs are captured repeatedly, each with a pool of its own.",
            before: &["graphs[length] = capture(length)  # every length that comes"],
            after: &["length = round_up(length)  # a few sizes, captured once", "capture(length, pool=shared_pool)"],
            proof: Proof::NoLeak,
        },
        Some(Kind::WrongDevice) => Remedy {
            pattern: "Tensors are created on another rank's device.",
            before: &["x = torch.zeros(n, device=\"cuda:0\")"],
            after: &["torch.cuda.set_device(local_rank)", "x = torch.zeros(n, device=\"cuda\")"],
            proof: Proof::Ranks,
        },
        Some(Kind::Unjudged) => {
            Remedy { pattern: "The job could not be judged.", before: &[], after: &[], proof: Proof::NoFindings }
        }
        None => Remedy { pattern: "", before: &[], after: &[], proof: Proof::NoFindings },
    }
}

/// Tensors that the traceback of a kept exception holds.
#[must_use]
pub fn kept_exception() -> Remedy {
    Remedy {
        pattern: "An exception is kept, and the frames of its traceback keep their variables.",
        before: &["failed.append(error)"],
        after: &["failed.append(traceback.format_exc())  # the text"],
        proof: Proof::NoLeak,
    }
}

/// Live tensors that are retained.
fn kept(kind: Option<FindingKind>, pattern: Option<Pattern>) -> Remedy {
    let proof = Proof::NoLeak;
    match kind {
        Some(FindingKind::EvalGraph) => Remedy {
            pattern: "An evaluation keeps its graph.",
            before: &["losses.append(loss_fn(model(x), y))"],
            after: &["with torch.no_grad():", "    losses.append(loss_fn(model(x), y).item())"],
            proof,
        },
        Some(FindingKind::GraphKept) => Remedy {
            pattern: "A loss or an output is kept with its graph.",
            before: &["total_loss += loss"],
            after: &["total_loss += loss.detach()  # or loss.item(), which waits for the device"],
            proof,
        },
        Some(FindingKind::HiddenChain) => Remedy {
            pattern: "A hidden state chains the steps' graphs.",
            before: &["out, h = rnn(x, h)"],
            after: &["h = h.detach()  # of an LSTM: tuple(state.detach() for state in h)", "out, h = rnn(x, h)"],
            proof: Proof::NoChain,
        },
        _ => kept_by(pattern),
    }
}

/// Leaked tensors, by the pattern of the code.
fn kept_by(pattern: Option<Pattern>) -> Remedy {
    let proof = Proof::NoLeak;
    match pattern {
        Some(Pattern::ReplacedByLarger) => Remedy {
            pattern: "A tensor is replaced by a larger one.",
            before: &["self.history = torch.cat([self.history, new])"],
            after: &["self.history[n : n + len(new)] = new.detach()  # allocated once, of a fixed size"],
            proof,
        },
        Some(Pattern::HooksPileUp) => Remedy {
            pattern: "A hook is registered again and again.",
            before: &["layer.register_forward_hook(hook)  # every epoch"],
            after: &["handle = layer.register_forward_hook(hook)  # once", "handle.remove()  # when it is done"],
            proof,
        },
        Some(Pattern::OptimizerRecreated) => Remedy {
            pattern: "A new optimizer is made, and the old one is still referenced.",
            before: &["optimizers.append(torch.optim.AdamW(model.parameters()))  # every epoch"],
            after: &["optimizer = torch.optim.AdamW(model.parameters())  # once"],
            proof,
        },
        Some(Pattern::OptimizerState) => Remedy {
            pattern: "Optimizer state grows: an optimizer gets more parameters, or a new one is made each time.",
            before: &[],
            after: &[],
            proof,
        },
        _ => Remedy {
            pattern: "Tensors are kept.",
            before: &["self.kept.append(features)"],
            after: &["self.kept = collections.deque(maxlen=20)  # once", "self.kept.append(features.detach().cpu())"],
            proof,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_pattern_and_a_proof_that_memctl_understands() {
        let patterns = Pattern::ALL.map(|pattern| (FindingKind::Leak, Some(pattern)));
        let emptied = (FindingKind::Churn, Some(Pattern::CacheEmptied));
        for (kind, pattern) in FindingKind::ALL.map(|kind| (kind, None)).into_iter().chain(patterns).chain([emptied]) {
            let remedy = remedy(Some(kind), pattern);
            assert!(remedy.pattern.ends_with('.'), "{kind:?}");
            assert!(remedy.before.is_empty() || !remedy.after.is_empty(), "{kind:?}: what instead?");
            let code = remedy.before.iter().chain(remedy.after);
            assert!(code.clone().all(|line| line.len() <= 88), "{kind:?}: a line that does not fit");
        }
    }

    #[test]
    fn the_change_fits_the_pattern_that_was_seen() {
        let of = |kind, pattern| remedy(Some(kind), pattern);
        assert!(of(FindingKind::Churn, Some(Pattern::CacheEmptied)).before[0].contains("empty_cache"));
        assert_eq!(of(FindingKind::Churn, None).before, [""; 0], "no call that empties the cache was seen");
        assert!(of(FindingKind::Leak, Some(Pattern::HooksPileUp)).after[1].contains("remove"));
        assert!(of(FindingKind::Leak, Some(Pattern::OptimizerRecreated)).pattern.contains("optimizer"));
    }

    #[test]
    fn the_proof_of_growth_is_one_that_sees_it() {
        for kind in FindingKind::ALL.into_iter().filter(|kind| kind.growth().is_some()) {
            let proof = remedy(Some(kind), None).proof;
            let sees = match proof {
                Proof::NoLeak | Proof::NoChain => kind.fills(),
                Proof::Stable => true,
                _ => kind == FindingKind::OutsideAllocator,
            };
            assert!(sees, "{kind:?}: {proof:?}");
        }
    }
}
