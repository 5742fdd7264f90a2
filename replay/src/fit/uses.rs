//! Finds the last use of each block by the forward of the call that makes it.
//!
//! If the backward pass keeps a block, the recording shows when the backward pass releases it, but not when Python
//! did. With checkpointing, a block is freed with Python's last reference. Lines show when that is: the result of an
//! operation is passed to the next one. Within a line, all operations have the same frames; the next operation is then
//! recognised by its result, which is not kept. After its line, or outside the module that made it, a block is an
//! argument or a variable that the next call or line replaces. It is freed at the end of that call or line.
//!
//! Guarantees: no block outlives the call. Later uses are not known: a residual does not appear in the recording
//! before its sum, so it is freed too early.

use std::ops::Range;

use super::script::Life;

/// The facts about a call.
pub(super) struct Uses<'a, F, G> {
    /// Its requests.
    pub(super) call: Range<usize>,
    /// The lifetime of each request's block.
    pub(super) lives: &'a [Life],
    /// The frames of each request, outermost first.
    pub(super) lines: F,
    /// Whether the backward pass keeps a block.
    pub(super) goes: G,
}

impl<'f, F: Fn(usize) -> &'f [u64], G: Fn(usize) -> bool> Uses<'_, F, G> {
    /// For each request of the call: the last request of the operation that uses its block last.
    pub(super) fn last(&self) -> Vec<usize> {
        let Range { start, end } = self.call;
        let results = self.results();
        let mut last = Vec::with_capacity(self.call.len());
        while start + last.len() < end {
            let first = start + last.len();
            let next = (first + 1..end).find(|&later| (self.lines)(later) != (self.lines)(first)).unwrap_or(end);
            let behind = self.behind_line(first, next, &results);
            // Within the line, the block is used until the result of the next operation.
            let of_line = (first..next).map(|request| results[request + 1 - start]);
            last.extend(of_line.map(|result| if result < next { result } else { behind }));
        }
        last
    }

    /// The last use of a block that is passed on after a line. `next` is the first request after the line.
    fn behind_line(&self, line: usize, next: usize, results: &[usize]) -> usize {
        let Range { start, end } = self.call;
        if next == end {
            return end - 1;
        }
        let (here, there) = ((self.lines)(line), (self.lines)(next));
        let shared = here.iter().zip(there).take_while(|(one, other)| one == other).count();
        let is_entered = there.len() > shared;
        let is_of_it = |later: &usize| match is_entered {
            true => (self.lines)(*later).starts_with(&there[..=shared]),
            false => (self.lines)(*later) == there,
        };
        let behind = (next..end).find(|later| !is_of_it(later)).unwrap_or(end);
        let result = results[next - start];
        if is_entered || result >= behind { behind - 1 } else { result }
    }

    /// For each request, and for the call's end: the first request at or after it that is an operation's result, as
    /// far as the recording shows. It is the call's end if there is none.
    fn results(&self) -> Vec<usize> {
        let mut results = vec![self.call.end; self.call.len() + 1];
        for (at, request) in self.call.clone().enumerate().rev() {
            // A kept block may be a copy that the same operation reads afterwards, such as those of softmax and values
            // in attention.
            let is_result = !(self.goes)(request) && !self.is_workspace(request);
            results[at] = if is_result { request } else { results[at + 1] };
        }
        results
    }

    /// Whether a block is freed before the next request: an operation's own workspace.
    fn is_workspace(&self, request: usize) -> bool {
        self.lives.get(request + 1).is_some_and(|next| self.lives[request].ended < next.born)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last use of each request of a call. Each request has its frames, whether it is kept, and whether it is
    /// freed at once.
    fn last(requests: &[(&[u64], bool, bool)]) -> Vec<usize> {
        let life = |(at, request): (u32, &(&[u64], bool, bool))| Life {
            born: 10 * at,
            ended: if request.2 { 10 * at + 1 } else { u32::MAX },
        };
        let lives: Vec<Life> = (0..).zip(requests).map(life).collect();
        let call = 0..requests.len();
        let (lines, goes) = (|at: usize| requests[at].0, |at: usize| requests[at].1);
        Uses { call, lives: &lives, lines, goes }.last()
    }

    const KEPT: (bool, bool) = (true, false);
    const PASSED_ON: (bool, bool) = (false, false);
    const WORKSPACE: (bool, bool) = (false, true);

    fn of<'a>(rows: &[(&'a [u64], (bool, bool))]) -> Vec<(&'a [u64], bool, bool)> {
        rows.iter().map(|&(lines, (kept, at_once))| (lines, kept, at_once)).collect()
    }

    #[test]
    fn an_argument_goes_when_the_module_it_was_given_to_returns() {
        // relu(norm(conv(x))) on one line: a convolution with its columns, and a norm with its statistics.
        let (conv, norm, relu): (&[u64], &[u64], &[u64]) = (&[1, 7, 20], &[1, 7, 30, 31], &[1, 7, 40]);
        let rows = [(conv, KEPT), (conv, WORKSPACE), (norm, PASSED_ON), (norm, KEPT), (norm, KEPT), (relu, PASSED_ON)];
        assert_eq!(last(&of(&rows))[..2], [4, 4], "the columns are none that uses it");
    }

    #[test]
    fn a_variable_goes_at_the_end_of_the_next_line() {
        // h = norm(x); h = attention(h), which has several lines; return h + x.
        let rows: [(&[u64], _); 5] = [
            (&[1, 5, 20], KEPT),
            (&[1, 6, 50, 20], KEPT),
            (&[1, 6, 51, 20], KEPT),
            (&[1, 6, 52], KEPT),
            (&[1, 7], PASSED_ON),
        ];
        assert_eq!(last(&of(&rows)), [3, 2, 3, 4, 4], "and within attention its own lines count");
        // A block leaves its module and is used by an operation of the line that called the module.
        let rows: [(&[u64], _); 4] = [(&[1, 5, 20], KEPT), (&[1, 5], KEPT), (&[1, 5, 20], KEPT), (&[1, 6], PASSED_ON)];
        assert_eq!(last(&of(&rows))[..2], [1, 2]);
        // linear(x) * gate + x: only the first operation of the line uses the block.
        let rows: [(&[u64], _); 3] = [(&[1, 5, 20], KEPT), (&[1, 5], PASSED_ON), (&[1, 5], PASSED_ON)];
        assert_eq!(last(&of(&rows))[0], 1);
    }

    #[test]
    fn an_operation_of_the_same_line_is_known_by_its_result() {
        // (softmax(scores) @ values).reshape(…), then a linear. The values are copied for the product, and the reshape
        // copies the product.
        let (line, linear): (&[u64], &[u64]) = (&[1, 5], &[1, 5, 20]);
        let rows = [(line, KEPT), (line, KEPT), (line, PASSED_ON), (line, KEPT), (linear, PASSED_ON), (line, KEPT)];
        assert_eq!(last(&of(&rows)), [2, 2, 4, 4, 5, 5]);
        assert_eq!(last(&of(&[(line, KEPT)])), [0], "the last request has no next one");
    }

    #[test]
    fn a_long_line_is_read_once() {
        let rows = vec![(&[1, 5][..], true, false); 1 << 18];
        assert!(last(&rows).iter().all(|&last| last == rows.len() - 1));
    }
}
