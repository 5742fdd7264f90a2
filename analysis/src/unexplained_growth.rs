//! Growth without a finding: which growing sites a finding already explains, and the call through which the remaining
//! growth comes.
//!
//! A leak that keeps a whole graph alive shows as many sites deep inside the model. These sites share the function
//! that keeps the graph, which is the place of the finding. A site is not hidden merely because its rank has some
//! other leak.

use std::cmp::Reverse;
use std::collections::HashMap;

use memctl_model::{Finding, FindingKind, Frame, site_of};

/// Minimum share of the growth that comes through a call before the call is named.
const SHARE_MIN: f64 = 0.75;

/// Whether a finding explains that a site grew on a rank. The finding must be about live tensors that grow on this
/// rank. The site must be the finding's, or the finding's place must be on the site's stack. For a finding about
/// graphs the function is compared and not the line.
#[must_use]
pub fn explains(finding: &Finding, rank: u32, site: &Frame, stack: &[Frame]) -> bool {
    if !finding.kind.is_leak() || !finding.ranks.contains(&rank) {
        return false;
    }
    let Some(blamed) = &finding.site else { return site.file.is_empty() };
    let function = |frame: &Frame| (&frame.function, &frame.file) == (&blamed.function, &blamed.file);
    match finding.kind {
        FindingKind::EvalGraph | FindingKind::GraphKept | FindingKind::HiddenChain => {
            function(site) || stack.iter().any(function)
        }
        _ => blamed == site || stack.contains(blamed) || is_line_of(finding, site),
    }
}

/// Whether a frame is at one of the lines of a finding's function.
fn is_line_of(finding: &Finding, frame: &Frame) -> bool {
    let is_function = |own: &Frame| (&frame.function, &frame.file) == (&own.function, &own.file);
    finding.lines.contains(&frame.line) && finding.site.as_ref().is_some_and(is_function)
}

/// Whether the blocks of a stack are those that a finding is about. A line that both allocates and calls allocating
/// code is the site of its own blocks and only a call for the others. The finding's own stack shows which of them
/// grew.
#[must_use]
pub fn is_about_blocks(finding: &Finding, rank: u32, site: &Frame, stack: &[Frame]) -> bool {
    use FindingKind::{EvalGraph, GraphKept, HiddenChain};
    let own = finding.site.as_ref().filter(|own| site_of(finding.stack.iter()) == Some(own));
    let is_graph = matches!(finding.kind, EvalGraph | GraphKept | HiddenChain);
    explains(finding, rank, site, stack) && (is_graph || own.is_none_or(|own| own == site || is_line_of(finding, site)))
}

/// A site that grew: its stack, innermost frame first, and its rate.
#[derive(Clone, Copy, Debug)]
pub struct Grown<'a> {
    /// The stack that grew most at this site.
    pub stack: &'a [Frame],
    /// Bytes per epoch on the rank where it grows fastest.
    pub bytes_per_epoch: f64,
}

/// A call and the growth that comes through it.
#[derive(Clone, Debug, PartialEq)]
pub struct Through {
    /// The call.
    pub call: Frame,
    /// Bytes per epoch that come through it.
    pub bytes_per_epoch: f64,
    /// Bytes per epoch of all sites.
    pub total: f64,
}

/// The innermost call in the user's own code through which most of the growth of several sites comes. It is derived
/// from the stack that grew most at each site, so it is only a hint. The result contains the call's share.
#[must_use]
pub fn through(sites: &[Grown]) -> Option<Through> {
    if sites.len() < 2 {
        return None;
    }
    let rate = |site: &Grown| site.bytes_per_epoch.max(0.0);
    let total: f64 = sites.iter().map(rate).sum();
    // For each call: its rate, and the number of the user's calls outside of it.
    let mut calls: HashMap<&Frame, (f64, usize)> = HashMap::new();
    for site in sites {
        let own: Vec<&Frame> = site.stack.iter().rev().filter(|frame| frame.is_user_code()).collect();
        for (depth, frame) in own.iter().enumerate() {
            if own[..depth].contains(frame) {
                // A recursive call counts once.
                continue;
            }
            let call = calls.entry(frame).or_insert((0.0, depth));
            call.0 += rate(site);
            call.1 = call.1.min(depth);
        }
    }
    let enough = calls.into_iter().filter(|(_, (rate, _))| *rate >= SHARE_MIN * total && *rate > 0.0);
    let innermost = enough.max_by(|(a, (a_rate, a_depth)), (b, (b_rate, b_depth))| {
        a_depth
            .cmp(b_depth)
            .then(a_rate.total_cmp(b_rate))
            .then_with(|| Reverse(&a.function).cmp(&Reverse(&b.function)))
    });
    innermost.map(|(call, (bytes_per_epoch, _))| Through { call: call.clone(), bytes_per_epoch, total })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::Severity;

    fn frame(function: &str, line: u32) -> Frame {
        Frame { function: function.into(), file: "/me/train.py".into(), line }
    }

    fn stack(calls: &[&str]) -> Vec<Frame> {
        calls.iter().map(|call| frame(call, 7)).collect()
    }

    #[test]
    fn the_innermost_call_that_explains_most() {
        let stacks = [
            stack(&["norm", "block", "validate", "main"]),
            stack(&["head", "validate", "main"]),
            stack(&["block", "block", "step", "main"]),
        ];
        let rates = [20.0, 16.0, 4.0];
        let sites: Vec<Grown> =
            stacks.iter().zip(rates).map(|(stack, bytes_per_epoch)| Grown { stack, bytes_per_epoch }).collect();
        let found = through(&sites).unwrap();
        assert_eq!((&*found.call.function, found.bytes_per_epoch, found.total), ("validate", 36.0, 40.0));
        assert_eq!(through(&sites[..1]), None);
    }

    #[test]
    fn nothing_in_common_is_not_explained() {
        let stacks = [stack(&["a"]), stack(&["b"])];
        let sites = stacks.each_ref().map(|stack| Grown { stack, bytes_per_epoch: 1.0 });
        assert_eq!(through(&sites), None);
    }

    #[test]
    fn a_leak_explains_its_own_line_on_its_own_ranks_and_nothing_else() {
        let leak = Finding {
            site: Some(frame("keep", 7)),
            ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0])
        };
        assert!(explains(&leak, 0, &frame("keep", 7), &[]));
        assert!(explains(&leak, 0, &frame("clone", 7), &stack(&["clone", "keep"])));
        assert!(!explains(&leak, 0, &frame("other", 7), &stack(&["other", "main"])), "another line of the same rank");
        assert!(!explains(&leak, 1, &frame("keep", 7), &[]), "another rank");
        assert!(!explains(&leak, 0, &frame("keep", 9), &[]), "another line of the same function");
        let oom = Finding { kind: FindingKind::Oom, ..leak };
        assert!(!explains(&oom, 0, &frame("keep", 7), &[]));
    }

    #[test]
    fn a_line_that_calls_what_allocates_is_about_the_blocks_that_grew() {
        let leak = |calls: &[&str]| Finding {
            site: Some(frame("main", 7)),
            stack: stack(calls),
            ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0])
        };
        let through_encode =
            |leak: &Finding| is_about_blocks(leak, 0, &frame("encode", 7), &stack(&["encode", "main"]));
        let own = |leak: &Finding| is_about_blocks(leak, 0, &frame("main", 7), &stack(&["main"]));
        assert!(own(&leak(&["main"])) && !through_encode(&leak(&["main"])), "the line's own blocks grew");
        let through = leak(&["encode", "main"]);
        assert!(own(&through) && through_encode(&through), "a call");
    }

    #[test]
    fn a_graph_explains_what_comes_through_the_function_that_keeps_it() {
        let kept = Finding {
            site: Some(frame("validate", 26)),
            ..Finding::new(FindingKind::EvalGraph, Severity::Warning, 0.9, vec![0, 1])
        };
        assert!(explains(&kept, 1, &frame("norm", 3), &stack(&["norm", "block", "validate", "main"])));
        assert!(!explains(&kept, 1, &frame("norm", 3), &stack(&["norm", "block", "step", "main"])));
    }
}
