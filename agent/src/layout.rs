//! The layouts that the shim (C++) and the hook (Rust) share. Sizes and offsets are asserted when either is compiled.
//!
//! Guarantees: a structure that changes on only one side does not compile there. If the numbers of the two sides
//! differ, a test (`live::shim`) that reads the shim's source fails.

/// Asserts sizes and offsets of structures that the shim shares, and keeps them for the comparison.
macro_rules! shared_layout {
    ($(#[$doc:meta])* $name:ident: $($rust:ident is $shim:ident, $size:literal { $($field:ident at $at:literal),+ })+) => {
        $(const _: () = {
            assert!(std::mem::size_of::<$rust>() == $size);
            $(assert!(std::mem::offset_of!($rust, $field) == $at);)+
        };)+

        $(#[$doc])*
        #[cfg(test)]
        pub(crate) const $name: &[(&str, usize, &[(&str, usize)])] =
            &[$((stringify!($shim), $size, &[$((stringify!($field), $at)),+])),+];
    };
}

pub(crate) use shared_layout;
