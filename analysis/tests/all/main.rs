//! Tests of the guarantees of all pure functions, in one binary. Each file's name is its subject.

mod block_map;
mod boundaries;
mod contradictions;
mod explain;
mod initial_state;
mod judge;
mod judge_any;
mod judge_levels;
mod judge_long;
mod judge_patterns;
mod judge_rhythm;
mod judge_windows;
mod support;
mod tables;
mod verdict;
