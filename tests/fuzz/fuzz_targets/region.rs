//! The target `region` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (memctl_tests::fuzz::target("region").run)(bytes);
});
