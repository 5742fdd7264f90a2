//! Operation codes: the first column of a chunk, one byte for one event or for the two of a folded free.
//!
//! Guarantees: each action has its code; the numbers are part of the format and never change.

use memctl_model::Action;

/// `alloc` where the block model expected it.
pub(super) const ALLOC_BEST: u8 = 0;
/// `alloc` directly behind the block that its arena handed out last.
pub(super) const ALLOC_NEXT: u8 = 1;
/// `alloc` at an explicit address.
pub(super) const ALLOC_ELSEWHERE: u8 = 2;
/// `free_requested` and `free_completed` with one stack, of an allocation of this chunk.
pub(super) const FREE_PAIR: u8 = 3;
/// `free_requested` alone, of an allocation of this chunk.
pub(super) const FREE_REQUESTED: u8 = 4;
/// `free_completed` alone, of an allocation of this chunk.
pub(super) const FREE_COMPLETED: u8 = 5;
/// As [`FREE_PAIR`], with key and address.
pub(super) const FREE_PAIR_UNKNOWN: u8 = 6;
/// As [`FREE_REQUESTED`], with key and address.
pub(super) const FREE_REQUESTED_UNKNOWN: u8 = 7;
/// As [`FREE_COMPLETED`], with key and address.
pub(super) const FREE_COMPLETED_UNKNOWN: u8 = 8;
/// The other actions, in the order of their numbers from [`Action::SegmentAlloc`], with key and address.
pub(super) const OTHERS: u8 = 9;
/// Added to the codes 3, 4 and 5: the stack is not the predicted one but in the column of stacks.
pub(super) const WITH_STACK: u8 = 16;

/// The code of an action that has no code of its own above.
pub(super) const fn other(action: Action) -> u8 {
    OTHERS + action as u8 - Action::SegmentAlloc as u8
}

/// The action of such a code.
pub(super) fn action_of_other(op: u8) -> Option<Action> {
    Action::from_number(op.checked_sub(OTHERS)?.checked_add(Action::SegmentAlloc as u8)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_inverse_and_below_the_flag() {
        for action in Action::ALL.into_iter().skip(3) {
            assert!(other(action) < WITH_STACK);
            assert_eq!(action_of_other(other(action)), Some(action));
        }
        assert_eq!(action_of_other(8), None);
        assert_eq!(action_of_other(16), None);
    }
}
