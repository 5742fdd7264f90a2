//! Requests for holders in a region. The host writes the blocks. The trainer takes the request at the end of a step, or
//! in a thread that sleeps on a word until the word changes (a futex).
//!
//! One word holds the turn, which decides who may write. Guarantees: without a request the trainer only loads that
//! word, and its thread is never woken. A request is taken once, completely or not at all. Neither side ever waits for
//! the other. A request that was not taken yet can be withdrawn or replaced.
//! Refuses: a request to a trainer that forbids requests.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memctl_proto::convert::holders::BLOCKS_MAX;

use super::Region;

/// The turn when there is no request.
const IDLE: u32 = 0;
/// A request waits for the end of a step.
const ASKED: u32 = 1;
/// The value of the word while a request waits, for a thread that sleeps on the word.
pub const ASKED_WORD: u32 = ASKED;
/// The host writes a request.
const WRITING: u32 = 2;
/// The trainer reads the request.
const READING: u32 = 3;
/// The trainer forbids requests.
const FORBIDDEN: u32 = 4;

/// The request in the region; see the module's documentation.
#[repr(C)]
pub struct Control {
    turn: AtomicU32,
    budget_ms: AtomicU32,
    ask: AtomicU64,
    count: AtomicU64,
    /// Addresses and bytes.
    blocks: [[AtomicU64; 2]; BLOCKS_MAX],
}

/// A request to a trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderSearchRequest {
    /// The request's id, which the answer repeats.
    pub ask: u64,
    /// Addresses and bytes of live blocks, oldest first.
    pub blocks: Vec<(u64, u64)>,
    /// How long the search may take.
    pub budget_ms: u32,
}

impl Control {
    /// Changes the turn to `to` if it is one of `from`. Returns whether it did.
    fn turn_from(&self, from: &[u32], to: u32) -> bool {
        // Acquire: sees what the other side wrote before it passed the turn.
        from.iter().any(|&from| self.turn.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok())
    }

    fn give_turn(&self, to: u32) {
        // Release: pairs with the Acquire in `turn_from`.
        self.turn.store(to, Ordering::Release);
    }
}

// Relaxed in the following functions: taking and passing the turn order the reads and writes between them.
impl Region {
    /// Forbids requests. Must be called before a host opens the region.
    pub fn forbid_holders(&self) {
        self.holders_control().give_turn(FORBIDDEN);
    }

    /// The address of the word that is [`ASKED_WORD`] while there is a request; `None` when requests are forbidden. A
    /// thread may sleep on the word while it has another value.
    #[must_use]
    pub fn holders_word(&self) -> Option<usize> {
        (!self.forbids_holders()).then(|| self.holders_control().turn.as_ptr() as usize)
    }

    /// Wakes the thread that sleeps on the word.
    pub fn wake_holders(&self) {
        // SAFETY: the word is in this mapping; waking reads and writes nothing there.
        unsafe {
            libc::syscall(libc::SYS_futex, self.holders_control().turn.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
        }
    }

    /// Whether requests are forbidden.
    #[must_use]
    pub fn forbids_holders(&self) -> bool {
        self.holders_control().turn.load(Ordering::Relaxed) == FORBIDDEN
    }

    /// The host makes a request, which replaces an earlier one. Returns `false` when the trainer is reading a request
    /// or forbids requests.
    pub fn ask_holders(&self, ask: u64, budget_ms: u32, blocks: &[(u64, u64)]) -> bool {
        let control = self.holders_control();
        if !control.turn_from(&[IDLE, ASKED], WRITING) {
            return false;
        }
        let blocks = &blocks[..blocks.len().min(BLOCKS_MAX)];
        control.ask.store(ask, Ordering::Relaxed);
        control.budget_ms.store(budget_ms, Ordering::Relaxed);
        control.count.store(blocks.len() as u64, Ordering::Relaxed);
        for ([addr, bytes], block) in control.blocks.iter().zip(blocks) {
            addr.store(block.0, Ordering::Relaxed);
            bytes.store(block.1, Ordering::Relaxed);
        }
        control.give_turn(ASKED);
        self.wake_holders();
        true
    }

    /// The host withdraws a request that was not taken.
    pub fn withdraw_holders(&self) {
        self.holders_control().turn_from(&[ASKED], IDLE);
    }

    /// The trainer takes the request, if there is one.
    #[must_use]
    pub fn holders_asked(&self) -> Option<HolderSearchRequest> {
        let control = self.holders_control();
        if control.turn.load(Ordering::Relaxed) != ASKED || !control.turn_from(&[ASKED], READING) {
            return None;
        }
        let count = (control.count.load(Ordering::Relaxed) as usize).min(BLOCKS_MAX);
        let blocks = control.blocks[..count].iter();
        let asked = HolderSearchRequest {
            ask: control.ask.load(Ordering::Relaxed),
            blocks: blocks.map(|[addr, bytes]| (addr.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))).collect(),
            budget_ms: control.budget_ms.load(Ordering::Relaxed),
        };
        control.give_turn(IDLE);
        Some(asked)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn region() -> Arc<Region> {
        Region::create(1, 16).unwrap()
    }

    #[test]
    fn an_ask_is_taken_once() {
        let region = region();
        assert_eq!(region.holders_asked(), None);
        assert!(region.ask_holders(7, 100, &[(1 << 40, 512), (2 << 40, 1_024)]));
        let asked = HolderSearchRequest { ask: 7, blocks: vec![(1 << 40, 512), (2 << 40, 1_024)], budget_ms: 100 };
        assert_eq!(region.holders_asked(), Some(asked));
        assert_eq!(region.holders_asked(), None);
    }

    #[test]
    fn an_ask_that_no_one_took_is_replaced_or_taken_back() {
        let region = region();
        assert!(region.ask_holders(1, 100, &[(1, 1); BLOCKS_MAX + 1]));
        assert!(region.ask_holders(2, 50, &[(2, 2)]));
        assert_eq!(region.holders_asked(), Some(HolderSearchRequest { ask: 2, blocks: vec![(2, 2)], budget_ms: 50 }));
        assert!(region.ask_holders(3, 50, &[(1, 1); BLOCKS_MAX + 1]));
        region.withdraw_holders();
        assert_eq!(region.holders_asked(), None);
    }

    #[test]
    fn who_forbids_it_is_not_asked() {
        let region = region();
        region.forbid_holders();
        assert!(region.forbids_holders() && !region.ask_holders(1, 100, &[(1, 1)]));
        region.withdraw_holders();
        assert!(region.forbids_holders() && region.holders_asked().is_none());
    }

    #[test]
    fn what_a_broken_host_writes_stays_in_bounds() {
        let region = region();
        assert!(region.ask_holders(1, 100, &[(1, 1)]));
        region.holders_control().count.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(region.holders_asked().unwrap().blocks.len(), BLOCKS_MAX);
        region.holders_control().turn.store(77, Ordering::Relaxed);
        assert!(region.holders_asked().is_none() && !region.ask_holders(2, 1, &[]) && !region.forbids_holders());
    }

    #[test]
    fn asks_that_are_replaced_while_they_are_taken_are_taken_whole() {
        let region = region();
        let taker = region.clone();
        let taking = std::thread::spawn(move || {
            let mut last = 0;
            while last < 20_000 {
                let Some(asked) = taker.holders_asked() else { continue };
                assert!(asked.ask > last, "{} after {last}", asked.ask);
                last = asked.ask;
                assert!(asked.blocks.iter().all(|block| *block == (last, last)), "{asked:?}");
            }
        });
        for ask in 1..=20_000 {
            while !region.ask_holders(ask, 1, &[(ask, ask); 8]) {
                std::hint::spin_loop();
            }
        }
        taking.join().unwrap();
    }
}
