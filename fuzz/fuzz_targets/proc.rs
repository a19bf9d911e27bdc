//! Files of `/proc`: the first byte chooses the parser. What a pod can write of them must change nothing.
#![no_main]

use identity::pods::fuzzing::{addresses_v4, addresses_v6, pod_of, stat};
use libfuzzer_sys::fuzz_target;

const POD: &str = "6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f";

fuzz_target!(|input: &[u8]| {
    let Some((parser, text)) = input.split_first() else { return };
    match parser % 5 {
        0 => any_text_has_one_pod_or_none(text),
        1 => a_pods_own_groups_do_not_matter(text),
        2 => a_name_does_not_matter(text),
        3 => only_what_is_written_is_an_address(text),
        _ => only_whole_addresses_of_version_6(text),
    }
});

fn any_text_has_one_pod_or_none(text: &[u8]) {
    let Some(pod) = pod_of(text) else { return };
    // Another hierarchy that names the same pod does not matter; one that names another pod does.
    let with = |uid: &str| [text, format!("\n9:x:/kubepods/pod{uid}/0\n").as_bytes()].concat();
    assert_eq!(pod_of(&with(&pod.to_string())), Some(pod));
    assert_eq!(pod_of(&with("ffffffff-ffff-4fff-bfff-ffffffffffff")).filter(|other| *other != pod), None);
}

fn a_pods_own_groups_do_not_matter(below: &[u8]) {
    if below.contains(&b'\n') {
        return;
    }
    for own in [
        format!("0::/kubepods/burstable/pod{POD}/"),
        format!("0::/../../pod{POD}/"),
        format!("0::/kubepods.slice/kubepods-pod{}.slice/", POD.replace('-', "_")),
    ] {
        let found = pod_of(&[own.as_bytes(), below].concat()).map(|pod| pod.to_string());
        assert_eq!(found.as_deref(), Some(POD));
    }
}

fn a_name_does_not_matter(name: &[u8]) {
    let rest = b") S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4711 1019904 2 0 0\n";
    assert_eq!(stat(&[b"20 (", name, rest].concat()), Some((true, 4711)));
    stat(name);
}

fn only_what_is_written_is_an_address(text: &[u8]) {
    let written = String::from_utf8_lossy(text);
    for address in addresses_v4(text) {
        assert!(written.contains(&address.to_string()), "{address}");
    }
}

fn only_whole_addresses_of_version_6(text: &[u8]) {
    let written = String::from_utf8_lossy(text).to_ascii_lowercase();
    for address in addresses_v6(text) {
        assert!(written.contains(&format!("{:032x}", u128::from(address))), "{address}");
    }
}
