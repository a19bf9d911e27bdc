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
//!
//! Others may make groups, too: a user of the node below `user.slice`, and a container of another runtime below its own
//! group, if that was delegated to it. So `kubepods` counts only where the kubelet makes it ([`Root`]).

use super::PodUid;

/// A part of a path, by its meaning to the kubelet.
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

/// The parent of the kubelet's groups on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Root {
    /// The names above `kubepods` in the reader's own path. `None` if its path does not show them, because it is in no pod or in a
    /// cgroup namespace of its own.
    above: Option<Vec<Box<[u8]>>>,
}

impl Root {
    /// Derives the root from the text of the reader's own `cgroup` file.
    pub(super) fn of_reader(text: &[u8]) -> Self {
        let anywhere = Self::default();
        let own = text.split(|byte| *byte == b'\n').filter_map(path_of).find(|path| anywhere.pod_in(path).is_some());
        let above =
            |path: &[u8]| names(path).take_while(|name| Part::of(name) != Part::Kubepods).map(Into::into).collect();
        Self { above: own.filter(|path| !is_relative(path)).map(above) }
    }

    /// The pod of a process, given the text of its `cgroup` file. In version 1 there is a path for each hierarchy: `None` if
    /// they name different pods.
    pub(super) fn pod_of(&self, text: &[u8]) -> Option<PodUid> {
        let mut pods = text.split(|byte| *byte == b'\n').filter_map(path_of).filter_map(|path| self.pod_in(path));
        let pod = pods.next()?;
        pods.all(|other| other == pod).then_some(pod)
    }

    fn pod_in(&self, path: &[u8]) -> Option<PodUid> {
        let is_relative = is_relative(path);
        let visible = || names(path).skip_while(|name| Part::of(name) == Part::Hidden);
        let mut parts = visible().map(Part::of).peekable();
        let is_below = is_relative && matches!(parts.peek(), Some(Part::Class | Part::Pod(_)));
        if !is_below {
            let above = parts.by_ref().position(|part| part == Part::Kubepods)?;
            if !self.is_kubelets(visible().take(above), is_relative) {
                return None;
            }
        }
        match (parts.next()?, parts.next()) {
            (Part::Pod(uid), _) | (Part::Class, Some(Part::Pod(uid))) => Some(uid),
            _ => None,
        }
    }

    /// Whether the kubelet may have made `kubepods` below these names.
    fn is_kubelets<'a>(&self, mut above: impl Iterator<Item = &'a [u8]>, is_relative: bool) -> bool {
        match &self.above {
            Some(own) if !is_relative => above.eq(own.iter().map(AsRef::as_ref)),
            // A reader in a pod has the names above in common with other pods, so they are hidden. Only systemd makes slices.
            _ if is_relative => above.all(|name| name.ends_with(b".slice") && !is_delegated(name)),
            _ => !above.any(is_delegated),
        }
    }
}

/// Whether systemd lets others make groups below the group of this name.
fn is_delegated(name: &[u8]) -> bool {
    let is_services = |name: &[u8]| name.starts_with(b"user@") && name.ends_with(b".service");
    matches!(name, b"user.slice" | b"machine.slice") || is_services(name)
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

fn is_relative(path: &[u8]) -> bool {
    names(path).next() == Some(b"..")
}

/// The path in a line such as `4:cpu,cpuacct:/kubepods`. Paths may contain colons.
fn path_of(line: &[u8]) -> Option<&[u8]> {
    line.splitn(3, |byte| *byte == b':').nth(2)
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

    /// The pod, for a reader that is in no pod itself.
    fn pod_of(text: &[u8]) -> Option<PodUid> {
        Root::default().pod_of(text)
    }

    /// The pod, for a reader whose own group is `own`.
    fn pod_seen_from(own: &str, path: &str) -> Option<PodUid> {
        let own = Root::of_reader(format!("1:name=systemd:/\n0::{}\n", own.replace("OTHER", OTHER)).as_bytes());
        own.pod_of(format!("0::{}\n", path.replace("UID", UID)).as_bytes())
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
    fn groups_that_others_may_make_are_of_no_pod() {
        for path in [
            "/user.slice/user-1000.slice/user@1000.service/app.slice/kubepods/podUID/x",
            "/user.slice/kubepods/burstable/podUID",
            "/machine.slice/machine-a.scope/kubepods.slice/kubepods-podU_I_D.slice",
            "/../../../../user.slice/user-1000.slice/user@1000.service/kubepods/podUID",
            "/../../../../user.slice/kubepods.slice/kubepods-podU_I_D.slice",
            "/../../../docker/0123abcd/kubepods/podUID",
            "/../../../../system.slice/docker-0123abcd.scope/kubepods/podUID",
        ] {
            assert_eq!(pod_at(path), None, "{path}");
        }
    }

    #[test]
    fn a_reader_in_a_pod_knows_where_pods_are() {
        for above in ["", "/kubelet", "/docker/0123abcd/kubelet", "/system.slice/docker-0123abcd.scope"] {
            let own = format!("{above}/kubepods/burstable/podOTHER/9876");
            for class in ["", "/burstable", "/besteffort"] {
                let path = format!("{above}/kubepods{class}/podUID/0123");
                assert_eq!(pod_seen_from(&own, &path), uid(UID), "{path} from {own}");
            }
            for path in ["/docker/f00/kubepods/podUID", "/x/kubepods/podUID", "/user.slice/kubepods/podUID"] {
                assert_eq!(pod_seen_from(&own, path), None, "{path} from {own}");
                assert_eq!(pod_seen_from(&own, &format!("{above}{path}")), None, "{above}{path} from {own}");
            }
        }
    }

    #[test]
    fn a_reader_that_cannot_see_where_it_is_believes_the_usual_places() {
        for own in ["/", "/system.slice/gce-metadata-proxy.service"] {
            for path in
                ["/kubepods/podUID", "/docker/0123/kubelet/kubepods/podUID", "/../../podUID", "/node-1/kubepods/podUID"]
            {
                assert_eq!(pod_seen_from(own, path), uid(UID), "{path} from {own}");
            }
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
        // Such as that of a CRI-O process on a node with both versions.
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

    /// Names that may be above or below the pod.
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
