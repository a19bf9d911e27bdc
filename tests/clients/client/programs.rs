//! Programs that detect their platform, or get tokens by a library that is itself in the list.

use super::program::Program::{Go, Java, Node, Python, Replay};
use super::{Client, MANY, PLAIN};
use crate::told::Step::{Account, Bound, Crawl, Detect, Machine, Platform, Project, Refresh, Scoped, Token, Watch};

/// For a client that waits half a second for a response, three times: a slow server is too slow for it even without a
/// proxy.
const IMPATIENT: &[&str] =
    &["slow by 1 s", "slow by 2 s", "handover", "cold start of 50", "250 at once, reset", "250 at once, 503"];

/// For a client that only watches: it always needs the metadata server.
const ALL_WITHOUT_UPSTREAM: &[&str] =
    &["upstream dead", "429, 500, 503", "handover", "cold start of 50", "250 at once, reset", "250 at once, 503"];

/// A program that never retries, and is not measured when many start.
const PROGRAM: Client = Client { left_out: MANY, ..PLAIN };

/// All programs.
pub(super) const PROGRAMS: &[Client] = &[
    Client {
        name: "cloud-logging",
        library: "google-cloud-logging",
        program: Python { lock: "libraries", module: "with_logging" },
        steps: &[Platform],
        connections: 5,
        ..PROGRAM
    },
    Client {
        name: "opentelemetry",
        library: "opentelemetry-resourcedetector-gcp",
        program: Python { lock: "libraries", module: "with_opentelemetry" },
        steps: &[Platform],
        connections: 2,
        ..PROGRAM
    },
    Client {
        name: "go-opentelemetry",
        library: "go.opentelemetry.io/contrib/detectors/gcp",
        program: Go { module: "current", library: "detector" },
        steps: &[Platform],
        connections: 2,
        ..PROGRAM
    },
    Client {
        name: "node-opentelemetry",
        library: "@opentelemetry/resource-detector-gcp",
        program: Node { lock: "current", library: "@opentelemetry/resource-detector-gcp" },
        steps: &[Platform, Machine],
        connections: 7,
        ..PROGRAM
    },
    Client {
        name: "java-opentelemetry",
        library: "OpenTelemetry's detector-resources-support",
        program: Java { lock: "current", library: "WithOpenTelemetry" },
        steps: &[Platform, Machine],
        connections: 2,
        ..PROGRAM
    },
    Client {
        name: "firebase-admin",
        library: "firebase-admin",
        program: Node { lock: "firebase", library: "firebase-admin" },
        steps: &[Token, Refresh],
        // One for each request, whatever the proxy does.
        connections: 20,
        ..PROGRAM
    },
    Client {
        name: "agent-identity",
        library: "google-auth with an agent certificate",
        program: Python { lock: "google-auth", module: "with_agent_identity" },
        steps: &[Bound, Scoped, Refresh],
        connections: 4,
        ..PROGRAM
    },
    Client {
        name: "kafka",
        library: "Managed Kafka's login handler, by google-auth",
        program: Python { lock: "google-auth", module: "with_kafka" },
        steps: &[Account, Scoped, Refresh],
        connections: 6,
        ..PROGRAM
    },
    Client {
        name: "prometheus",
        library: "Prometheus' gce_sd, by x/oauth2",
        program: Go { module: "current", library: "prometheus" },
        steps: &[Project, Scoped, Refresh],
        connections: 2,
        ..PROGRAM
    },
    Client {
        name: "cert-manager",
        library: "cert-manager's Cloud DNS, by x/oauth2",
        program: Go { module: "current", library: "cert-manager" },
        steps: &[Project, Scoped, Refresh],
        connections: 2,
        ..PROGRAM
    },
    Client {
        name: "rclone",
        library: "rclone's env_auth, by x/oauth2",
        program: Go { module: "current", library: "rclone" },
        steps: &[Project, Scoped, Refresh],
        connections: 2,
        ..PROGRAM
    },
    Client {
        name: "istio",
        library: "Istio's agent, by compute/metadata",
        program: Go { module: "current", library: "istio" },
        steps: &[Detect, Crawl],
        // Eight at once, each of which dials; one more if the first connection turns out to be closed when it is used again.
        connections: 10,
        ..PROGRAM
    },
    Client {
        name: "dotnet",
        library: "Google.Api.Gax, replayed",
        program: Replay { program: "dotnet" },
        steps: &[Crawl],
        connections: 2,
        left_out: IMPATIENT,
        ..PROGRAM
    },
    Client {
        name: "new-relic",
        library: "New Relic's infrastructure agent, replayed",
        program: Replay { program: "new-relic" },
        steps: &[Crawl],
        connections: 1,
        ..PROGRAM
    },
    Client {
        name: "elastic-apm",
        library: "Elastic's apm-agent-go, replayed",
        program: Replay { program: "elastic-apm" },
        steps: &[Crawl],
        connections: 1,
        ..PROGRAM
    },
    Client {
        name: "beats",
        library: "Beats' add_cloud_metadata, replayed",
        program: Replay { program: "beats" },
        steps: &[Crawl],
        connections: 1,
        ..PROGRAM
    },
    Client {
        name: "facter",
        library: "facter, replayed",
        program: Replay { program: "facter" },
        steps: &[Crawl],
        connections: 1,
        ..PROGRAM
    },
    Client {
        name: "guest-agent",
        library: "the guest agent's watch, by a script",
        program: Python { lock: "google-auth", module: "with_guest_agent" },
        steps: &[Crawl, Watch],
        connections: 3,
        left_out: ALL_WITHOUT_UPSTREAM,
        ..PROGRAM
    },
];
