//! The libraries.

use super::program::Program::{CloudInit, Go, Java, Node, Python, Rust, Shell};
use super::{Client, MANY, PLAIN};
use crate::refusal::Refusal::{self, BadGateway, Reset, Unavailable};
use crate::told::Step::{Account, Crawl, Detect, Identity, Project, Refresh, Scoped, Token, Universe, Watch};

const RESETS: &[Refusal] = &[Reset];
const STATUSES: &[Refusal] = &[Unavailable, BadGateway];
const BOTH: &[Refusal] = &[Reset, Unavailable];
const ALL: &[Refusal] = &Refusal::ALL;

/// For Java clients: with 50 virtual machines that start on two cores, the test would measure these.
const COLD_START: &[&str] = &["cold start of 50"];

/// All libraries.
pub(super) const LIBRARIES: &[Client] = &[
    Client {
        name: "google-auth",
        library: "google-auth",
        program: Python { lock: "google-auth", module: "with_google_auth" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
        connections: 4,
        retries: BOTH,
        ..PLAIN
    },
    Client {
        name: "google-auth-2020",
        library: "google-auth",
        program: Python { lock: "google-auth-2020", module: "with_google_auth" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity],
        connections: 5,
        retries: RESETS,
        ..PLAIN
    },
    Client {
        name: "oauth2client",
        library: "oauth2client",
        program: Python { lock: "oauth2client", module: "with_oauth2client" },
        steps: &[Detect, Project, Token, Account, Refresh],
        connections: 2,
        ..PLAIN
    },
    Client {
        name: "boto-plugin",
        library: "gcs-oauth2-boto-plugin",
        program: Python { lock: "boto-plugin", module: "with_boto_plugin" },
        steps: &[Detect, Token, Refresh],
        connections: 3,
        retries: RESETS,
        ..PLAIN
    },
    Client {
        name: "go-metadata",
        library: "cloud.google.com/go/compute/metadata",
        program: Go { module: "current", library: "metadata" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe, Watch],
        connections: 2,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "go-auth",
        library: "cloud.google.com/go/auth",
        program: Go { module: "current", library: "auth" },
        steps: &[Project, Scoped, Refresh, Identity, Universe],
        connections: 2,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "go-oauth2",
        library: "golang.org/x/oauth2/google",
        program: Go { module: "current", library: "oauth2" },
        steps: &[Project, Token, Scoped, Refresh, Universe],
        connections: 2,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "go-metadata-2020",
        library: "cloud.google.com/go/compute/metadata",
        program: Go { module: "2020", library: "metadata" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity],
        connections: 2,
        ..PLAIN
    },
    Client {
        name: "go-oauth2-2020",
        library: "golang.org/x/oauth2/google",
        program: Go { module: "2020", library: "oauth2" },
        steps: &[Project, Token, Scoped, Refresh],
        connections: 2,
        ..PLAIN
    },
    Client {
        name: "gcp-metadata",
        library: "gcp-metadata",
        program: Node { lock: "current", library: "gcp-metadata" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
        connections: 2,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "node-auth",
        library: "google-auth-library",
        program: Node { lock: "current", library: "google-auth-library" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
        // One for each request, whatever the proxy does.
        connections: 20,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "gcp-metadata-2020",
        library: "gcp-metadata",
        program: Node { lock: "2020", library: "gcp-metadata" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity],
        connections: 2,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "node-auth-2020",
        library: "google-auth-library",
        program: Node { lock: "2020", library: "google-auth-library" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity],
        // One for each request, whatever the proxy does.
        connections: 20,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "curl",
        library: "curl --retry 5",
        program: Shell { tool: "curl" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe, Watch],
        connections: 10,
        retries: STATUSES,
        ..PLAIN
    },
    Client {
        name: "wget",
        library: "wget --tries 5",
        program: Shell { tool: "wget" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe, Watch],
        connections: 10,
        retries: BOTH,
        ..PLAIN
    },
    Client {
        name: "cloud-init",
        library: "cloud-init, data source GCE",
        program: CloudInit { lock: "cloud-init" },
        steps: &[Crawl],
        connections: 15,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "gcloud",
        library: "gcloud's credentials, by a script",
        // It contains a copy of google-auth; here it needs only Python.
        program: Python { lock: "google-auth", module: "with_gcloud" },
        steps: &[Detect, Universe, Project, Account, Scoped, Refresh, Identity],
        // One for each request, including repeated ones.
        connections: 20,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "java-auth",
        library: "google-auth-library-oauth2-http",
        program: Java { lock: "current", library: "WithGoogleAuth" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
        connections: 2,
        retries: RESETS,
        ..PLAIN
    },
    Client {
        name: "java-auth-2020",
        library: "google-auth-library-oauth2-http",
        program: Java { lock: "2020", library: "WithGoogleAuth" },
        // No identity token: it takes any response for one, and fails at the first colon of a refusal.
        steps: &[Detect, Token, Account, Scoped, Refresh],
        connections: 2,
        retries: RESETS,
        left_out: COLD_START,
    },
    Client {
        name: "java-http",
        library: "java.net.http.HttpClient",
        program: Java { lock: "current", library: "WithHttpClient" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
        connections: 2,
        retries: RESETS,
        left_out: COLD_START,
    },
    Client {
        name: "spring",
        library: "Spring's RestClient",
        program: Java { lock: "current", library: "WithRestClient" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
        connections: 2,
        retries: RESETS,
        left_out: COLD_START,
    },
    Client {
        name: "httpclient5",
        library: "Apache httpclient5",
        program: Java { lock: "current", library: "WithHttpComponents" },
        steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
        connections: 2,
        retries: BOTH,
        left_out: COLD_START,
    },
    Client {
        name: "google-cloud-auth",
        library: "google-cloud-auth",
        program: Rust { library: "google-cloud-auth" },
        steps: &[Token, Scoped, Refresh, Universe],
        connections: 5,
        ..PLAIN
    },
    Client {
        name: "object-store",
        library: "object_store",
        program: Rust { library: "object_store" },
        steps: &[Token, Refresh],
        connections: 2,
        retries: ALL,
        ..PLAIN
    },
    Client {
        name: "gcsfs",
        library: "gcsfs",
        program: Python { lock: "libraries", module: "with_gcsfs" },
        steps: &[Project, Token, Scoped],
        connections: 3,
        left_out: MANY,
        ..PLAIN
    },
    Client {
        name: "libcloud",
        library: "apache-libcloud",
        program: Python { lock: "libraries", module: "with_libcloud" },
        steps: &[Detect, Token, Refresh],
        connections: 3,
        ..PLAIN
    },
];
