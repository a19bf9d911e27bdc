use super::*;

/// Each names it for itself.
#[test]
fn the_image_and_the_manifests_of_the_sidecar_name_the_same_user() {
    for (text, named) in [
        (include_str!("../../Dockerfile"), format!("USER {SIDECAR_UID}:{SIDECAR_UID}\n")),
        (include_str!("../../deploy/sidecar/environment/pod.yaml"), format!("runAsUser: {SIDECAR_UID}\n")),
        (include_str!("../../deploy/sidecar/environment/pod.yaml"), format!("runAsGroup: {SIDECAR_UID}\n")),
        (include_str!("../../deploy/sidecar/redirect/pod.yaml"), format!("--proxy-uid={SIDECAR_UID}\n")),
    ] {
        assert_eq!(text.matches(&named).count(), 1, "{named} is not in\n{text}");
    }
}

/// An application that runs as the proxy's user goes round it, and nothing shows that.
#[test]
fn the_sidecar_s_user_is_none_that_applications_have() {
    assert!(![0, 1, 1000, 1001, 65_532, 65_533, 65_534, 65_535].contains(&SIDECAR_UID));
}
