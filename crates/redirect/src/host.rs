//! Whether this process is in the network of the machine itself, as in a pod with `hostNetwork: true`.
//!
//! The kernel shows some settings in its first network namespace only. They are not enough: a pod in a virtual machine of its own
//! (Kata Containers) may be in the first one of that machine. But runtimes give every pod a UTS namespace, except with
//! `hostNetwork: true`, where it has the node's host name. The first UTS namespace has the same number in all kernels since 3.8. A node
//! that is a container (kind) is in neither, and is not recognised.

use std::fs;
use std::path::Path;

/// `PROC_UTS_INIT_INO` of `linux/proc_ns.h`, as `/proc` shows it.
const FIRST_UTS: &str = "uts:[4026531838]";

pub(super) fn has_this_network() -> bool {
    is_first(Path::new("/proc"))
}

fn is_first(proc: &Path) -> bool {
    let is_first_uts = fs::read_link(proc.join("self/ns/uts")).is_ok_and(|link| link == Path::new(FIRST_UTS));
    is_first_uts && proc.join("sys/net/core/dev_weight").exists()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn both_namespaces_must_be_the_first() {
        for (uts, settings, expected) in [
            (FIRST_UTS, "dev_weight", true),
            (FIRST_UTS, "somaxconn", false),
            ("uts:[4026532191]", "dev_weight", false),
            ("uts:[4026532191]", "somaxconn", false),
        ] {
            let proc = std::env::temp_dir().join(format!("redirect-host-{}", std::process::id()));
            for dir in ["self/ns", "sys/net/core"] {
                fs::create_dir_all(proc.join(dir)).expect("a directory");
            }
            symlink(uts, proc.join("self/ns/uts")).expect("a link");
            fs::write(proc.join("sys/net/core").join(settings), "64\n").expect("a file");
            assert_eq!(is_first(&proc), expected, "{uts} {settings}");
            fs::remove_dir_all(&proc).expect("removed");
        }
    }
}
