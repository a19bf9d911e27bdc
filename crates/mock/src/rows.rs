//! The tree as data: every path that the mock serves under `/computeMetadata/v1/`, and its initial value.
//!
//! Names follow Google's document "View and query VM metadata", the guest agent and the emulator. The values
//! are invented.

use super::kind::Kind::{self, Directory, Json, JsonLines, Lines, Number, Text};

/// Contained in all values that no pod should see, and in no others.
pub const SECRET_MARKER: &str = "MOCK-SECRET";

/// The e-mail of the account that `default` stands for, in the format of Compute Engine's default account.
pub const DEFAULT_ACCOUNT: &str = "123456789012-compute@developer.gserviceaccount.com";

/// The e-mail of a second account.
pub const BUILDER_ACCOUNT: &str = "builder@mock-project.iam.gserviceaccount.com";

/// The scopes of every account, one per line.
pub(super) const SCOPES: &str = "https://www.googleapis.com/auth/cloud-platform\n\
    https://www.googleapis.com/auth/devstorage.read_only\n\
    https://www.googleapis.com/auth/userinfo.email";

/// The instance attribute that allows guests to write under `instance/guest-attributes/` if it is `TRUE`.
pub(super) const ENABLE_GUEST_ATTRIBUTES: &str = "instance/attributes/enable-guest-attributes";

/// The instance attribute that disables the legacy trees unless it is `false`. The name is Google's.
pub(super) const DISABLE_LEGACY_ENDPOINTS: &str = "instance/attributes/disable-legacy-endpoints";

/// If this leaf exists, workload certificates are configured. Otherwise their directory answers 412.
pub(super) const WORKLOAD_CERTIFICATES: &str = "instance/gce-workload-certificates/config-status";

/// A path relative to the API version, its kind, and its initial value. Directories end in `/` and are listed
/// only if they may be empty.
pub(super) type Row = (&'static str, Kind, &'static str);

/// Values that the real server returns to any client with the right header and that reveal nothing except the
/// shape of the machine.
pub(super) const PLAIN: &[Row] = &[
    ("instance/attributes/", Directory, ""),
    ("instance/attributes/cluster-location", Text, "us-central1"),
    ("instance/attributes/cluster-name", Text, "mock-cluster"),
    ("instance/attributes/cluster-uid", Text, "5f0c0a8f6d6a4b6c8d3e2b1a09f8e7d6c5b4a392817f6e5d4c3b2a190817f6e5"),
    (DISABLE_LEGACY_ENDPOINTS, Text, "true"),
    (ENABLE_GUEST_ATTRIBUTES, Text, "TRUE"),
    ("instance/attributes/enable-oslogin", Text, "true"),
    ("instance/cpu-platform", Text, "Intel Broadwell"),
    ("instance/description", Text, ""),
    ("instance/disks/0/device-name", Text, "persistent-disk-0"),
    ("instance/disks/0/index", Number, "0"),
    ("instance/disks/0/interface", Text, "SCSI"),
    ("instance/disks/0/mode", Text, "READ_WRITE"),
    ("instance/disks/0/type", Text, "PERSISTENT-BALANCED"),
    ("instance/guest-attributes/", Directory, ""),
    ("instance/hostname", Text, "gke-mock-cluster-default-pool-0a1b2c3d-x1y2.us-central1-a.c.mock-project.internal"),
    ("instance/id", Number, "4520031799277581759"),
    ("instance/image", Text, "projects/gke-node-images/global/images/gke-mock-cos-stable"),
    ("instance/licenses/0/id", Text, "6880041984096540132"),
    ("instance/licenses/1/id", Text, "1001010"),
    ("instance/machine-type", Text, "projects/123456789012/machineTypes/e2-standard-4"),
    ("instance/maintenance-event", Text, "NONE"),
    ("instance/name", Text, "gke-mock-cluster-default-pool-0a1b2c3d-x1y2"),
    ("instance/network-interfaces/0/access-configs/0/external-ip", Text, "203.0.113.17"),
    ("instance/network-interfaces/0/access-configs/0/type", Text, "ONE_TO_ONE_NAT"),
    ("instance/network-interfaces/0/dns-servers", Lines, "169.254.169.254"),
    ("instance/network-interfaces/0/forwarded-ips/", Directory, ""),
    ("instance/network-interfaces/0/gateway", Text, "10.128.0.1"),
    ("instance/network-interfaces/0/ip", Text, "10.128.0.9"),
    ("instance/network-interfaces/0/ip-aliases/0", Text, "10.4.1.0/24"),
    ("instance/network-interfaces/0/ipv6s", Lines, "2600:1900:4000:1::"),
    ("instance/network-interfaces/0/mac", Text, "42:01:0a:80:00:09"),
    ("instance/network-interfaces/0/mtu", Number, "1460"),
    ("instance/network-interfaces/0/network", Text, "projects/123456789012/networks/default"),
    ("instance/network-interfaces/0/subnetmask", Text, "255.255.240.0"),
    ("instance/network-interfaces/0/target-instance-ips/", Directory, ""),
    ("instance/partner-attributes/", Directory, ""),
    ("instance/preempted", Text, "FALSE"),
    ("instance/remaining-cpu-time", Text, "-1"),
    ("instance/scheduling/automatic-restart", Text, "TRUE"),
    ("instance/scheduling/on-host-maintenance", Text, "MIGRATE"),
    ("instance/scheduling/preemptible", Text, "FALSE"),
    ("instance/shutdown-details/stop-state", Text, "RUNNING"),
    ("instance/tags", JsonLines, "gke-mock-cluster-0a1b2c3d-node\nallow-health-checks"),
    ("instance/upcoming-maintenance", Text, "NONE"),
    ("instance/virtual-clock/drift-token", Text, "0"),
    ("instance/vlan-network-interfaces/", Directory, ""),
    ("instance/zone", Text, "projects/123456789012/zones/us-central1-a"),
    ("project/attributes/", Directory, ""),
    ("project/numeric-project-id", Number, "123456789012"),
    ("project/project-id", Text, "mock-project"),
    ("universe/universe-domain", Text, "googleapis.com"),
];

/// Values that pods must not read: bootstrap secrets, scripts, keys, certificates, users, and any custom
/// attributes. Every value contains the [`SECRET_MARKER`].
pub(super) const SECRET: &[Row] = &[
    ("instance/attributes/bootstrap-kubeconfig", Text, KUBECONFIG),
    ("instance/attributes/common-psm1", Text, "# MOCK-SECRET common-psm1"),
    ("instance/attributes/configure-sh", Text, SCRIPT),
    ("instance/attributes/containerd-configure-sh", Text, SCRIPT),
    ("instance/attributes/created-by", Text, "projects/123456789012/zones/us-central1-a/MOCK-SECRET-created-by"),
    ("instance/attributes/gce-container-declaration", Text, "spec: {env: [{name: PASSWORD, value: MOCK-SECRET}]}\n"),
    ("instance/attributes/gce-initial-windows-password", Text, "MOCK-SECRET-initial-password"),
    ("instance/attributes/gce-initial-windows-user", Text, "MOCK-SECRET-initial-user"),
    ("instance/attributes/google-container-manifest", Text, "containers: [{env: [{value: MOCK-SECRET-manifest}]}]\n"),
    ("instance/attributes/instance-template", Text, "projects/123456789012/MOCK-SECRET-instance-template"),
    ("instance/attributes/kube-env", Text, KUBE_ENV),
    ("instance/attributes/kube-labels", Text, "team=MOCK-SECRET-kube-labels"),
    ("instance/attributes/kube-master-certs", Text, "MASTER_KEY: MOCK-SECRET-master-key\n"),
    ("instance/attributes/kubeconfig", Text, KUBECONFIG),
    ("instance/attributes/kubelet-config", Text, "kind: KubeletConfiguration\nname: MOCK-SECRET-kubelet-config\n"),
    ("instance/attributes/my-app-password", Text, "MOCK-SECRET-of-a-customer"),
    ("instance/attributes/shutdown-script", Text, SCRIPT),
    ("instance/attributes/ssh-keys", Text, SSH_KEYS),
    ("instance/attributes/sshKeys", Text, SSH_KEYS),
    ("instance/attributes/startup-script", Text, SCRIPT),
    ("instance/attributes/startup-script-url", Text, "https://storage.mock.invalid/x?signature=MOCK-SECRET"),
    ("instance/attributes/user-data", Text, "#cloud-config\npassword: MOCK-SECRET-user-data\n"),
    ("instance/attributes/user-profile-psm1", Text, "# MOCK-SECRET user-profile-psm1"),
    ("instance/attributes/windows-keys", Text, "{\"userName\":\"MOCK-SECRET-windows-keys\"}"),
    ("instance/attributes/windows-startup-script-ps1", Text, "# MOCK-SECRET windows-startup-script-ps1"),
    ("instance/credentials/mds-client-certificate", Text, "MOCK-SECRET-mds-client-certificate"),
    (WORKLOAD_CERTIFICATES, Json, "{\"partitionStatuses\":{\"MOCK-SECRET-pool\":\"OK\"}}"),
    ("instance/gce-workload-certificates/trust-anchors", Json, "{\"trustAnchors\":{\"MOCK-SECRET-pool\":{}}}"),
    ("instance/gce-workload-certificates/workload-identities", Json, WORKLOAD_IDENTITIES),
    ("instance/partner-attributes/partner-key", Text, "MOCK-SECRET-of-a-partner"),
    ("instance/platform-security/auto-mtls-configuration", Json, AUTO_MTLS),
    ("instance/workload-certificates-config-status", Json, "{\"partitionStatuses\":{\"MOCK-SECRET-pool\":\"OK\"}}"),
    ("instance/workload-identities", Json, WORKLOAD_IDENTITIES),
    ("instance/workload-trusted-root-certs", Json, "{\"rootCertificates\":[\"MOCK-SECRET-root\"]}"),
    ("oslogin/authorize", Json, "{\"success\":true,\"for\":\"MOCK-SECRET-user\"}"),
    ("oslogin/groups", Json, "{\"posixGroups\":[{\"name\":\"MOCK-SECRET-group\",\"gid\":1001}]}"),
    ("oslogin/users", Json, "{\"loginProfiles\":[{\"name\":\"MOCK-SECRET-user\"}]}"),
    ("project/attributes/ssh-keys", Text, SSH_KEYS),
    ("project/attributes/sshKeys", Text, SSH_KEYS),
];

/// All initially secret paths, relative to `/computeMetadata/v1/`, such as `instance/attributes/kube-env`.
pub fn secret_paths() -> impl Iterator<Item = &'static str> {
    SECRET.iter().map(|(path, _, _)| *path)
}

const KUBE_ENV: &str = "\
CA_CERT: MOCK-SECRET-ca-certificate
CLUSTER_NAME: mock-cluster
KUBELET_CERT: MOCK-SECRET-kubelet-certificate
KUBELET_KEY: MOCK-SECRET-kubelet-key
KUBERNETES_MASTER_NAME: 10.128.0.2
TPM_BOOTSTRAP_KEY: MOCK-SECRET-bootstrap-key
";
const KUBECONFIG: &str =
    "apiVersion: v1\nkind: Config\nusers: [{name: kubelet, user: {token: MOCK-SECRET-kubeconfig}}]\n";
const SCRIPT: &str = "#!/bin/bash\nset -e\nexport DOWNLOAD_TOKEN=MOCK-SECRET-script\n";
const SSH_KEYS: &str = "ada:ssh-ed25519 MOCK-SECRET-public-key ada@mock.invalid";
const WORKLOAD_IDENTITIES: &str = "{\"workloadCredentials\":{\"mock-pool\":{\"privateKeyPem\":\"MOCK-SECRET-key\"}}}";
const AUTO_MTLS: &str = "{\"s2a\":{\"plaintext_address\":\"MOCK-SECRET:9001\",\"mtls_address\":\"MOCK-SECRET:9002\"}}";

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests search for the marker: a secret without it could leak unnoticed, and a plain value with it would
    /// fail them.
    #[test]
    fn exactly_the_secrets_contain_the_marker() {
        for (path, _, value) in SECRET {
            assert!(value.contains(SECRET_MARKER) && !path.contains(SECRET_MARKER), "{path}");
        }
        for (path, _, value) in PLAIN {
            assert!(!value.contains(SECRET_MARKER) && !path.contains(SECRET_MARKER), "{path}");
        }
    }

    #[test]
    fn paths_are_unique() {
        let mut paths: Vec<_> = PLAIN.iter().chain(SECRET).map(|(path, _, _)| path).collect();
        paths.sort_unstable();
        assert!(paths.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn json_values_are_valid_json() {
        for (path, kind, value) in PLAIN.iter().chain(SECRET) {
            if *kind == Json {
                assert!(serde_json::from_str::<serde_json::Value>(value).is_ok(), "{path}");
            }
        }
    }
}
