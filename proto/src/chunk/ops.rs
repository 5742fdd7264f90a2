//! Operations are the first column of a chunk. Each is a 16-bit token for one event, or for the two events of a folded
//! free.
//!
//! Guarantees: each action has its code. The numbers are part of the format and never change. The two operations of
//! ordinary training are an allocation, and a free with the expected stack. Each of them is only a token. All others
//! are a code with its own operands.

use memctl_model::Action;

/// Tokens below this are allocations. The token is the key: the number of the allocation's stack, size, stream and pool
/// in the chunk's dictionary.
pub(super) const FREE: u16 = 0x8000;
/// Tokens from [`FREE`] up to this are a `free_requested` and a `free_completed` with the expected stack. Their value
/// minus [`FREE`] is the zigzag distance from the previously freed allocation. For tokens from this value on, the low
/// byte is a code.
pub(super) const SPECIAL: u16 = 0xff00;

/// `alloc` with a key that is too large for a token.
pub(super) const ALLOC_WIDE: u8 = 0;
/// `free_requested` and `free_completed` with one stack, of an allocation of this chunk.
pub(super) const FREE_PAIR: u8 = 3;
/// `free_requested` alone, of an allocation of this chunk.
pub(super) const FREE_REQUESTED: u8 = 4;
/// `free_completed` alone, of an allocation of this chunk.
pub(super) const FREE_COMPLETED: u8 = 5;
/// Like [`FREE_PAIR`], with key and address.
pub(super) const FREE_PAIR_UNKNOWN: u8 = 6;
/// Like [`FREE_REQUESTED`], with key and address.
pub(super) const FREE_REQUESTED_UNKNOWN: u8 = 7;
/// Like [`FREE_COMPLETED`], with key and address.
pub(super) const FREE_COMPLETED_UNKNOWN: u8 = 8;
/// The other actions, in the order of their numbers from [`Action::SegmentAlloc`], with key and address.
pub(super) const OTHERS: u8 = 9;
/// Added to the codes 3, 4 and 5 when the stack is not the expected one. The stack is an operand then.
pub(super) const WITH_STACK: u8 = 16;

/// The code of an action that has no constant here.
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
