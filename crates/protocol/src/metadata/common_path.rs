//! [`CommonPath`]: the few paths that every client library requests.
//!
//! They are recognised by their full text when a path is parsed. Everything that depends on the path alone is
//! precomputed: that it is canonical, the policy's verdict, and whether its value is cached.

macro_rules! paths {
    ($($(#[$doc:meta])* $name:ident = $text:literal $(or $older:literal)?),+ $(,)?) => {
        /// A path that every client library requests.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum CommonPath { $($(#[$doc])* $name),+ }

        impl CommonPath {
            /// All common paths. The index of each is its discriminant.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$name),+];

            /// The canonical path.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            pub(super) fn from_text(path: &str) -> Option<Self> {
                match path {
                    $($text => Some(Self::$name),)+
                    // Last, so that it costs the others nothing.
                    $($($older => Some(Self::$name),)?)+
                    _ => None
                }
            }
        }
    };
}

// Paths are compared in this order, so the most requested one comes first.
paths! {
    /// The default account's access token.
    DefaultToken = "/computeMetadata/v1/instance/service-accounts/default/token",
    /// Part of every API's host name. The server answers to both spellings; many deployed libraries request the older one.
    UniverseDomain = "/computeMetadata/v1/universe/universe-domain" or "/computeMetadata/v1/universe/universe_domain",
    /// The project, by name.
    ProjectId = "/computeMetadata/v1/project/project-id",
    /// The project, by number.
    NumericProjectId = "/computeMetadata/v1/project/numeric-project-id",
    /// The machine, by number.
    InstanceId = "/computeMetadata/v1/instance/id",
    /// The machine's zone.
    Zone = "/computeMetadata/v1/instance/zone",
    /// The machine, by its name in the project.
    InstanceName = "/computeMetadata/v1/instance/name",
    /// The machine, by its name in the network.
    Hostname = "/computeMetadata/v1/instance/hostname",
    /// The e-mail behind the alias `default`.
    DefaultEmail = "/computeMetadata/v1/instance/service-accounts/default/email",
    /// The default account.
    DefaultAccount = "/computeMetadata/v1/instance/service-accounts/default/",
    /// The default account's scopes.
    DefaultScopes = "/computeMetadata/v1/instance/service-accounts/default/scopes",
    /// The directory of all accounts.
    Accounts = "/computeMetadata/v1/instance/service-accounts/",
    /// The machine's directory.
    Instance = "/computeMetadata/v1/instance/",
    /// The GKE cluster of the machine.
    ClusterName = "/computeMetadata/v1/instance/attributes/cluster-name",
    /// The zone or region of that cluster.
    ClusterLocation = "/computeMetadata/v1/instance/attributes/cluster-location",
    /// The machine's type.
    MachineType = "/computeMetadata/v1/instance/machine-type",
    /// The machine's attributes, by key.
    Attributes = "/computeMetadata/v1/instance/attributes/",
    /// The template that the machine was created from.
    InstanceTemplate = "/computeMetadata/v1/instance/attributes/instance-template",
    /// The group that created the machine.
    CreatedBy = "/computeMetadata/v1/instance/attributes/created-by",
    /// The machine's IPv6 addresses.
    Ipv6s = "/computeMetadata/v1/instance/network-interfaces/0/ipv6s",
    /// The project's directory.
    Project = "/computeMetadata/v1/project/",
    /// The directory of this API version.
    Version = "/computeMetadata/v1/",
}
