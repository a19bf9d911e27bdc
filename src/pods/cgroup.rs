//! Reads the pod of a process from `/proc/PID/cgroup`.
//!
//! The kubelet places each pod below `kubepods`. With the cgroupfs driver the path is
//! `/kubepods/burstable/pod<uid>/<container>`; with systemd it is
//! `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<container>.scope`, with
//! underscores in the UID. Guaranteed pods have no part for their class. The kubelet itself may be below other groups,
//! such as `/kubelet.slice/kubelet-kubepods.slice`.
//!
//! A reader with a cgroup namespace of its own sees paths relative to its own group. Those of other pods begin with `/..`,
//! and the parts that both have in common are missing, often `kubepods` itself: `/../../pod<uid>/<container>`.
//!
//! Only the outermost part that names a pod counts. A pod may make groups of any name below its own, and cannot leave it.

use super::PodUid;

/// The part of a path that comes next, as far as the kubelet gives it a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// `..`: the reader's namespace hides what is here.
    Hidden,
    /// The parent of all pods.
    Kubepods,
    /// The parent of the burstable or best-effort pods.
    Class,
    Pod(PodUid),
    Other,
}

/// The pod of a process, given the text of its `cgroup` file. In version 1 there is a path for each hierarchy: `None` if they
/// name different pods.
pub(super) fn pod_of(text: &[u8]) -> Option<PodUid> {
    let mut pods = text.split(|byte| *byte == b'\n').filter_map(path_of).filter_map(pod_in);
    let pod = pods.next()?;
    pods.all(|other| other == pod).then_some(pod)
}

/// The path in a line such as `4:cpu,cpuacct:/kubepods`. Paths may contain colons.
fn path_of(line: &[u8]) -> Option<&[u8]> {
    line.splitn(3, |byte| *byte == b':').nth(2)
}

fn pod_in(path: &[u8]) -> Option<PodUid> {
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).map(Part::of).peekable();
    let is_relative = parts.peek() == Some(&Part::Hidden);
    let mut parts = parts.skip_while(|part| *part == Part::Hidden).peekable();
    let is_below = is_relative && matches!(parts.peek(), Some(Part::Class | Part::Pod(_)));
    if !is_below {
        parts.find(|part| *part == Part::Kubepods)?;
    }
    match (parts.next()?, parts.next()) {
        (Part::Pod(uid), _) | (Part::Class, Some(Part::Pod(uid))) => Some(uid),
        _ => None,
    }
}

impl Part {
    fn of(name: &[u8]) -> Self {
        let Ok(name) = std::str::from_utf8(name) else { return Self::Other };
        match name.strip_suffix(".slice") {
            Some(slice) => Self::of_slice(slice),
            None if name == ".." => Self::Hidden,
            None if name == "kubepods" => Self::Kubepods,
            None if matches!(name, "burstable" | "besteffort") => Self::Class,
            None => name.strip_prefix("pod").and_then(PodUid::parse).map_or(Self::Other, Self::Pod),
        }
    }

    /// The name of a slice contains those of its parents, separated by dashes.
    fn of_slice(name: &str) -> Self {
        if let Some((parent, uid)) = name.rsplit_once("-pod")
            && matches!(Self::of_slice(parent), Self::Kubepods | Self::Class)
        {
            return PodUid::parse(uid).map_or(Self::Other, Self::Pod);
        }
        let parent = name.strip_suffix("-burstable").or_else(|| name.strip_suffix("-besteffort"));
        match parent.unwrap_or(name).strip_suffix("kubepods") {
            Some(above) if above.is_empty() || above.ends_with('-') => {
                if parent.is_some() {
                    Self::Class
                } else {
                    Self::Kubepods
                }
            }
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f";
    const OTHER: &str = "11111111-2222-3333-4444-555555555555";

    fn uid(text: &str) -> Option<PodUid> {
        PodUid::parse(text)
    }

    /// `UID` and `U_I_D` stand for the UID of the pod.
    fn pod_at(path: &str) -> Option<PodUid> {
        let path = path.replace("U_I_D", &UID.replace('-', "_")).replace("UID", UID).replace("OTHER", OTHER);
        pod_of(format!("0::{path}\n").as_bytes())
    }

    #[test]
    fn every_driver_and_runtime_names_the_pod() {
        for path in [
            "/kubepods/podUID/0123abcd",
            "/kubepods/burstable/podUID/0123abcd",
            "/kubepods/besteffort/podUID",
            "/kubepods.slice/kubepods-podU_I_D.slice/cri-containerd-0123abcd.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/crio-0123abcd.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice/docker-0123.scope/init",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-podU_I_D.slice/cri-containerd-0123abcd.scope",
            "/docker/0123abcd/kubelet/kubepods/burstable/podUID/0123abcd",
            "/system.slice/containerd.service/kubepods/podUID/a:b",
            // CRI-O: the sandbox and containers, with cgroupfs, with crun, and conmon if its group is to be the pod's.
            "/kubepods/burstable/podUID/crio-0123abcd",
            "/kubepods.slice/kubepods-podU_I_D.slice/crio-0123abcd.scope/container",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/crio-conmon-0123abcd.scope",
            "/kubepods/podUID/crio-conmon-0123abcd",
            "/../kubepods/podUID",
            "/../../podUID/0123abcd",
            "/../../../burstable/podUID/0123abcd",
            "/../../kubepods-burstable-podU_I_D.slice/crio-0123abcd.scope",
            "/../../../kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice",
            "/../../../../kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_I_D.slice/x.scope",
        ] {
            assert_eq!(pod_at(path), uid(UID), "{path}");
        }
    }

    #[test]
    fn other_processes_are_of_no_pod() {
        for path in [
            "/",
            "/..",
            "/system.slice/kubelet.service",
            "/system.slice/crio.service",
            "/system.slice/crio-conmon-0123abcd.scope",
            "/user.slice/user-0.slice/podUID",
            "/podUID",
            "/burstable/podUID",
            "/kubepods",
            "/kubepods/burstable",
            "/kubepods/elsewhere/podUID",
            "/kubepods/burstable/elsewhere/podUID",
            "/kubepods/burstable/besteffort/podUID",
            "/kubepods.slice/kubepods-podU_I_D.service",
            "/kubepods/pod6f0a9d3e",
            "/notkubepods.slice/notkubepods-podU_I_D.slice",
            "/../0123abcd/podUID",
        ] {
            assert_eq!(pod_at(path), None, "{path}");
        }
    }

    #[test]
    fn groups_that_a_pod_makes_do_not_change_which_pod_it_is() {
        for below in [
            "podOTHER",
            "kubepods/podOTHER",
            "kubepods/burstable/podOTHER/x",
            "kubepods.slice/kubepods-podOTHER.slice",
            "../podOTHER",
        ] {
            for path in ["/kubepods/podUID", "/../../podUID", "/kubepods.slice/kubepods-podU_I_D.slice/crio-1.scope"] {
                let path = format!("{path}/{below}");
                assert_eq!(pod_at(&path), uid(UID), "{path}");
            }
        }
    }

    #[test]
    fn static_pods_have_a_uid_without_dashes() {
        let digits = UID.replace('-', "");
        assert_eq!(pod_at(&format!("/kubepods/burstable/pod{digits}")), uid(UID));
        assert_eq!(pod_at(&format!("/kubepods.slice/kubepods-pod{digits}.slice/x.scope")), uid(UID));
    }

    #[test]
    fn hierarchies_must_agree() {
        let text = format!("9:name=systemd:/\n8:pids:/kubepods/pod{UID}\n4:cpu,cpuacct:/kubepods/pod{UID}/x\n0::/\n");
        assert_eq!(pod_of(text.as_bytes()), uid(UID));
        // As of a process of CRI-O's on a node with both versions.
        let systemd =
            format!("13:hugetlb:/\n0::/kubepods.slice/kubepods-pod{}.slice/crio-1.scope\n", UID.replace('-', "_"));
        assert_eq!(pod_of(systemd.as_bytes()), uid(UID));
        let text = format!("{text}3:memory:/kubepods/pod{OTHER}\n");
        assert_eq!(pod_of(text.as_bytes()), None);
    }

    #[test]
    fn bytes_that_are_no_text_hide_nothing() {
        let mut text = format!("0::/kubepods/pod{UID}/").into_bytes();
        text.extend(b"\xff\xfe");
        assert_eq!(pod_of(&text), uid(UID));
    }

    /// What may be above or below the pod.
    fn names() -> impl Strategy<Value = Vec<String>> {
        let names = prop_oneof![
            "[a-z:.-]{1,12}",
            Just("kubepods".to_owned()),
            Just("burstable".to_owned()),
            Just(format!("pod{OTHER}")),
            Just("kubepods.slice".to_owned()),
            Just(format!("kubepods-pod{}.slice", OTHER.replace('-', "_"))),
        ];
        proptest::collection::vec(names, 0..4)
    }

    proptest! {
        #[test]
        fn only_what_is_above_the_pod_matters(digits: u128, below in names(), class in 0..3_usize, is_systemd: bool) {
            let pod = uid(&format!("{digits:032x}")).expect("32 digits");
            let class = ["", "burstable", "besteffort"][class];
            let path = match (is_systemd, class) {
                (false, "") => format!("/kubepods/pod{pod}"),
                (false, _) => format!("/kubepods/{class}/pod{pod}"),
                (true, "") => format!("/kubepods.slice/kubepods-pod{}.slice", pod.to_string().replace('-', "_")),
                (true, _) => format!(
                    "/kubepods.slice/kubepods-{class}.slice/kubepods-{class}-pod{}.slice",
                    pod.to_string().replace('-', "_")
                ),
            };
            let path = std::iter::once(path).chain(below).collect::<Vec<_>>().join("/");
            prop_assert_eq!(pod_of(format!("0::{path}\n").as_bytes()), Some(pod), "{}", path);
        }

        #[test]
        fn without_a_parent_of_pods_there_is_no_pod(above in "(/[a-z]{1,8}){0,3}", digits: u128) {
            let pod = uid(&format!("{digits:032x}")).expect("32 digits");
            prop_assume!(!above.contains("kubepods"));
            prop_assert_eq!(pod_of(format!("0::{above}/pod{pod}\n").as_bytes()), None);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = pod_of(&bytes);
        }

        #[test]
        fn no_path_panics(path in "(/|\\.|:|-|pod|slice|kubepods|burstable|[0-9a-f]{8}|\n){0,40}") {
            let _ = pod_of(path.as_bytes());
        }
    }
}
