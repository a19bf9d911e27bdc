use super::*;

/// The image and the manifests contain the user ID as text.
#[test]
fn the_image_and_the_sidecar_manifests_use_the_same_user() {
    for (text, named) in [
        (include_str!("../../../Dockerfile"), format!("USER {SIDECAR_UID}:{SIDECAR_UID}\n")),
        (include_str!("../../../deploy/sidecar/environment/pod.yaml"), format!("runAsUser: {SIDECAR_UID}\n")),
        (include_str!("../../../deploy/sidecar/environment/pod.yaml"), format!("runAsGroup: {SIDECAR_UID}\n")),
        (include_str!("../../../deploy/sidecar/redirect/pod.yaml"), format!("--proxy-uid={SIDECAR_UID}\n")),
    ] {
        assert_eq!(text.matches(&named).count(), 1, "{named} is not in\n{text}");
    }
}

/// An application that runs as the proxy's user bypasses it without any sign.
#[test]
fn the_sidecars_user_is_not_a_common_one() {
    assert!(![0, 1, 1000, 1001, 65_532, 65_533, 65_534, 65_535].contains(&SIDECAR_UID));
}

/// The chart passes the flag only if the value differs from this one.
#[test]
fn the_chart_has_the_same_default_for_new_connections() {
    let default = Rate::DEFAULT.per_second();
    for (text, named) in [
        (
            include_str!("../../../deploy/helm/gce-metadata-proxy/values.yaml"),
            format!("maxNewConnections: {default}\n"),
        ),
        (
            include_str!("../../../deploy/helm/gce-metadata-proxy/templates/_proxy.tpl"),
            format!("ne (int .maxNewConnections) {default} }}}}\n"),
        ),
        (
            include_str!("../../../deploy/helm/gce-metadata-proxy/values.schema.json"),
            format!("\"maximum\": {}\n", Rate::MAX),
        ),
    ] {
        assert_eq!(text.matches(&named).count(), 1, "{named} is not in\n{text}");
    }
}
