//! The on/off environment variables of the tests.

use std::ffi::OsStr;

/// Whether this environment variable is on.
pub fn is_on(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| is_on_as(&value))
}

/// Whether tests run at full size, instead of a size that two processors handle easily.
pub fn is_full_size() -> bool {
    is_on("METADATA_PROXY_FULL_SIZE")
}

/// Whether this value turns a variable on: all but `0` and an empty one do.
fn is_on_as(value: &OsStr) -> bool {
    !["", "0"].contains(&value.to_str().unwrap_or("1"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn zero_and_nothing_are_off() {
        assert_eq!(
            ["1", "all", "00", "0", ""].map(|value| super::is_on_as(value.as_ref())),
            [true, true, true, false, false]
        );
    }
}
