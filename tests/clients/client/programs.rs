//! Programs that detect their platform, or get tokens by a library that is itself in the list.

use super::Client;
use super::program::Program::{Go, Java, Node, Python, Replay};
use crate::refusal::Refusal;
use crate::told::Step::{Account, Bound, Crawl, Detect, Machine, Platform, Project, Refresh, Scoped, Token, Watch};

const NEVER: &[Refusal] = &[];

/// For clients that get no tokens, or get them with a library that is itself in the list.
const MANY: &[&str] = &["handover", "cold start of 50", "250 at once, reset", "250 at once, 503"];

/// For a client that waits half a second for a response, three times: a slow server is too slow for it even without a
/// proxy.
const IMPATIENT: &[&str] =
    &["slow by 1 s", "slow by 2 s", "handover", "cold start of 50", "250 at once, reset", "250 at once, 503"];

/// For a client that only watches: it always needs the metadata server.
const ALL_WITHOUT_UPSTREAM: &[&str] =
    &["upstream dead", "429, 500, 503", "handover", "cold start of 50", "250 at once, reset", "250 at once, 503"];

/// All programs.
pub(super) const PROGRAMS: &[Client] = &[
    Client {
        name: "cloud-logging",
        library: "google-cloud-logging",
        language: "Python",
        program: Python { lock: "libraries", module: "with_logging" },
        steps: &[Platform],
        connections: 5,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "opentelemetry",
        library: "opentelemetry-resourcedetector-gcp",
        language: "Python",
        program: Python { lock: "libraries", module: "with_opentelemetry" },
        steps: &[Platform],
        connections: 2,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "go-opentelemetry",
        library: "go.opentelemetry.io/contrib/detectors/gcp",
        language: "Go",
        program: Go { module: "current", library: "detector" },
        steps: &[Platform],
        connections: 2,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "node-opentelemetry",
        library: "@opentelemetry/resource-detector-gcp",
        language: "Node",
        program: Node { lock: "current", library: "@opentelemetry/resource-detector-gcp" },
        steps: &[Platform, Machine],
        connections: 7,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "java-opentelemetry",
        library: "OpenTelemetry's detector-resources-support",
        language: "Java",
        program: Java { lock: "current", library: "WithOpenTelemetry" },
        steps: &[Platform, Machine],
        connections: 2,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "firebase-admin",
        library: "firebase-admin",
        language: "Node",
        program: Node { lock: "firebase", library: "firebase-admin" },
        steps: &[Token, Refresh],
        // One for each request, whatever the proxy does.
        connections: 20,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "agent-identity",
        library: "google-auth with an agent certificate",
        language: "Python",
        program: Python { lock: "google-auth", module: "with_agent_identity" },
        steps: &[Bound, Scoped, Refresh],
        connections: 4,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "kafka",
        library: "Managed Kafka's login handler, by google-auth",
        language: "Python",
        program: Python { lock: "google-auth", module: "with_kafka" },
        steps: &[Account, Scoped, Refresh],
        connections: 6,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "prometheus",
        library: "Prometheus' gce_sd, by x/oauth2",
        language: "Go",
        program: Go { module: "current", library: "prometheus" },
        steps: &[Project, Scoped, Refresh],
        connections: 2,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "cert-manager",
        library: "cert-manager's Cloud DNS, by x/oauth2",
        language: "Go",
        program: Go { module: "current", library: "cert-manager" },
        steps: &[Project, Scoped, Refresh],
        connections: 2,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "rclone",
        library: "rclone's env_auth, by x/oauth2",
        language: "Go",
        program: Go { module: "current", library: "rclone" },
        steps: &[Project, Scoped, Refresh],
        connections: 2,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "istio",
        library: "Istio's agent, by compute/metadata",
        language: "Go",
        program: Go { module: "current", library: "istio" },
        steps: &[Detect, Crawl],
        // Eight at once, each of which dials; one more if the first connection turns out to be closed when it is used again.
        connections: 10,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "dotnet",
        library: "Google.Api.Gax, replayed",
        language: ".NET",
        program: Replay { program: "dotnet" },
        steps: &[Crawl],
        connections: 2,
        retries: NEVER,
        left_out: IMPATIENT,
    },
    Client {
        name: "new-relic",
        library: "New Relic's infrastructure agent, replayed",
        language: "Go",
        program: Replay { program: "new-relic" },
        steps: &[Crawl],
        connections: 1,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "elastic-apm",
        library: "Elastic's apm-agent-go, replayed",
        language: "Go",
        program: Replay { program: "elastic-apm" },
        steps: &[Crawl],
        connections: 1,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "beats",
        library: "Beats' add_cloud_metadata, replayed",
        language: "Go",
        program: Replay { program: "beats" },
        steps: &[Crawl],
        connections: 1,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "facter",
        library: "facter, replayed",
        language: "Ruby",
        program: Replay { program: "facter" },
        steps: &[Crawl],
        connections: 1,
        retries: NEVER,
        left_out: MANY,
    },
    Client {
        name: "guest-agent",
        library: "the guest agent's watch, by a script",
        language: "Python",
        program: Python { lock: "google-auth", module: "with_guest_agent" },
        steps: &[Crawl, Watch],
        connections: 3,
        retries: NEVER,
        left_out: ALL_WITHOUT_UPSTREAM,
    },
];
