//! The flags of `--upstream none`.

use clap::Args;
use serde::Serialize;

use super::flag::{Flag, flags};
use super::given::{Given, Mistakes};
use super::syntax::{OrNone, PositiveNumber, Server, Word};
use proxy::upstream::{Named, Upstream};

/// The metadata server, or the values that are returned without one.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct UpstreamArgs {
    /// URL of the metadata server. Only http:// is supported. `none` on machines that have no metadata server: then only what
    /// is configured here, and pods' own accounts, are answered
    // By default its address on every GCE machine. A name would have to be resolved first.
    #[arg(long, value_name = "URL|none", env = "METADATA_PROXY_UPSTREAM", default_value = "http://169.254.169.254")]
    upstream: Given<OrNone<Server>>,

    #[command(flatten)]
    #[serde(flatten)]
    values: ValuesArgs,
}

flags! {
    /// Values to return without a metadata server.
    #[derive(Debug, Args, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub(super) struct ValuesArgs => Named {
        /// Project ID to return. Requires `--upstream none`
        #[arg(long, value_name = "ID", env = "METADATA_PROXY_PROJECT_ID")]
        project_id: Option<Given<Word>> => project_id,

        /// Project number to return. Requires `--upstream none`
        #[arg(long, value_name = "NUMBER", env = "METADATA_PROXY_NUMERIC_PROJECT_ID")]
        numeric_project_id: Option<Given<PositiveNumber>> => numeric_project_id,

        /// Cluster name to return. Requires `--upstream none`
        #[arg(long, value_name = "NAME", env = "METADATA_PROXY_CLUSTER_NAME")]
        cluster_name: Option<Given<Word>> => cluster_name,

        /// Cluster location to return: a region or a zone. Requires `--upstream none`
        #[arg(long, value_name = "LOCATION", env = "METADATA_PROXY_CLUSTER_LOCATION")]
        cluster_location: Option<Given<Word>> => cluster_location,

        /// Cluster UID to return. Requires `--upstream none`
        #[arg(long, value_name = "UID", env = "METADATA_PROXY_CLUSTER_UID")]
        cluster_uid: Option<Given<Word>> => cluster_uid,

        /// Zone to return. By default, with Workload Identity, that of the node's object. Requires `--upstream none`
        #[arg(long, value_name = "ZONE", env = "METADATA_PROXY_ZONE")]
        zone: Option<Given<Word>> => zone,

        /// Name and hostname of the instance to return. By default, with Workload Identity, the node's name. Requires `--upstream
        /// none`
        #[arg(long, value_name = "NAME", env = "METADATA_PROXY_INSTANCE_NAME")]
        instance_name: Option<Given<Word>> => instance_name,

        /// ID of the instance to return. By default a number made of the node's UID, or of the instance's name. Requires `--upstream
        /// none`
        #[arg(long, value_name = "NUMBER", env = "METADATA_PROXY_INSTANCE_ID")]
        instance_id: Option<Given<PositiveNumber>> => instance_id,
    }
}

impl Flag for UpstreamArgs {
    type Value = Upstream;

    fn resolve(self, mistakes: &mut Mistakes) -> Option<Upstream> {
        let server = self.upstream.resolve(mistakes);
        let named = self.values.resolve(mistakes);
        Some(match server? {
            None => Upstream::None(named?),
            Some(server) => Upstream::Server(server),
        })
    }

    fn showing(upstream: Upstream) -> Self {
        let (server, named) = match upstream {
            Upstream::Server(server) => (Some(server), Named::default()),
            Upstream::None(named) => (None, named),
        };
        Self { upstream: Flag::showing(server), values: Flag::showing(named) }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::tests::mistakes;

    #[test]
    fn mistakes_say_what_was_expected() {
        for (line, expected) in [
            (
                "--upstream none --instance-id=x",
                "--instance-id: \"x\" is not valid; expected a whole number, at least 1",
            ),
            ("--upstream none --project-id=a/b", "--project-id: \"a/b\" is not valid; expected a word"),
            ("--upstream none --numeric-project-id=0", "--numeric-project-id: \"0\" is not valid"),
        ] {
            assert!(mistakes(line).contains(expected), "{line}: {}", mistakes(line));
        }
    }
}
