//! The target `http2` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (memctl_tests::fuzz::target("http2").run)(bytes);
});
