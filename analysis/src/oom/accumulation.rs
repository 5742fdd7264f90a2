//! Sentences about memory that accumulated until a request failed.

use super::demand::{Accumulation, Line, Since};
use crate::wording::{bytes, place_or_none, plural};

impl Since {
    /// `since step 49 ended`.
    fn words(self) -> String {
        match self {
            Self::Steps(first) => format!("since step {first}"),
            Self::StepEnd(step) => format!("since step {step} ended"),
            Self::Evaluation => "since the evaluation began".to_owned(),
        }
    }
}

impl Accumulation {
    /// What accumulated, since when and where.
    pub(super) fn title(&self) -> String {
        let phase = match (self.in_evaluation, self.since) {
            (true, Since::StepEnd(_) | Since::Steps(_)) => " in the evaluation (phase `eval`)",
            _ => "",
        };
        let of = match self.since {
            Since::Steps(_) => " of earlier steps",
            _ => "",
        };
        format!(
            "{} in {}{of} accumulated {}{phase}{}",
            bytes(self.bytes),
            plural(self.blocks, "block"),
            self.since.words(),
            self.lines.first().map_or_else(String::new, |line| self.most(line)),
        )
    }

    /// `, 107 MiB of them in 429 blocks of Mlp.forward (common.py:13)`.
    fn most(&self, line: &Line) -> String {
        let place = place_or_none(line.site.as_ref());
        if line.blocks == self.blocks {
            return format!(", all of {place}");
        }
        format!(", {} of them in {} of {place}", bytes(line.bytes), plural(line.blocks, "block"))
    }

    /// Sentences that show why these blocks accumulated, with a space behind them.
    pub(super) fn explanation(&self) -> String {
        let Some(line) = self.lines.first() else { return String::new() };
        let place = place_or_none(line.site.as_ref());
        let each = line.each_bytes.map_or_else(String::new, |each| format!(" of {} each", bytes(each)));
        let live = plural(line.blocks, "block");
        match self.since {
            Since::Steps(first) => format!(
                "Between the steps, live memory rose by {} since step {first}, and what rose was not freed. ",
                bytes(self.beyond_bytes)
            ),
            Since::StepEnd(_) if line.earlier_blocks > 0 => format!(
                "{live}{each} of {place} are live; in the earlier steps, this line had at most {} at once. ",
                line.earlier_blocks
            ),
            Since::StepEnd(_) | Since::Evaluation => {
                format!("{live}{each} of {place} are live, allocated one by one {}. ", self.since.words())
            }
        }
    }

    /// The change that frees them.
    pub(super) fn advice(&self) -> String {
        let place = self.lines.first().map_or_else(|| place_or_none(None), |line| place_or_none(line.site.as_ref()));
        match self.since {
            Since::Steps(_) => "Find what keeps them from step to step, and release it: a list, a dict, an attribute, or an exception, whose \
                 traceback keeps the variables of all calls (keep traceback.format_exc() instead). `memctl leaks` and `memctl \
                 holders` name the object where it was found"
                .to_owned(),
            _ if self.in_evaluation && self.saved_bytes > 0 => format!(
                "Run the evaluation under torch.no_grad() (or torch.inference_mode()): {} are activations that are kept with their \
                 graph for a backward pass, which an evaluation does not need. Of the results, keep numbers (.item()) or copies on the \
                 host (.cpu())",
                bytes(self.saved_bytes)
            ),
            _ if self.saved_bytes > 0 => format!(
                "Look for a list, dict or attribute that keeps outputs or losses: their graph keeps what {place} allocates. Keep \
                 .item() or .detach(); where no backward pass follows, run this part under torch.no_grad()"
            ),
            _ => format!(
                "Look for a list, dict or attribute that keeps what {place} allocates: keep numbers (.item()), copies on the host \
                 (.cpu()), or fewer of them at once"
            ),
        }
    }
}
