//! The flags of `--upstream none`.

use clap::Args;
use serde::Serialize;

use super::given::{Given, Mistakes};
use super::syntax::{Place, PositiveNumber, Word};
use proxy::upstream::{Named, Upstream};

/// What is answered in place of a metadata server.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ValuesArgs {
    /// Project ID to return. Requires `--upstream none`
    #[arg(long, value_name = "ID", env = "METADATA_PROXY_PROJECT_ID")]
    project_id: Option<Given<Word>>,

    /// Project number to return. Requires `--upstream none`
    #[arg(long, value_name = "NUMBER", env = "METADATA_PROXY_NUMERIC_PROJECT_ID")]
    numeric_project_id: Option<Given<PositiveNumber>>,

    /// Cluster name to return. Requires `--upstream none`
    #[arg(long, value_name = "NAME", env = "METADATA_PROXY_CLUSTER_NAME")]
    cluster_name: Option<Given<Word>>,

    /// Cluster location to return: a region or a zone. Requires `--upstream none`
    #[arg(long, value_name = "LOCATION", env = "METADATA_PROXY_CLUSTER_LOCATION")]
    cluster_location: Option<Given<Word>>,

    /// Cluster UID to return. Requires `--upstream none`
    #[arg(long, value_name = "UID", env = "METADATA_PROXY_CLUSTER_UID")]
    cluster_uid: Option<Given<Word>>,

    /// Zone to return. By default, with Workload Identity, that of the node's object. Requires `--upstream none`
    #[arg(long, value_name = "ZONE", env = "METADATA_PROXY_ZONE")]
    zone: Option<Given<Word>>,

    /// Name and hostname of the instance to return. By default, with Workload Identity, the node's name. Requires `--upstream
    /// none`
    #[arg(long, value_name = "NAME", env = "METADATA_PROXY_INSTANCE_NAME")]
    instance_name: Option<Given<Word>>,

    /// ID of the instance to return. By default a number made of the node's UID, or of the instance's name. Requires `--upstream
    /// none`
    #[arg(long, value_name = "NUMBER", env = "METADATA_PROXY_INSTANCE_ID")]
    instance_id: Option<Given<PositiveNumber>>,
}

impl ValuesArgs {
    /// The upstream, given the value of `--upstream`.
    pub(super) fn resolve(self, place: Option<Place>, mistakes: &mut Mistakes) -> Option<Upstream> {
        let named = Named {
            project_id: mistakes.optional(self.project_id),
            numeric_project_id: mistakes.optional(self.numeric_project_id),
            cluster_name: mistakes.optional(self.cluster_name),
            cluster_location: mistakes.optional(self.cluster_location),
            cluster_uid: mistakes.optional(self.cluster_uid),
            zone: mistakes.optional(self.zone),
            instance_name: mistakes.optional(self.instance_name),
            instance_id: mistakes.optional(self.instance_id),
        };
        match place? {
            Place::Nowhere => Some(Upstream::None(named)),
            Place::Server(target) => Some(Upstream::Server(target)),
        }
    }

    /// The flags that result in this upstream.
    pub(super) fn from_upstream(upstream: &Upstream) -> Self {
        let named = match upstream {
            Upstream::Server(_) => Named::default(),
            Upstream::None(named) => named.clone(),
        };
        Self {
            project_id: named.project_id.map(Given::from_value),
            numeric_project_id: named.numeric_project_id.map(Given::from_value),
            cluster_name: named.cluster_name.map(Given::from_value),
            cluster_location: named.cluster_location.map(Given::from_value),
            cluster_uid: named.cluster_uid.map(Given::from_value),
            zone: named.zone.map(Given::from_value),
            instance_name: named.instance_name.map(Given::from_value),
            instance_id: named.instance_id.map(Given::from_value),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Command;
    use crate::cli::tests::{mistakes, parse_line};

    #[test]
    fn values_are_shown_as_they_are_in_force() {
        let line = "--upstream none --project-id=shop --numeric-project-id=12 --cluster-name=one --cluster-location=eu \
                    --cluster-uid=5f0c --zone=eu-a --instance-name=node-1 --instance-id=7";
        let Ok(Command::Serve(config)) = parse_line(line) else { panic!("{line}") };
        let flags = crate::cli::flags(&config);
        for (name, value) in [
            ("--upstream", "none"),
            ("--project-id", "shop"),
            ("--numeric-project-id", "12"),
            ("--cluster-name", "one"),
            ("--cluster-location", "eu"),
            ("--cluster-uid", "5f0c"),
            ("--zone", "eu-a"),
            ("--instance-name", "node-1"),
            ("--instance-id", "7"),
        ] {
            assert!(flags.contains(&(name.to_owned(), value.to_owned())), "{name}");
        }
    }

    #[test]
    fn values_of_a_server_are_its_own() {
        for (line, expected) in [
            ("--project-id=shop", "has no effect without --upstream=none"),
            ("--cluster-uid=5f0c", "has no effect without --upstream=none"),
            ("--zone=eu-a", "has no effect without --upstream=none"),
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
