//! Operations: the first column of a chunk, a 16-bit token for one event or for the two of a folded free.
//!
//! Guarantees: each action has its code; the numbers are part of the format and never change. The two operations of
//! ordinary training, an allocation and a free that repeats its stack, are a token alone; everything else is a code
//! with its own operands.

use memctl_model::Action;

/// Tokens below this are allocations; the token is the key.
pub(super) const FREE: u16 = 0x8000;
/// Tokens from [`FREE`] up to this are a `free_requested` and a `free_completed` with the expected stack; the value
/// above [`FREE`] is the zigzag distance from the previously freed allocation. From here up the low byte is a code.
pub(super) const SPECIAL: u16 = 0xff00;

/// `alloc` with a key that no token can hold.
pub(super) const ALLOC_WIDE: u8 = 0;
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
/// Added to the codes 3, 4 and 5: the stack is not the expected one but an operand.
pub(super) const WITH_STACK: u8 = 16;

/// The code of an action without its own code above.
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
