//! Type, name, labels and help of every metric. A test compares the table in docs/metrics.md with this one and prints
//! the expected table.
//!
//! A metric belongs to the part of the proxy that counts it, which takes the row and a [`Registry`](super::Registry) when
//! it is created. That is once per process, so never in the stack's closure, which runs for each connection.

use strum::Display;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// Only increases.
    Counter,
    /// Can take any value.
    Gauge,
    /// Durations in buckets.
    Histogram,
}

/// One metric.
#[derive(Debug)]
pub struct Row {
    /// The part that counts must register the metric with this type.
    pub kind: Kind,
    /// Prometheus name, including the unit.
    pub name: &'static str,
    /// Label names. Each label has a fixed set of values.
    pub labels: &'static [&'static str],
    /// Help text, one line.
    pub help: &'static str,
}

macro_rules! table {
    ($($row:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(#[doc = concat!("`", $name, "`.")]
        pub const $row: Row = Row { kind: Kind::$kind, name: $name, labels: &[$($label),*], help: $help };)+

        /// All metrics, in the order in which they are exposed.
        pub const TABLE: &[Row] = &[$($row),+];
    };
}

table! {
    REQUESTS = Counter "metadata_proxy_requests_total" ["code"]
        "Requests answered, by class of status.";
    REFUSALS = Counter "metadata_proxy_refusals_total" ["reason"]
        "Requests refused or failed by the proxy itself, by reason. Errors returned by the metadata server are not \
         included.";
    REQUEST_DURATION = Histogram "metadata_proxy_request_duration_seconds" ["endpoint", "outcome"]
        "Request duration, from the request head to the last response byte. endpoint: kind of path, or watch \
         (wait_for_change, which lasts until something changes). outcome: answered (by the proxy), passed \
         (from the metadata server), refused, shed, failed (the metadata server did not answer, or answered 429 or \
         5xx; a step to a pod's own token failed; or the proxy panicked), cut (the client disconnected or the response was cut short).";
    REQUEST_FIRST_BYTE = Histogram "metadata_proxy_request_first_byte_seconds" ["endpoint", "outcome"]
        "Time from the request head to the first response byte.";
    FILTER_DURATION = Histogram "metadata_proxy_request_filter_duration_seconds" ["filter", "outcome"]
        "Time that a filter spent on a request until it passed the request on, answered or refused it, without time \
         spent waiting.";
    FILTER_WAIT = Histogram "metadata_proxy_request_filter_wait_duration_seconds" ["filter"]
        "Time that a request was suspended in a filter, if it had to wait: for a token fetch, the metadata server or \
         a seat. Without wait_for_change requests.";
    IDENTIFICATIONS = Counter "metadata_proxy_identifications_total" ["result"]
        "Connections whose client was identified: node, kernel or api (a pod, and who says so); outdated connections, \
         which were reset; and requests of unknown or ambiguous pods, which got 503. Absent without --workload-identity.";
    IDENTITY_PODS = Gauge "metadata_proxy_identity_pods" []
        "Pods of this node that the API server reports. Absent without --workload-identity.";
    IDENTITY_SANDBOXES = Gauge "metadata_proxy_identity_sandboxes" []
        "Live pods with a network of their own, as the kernel shows them. Absent without --workload-identity.";
    IDENTITY_PROCESSES = Gauge "metadata_proxy_identity_processes" []
        "Processes of the node, as the last scan listed them. Absent without --workload-identity.";
    IDENTITY_SCAN_DURATION = Histogram "metadata_proxy_identity_scan_duration_seconds" []
        "Duration of scans of the node's processes. A pod's first connection waits for one. Absent without \
         --workload-identity.";
    IDENTITY_API_AGE = Gauge "metadata_proxy_identity_api_age_seconds" []
        "Seconds since the API server was last heard from. Absent without --workload-identity, and before its first list.";
    IDENTITY_CUT = Counter "metadata_proxy_identity_cut_connections_total" []
        "Connections that were reset because their pod ended or their address changed hands. Absent without \
         --workload-identity.";
    IDENTITY_RIGHTS = Gauge "metadata_proxy_identity_rights" ["state"]
        "1 for what the proxy's own credential for the API server allows, 0 for the others: confined (to its node), \
         last_resort (an admission policy bounds it), missing (a right that the proxy needs), dangerous (tokens of others), \
         unknown. Absent without --workload-identity.";
    TOKEN_EXCHANGES = Counter "metadata_proxy_token_exchanges_total" ["step", "result"]
        "Requests for pods' own tokens, by server (kubernetes: the API server, sts, iam) and result: issued, \
         untrusted (Google accepts no token of this cluster), refused, throttled (429, which concerns all accounts, but that of \
         the API server one alone), project_throttled (429 for the quota of the account's own project) or failed. Absent without --workload-identity, and \
         where pods have no tokens of their own.";
    TOKEN_EXCHANGE_REQUESTS = Counter "metadata_proxy_token_exchange_requests_total" ["step", "urgency"]
        "Requests for pods' own tokens that were sent, by server and whether a pod waited or a token in use ends soon \
         (demanded), or a token was renewed or fetched in advance (optional). Google counts each against a project's quota. Absent \
         without --workload-identity, and where pods have no tokens of their own.";
    POLICY_VERDICTS = Counter "metadata_proxy_policy_verdicts_total" ["verdict", "mode"]
        "Requests judged by the policy, by verdict (allowed, redacted, concealed) and mode (enforce, or audit if it \
         was only logged).";
    POLICY_INFO = Gauge "metadata_proxy_policy_info" ["name", "version", "hash"]
        "Always 1. Labels show the policy in force and the first digits of its file's SHA-256.";
    POLICY_REJECTED = Gauge "metadata_proxy_policy_rejected" []
        "1 while the policy file is invalid and the previous policy stays in force, otherwise 0. While it is 1, a restart of the \
         proxy fails.";
    POLICY_RELOADS = Counter "metadata_proxy_policy_reloads_total" ["outcome"]
        "Reloads of the policy file: applied or rejected.";
    IN_FLIGHT = Gauge "metadata_proxy_in_flight" []
        "Requests in flight.";
    IN_FLIGHT_PEAK = Gauge "metadata_proxy_in_flight_peak" []
        "Maximum requests in flight within this minute and the one before, or since the last scrape if that was earlier.";
    IN_FLIGHT_LIMIT = Gauge "metadata_proxy_in_flight_limit" []
        "Maximum allowed requests in flight.";
    HANGING = Gauge "metadata_proxy_hanging" []
        "Current wait_for_change requests to the metadata server.";
    SHEDS = Counter "metadata_proxy_sheds_total" ["reason"]
        "Requests and connections refused, closed or delayed under overload, by reason: in_flight, hanging, connections, \
         idle_connection, fair_share, unread_answer, large_answers, tokens, memory, door (the client had gone before its \
         connection was accepted; one newcomer in 8 is checked, and all after one that had gone), \
         cpu_share (a turn that came late, because the client uses more than its share of the processor).";
    DOOR_PROBES = Counter "metadata_proxy_door_probes_total" ["outcome"]
        "Requests that the proxy sends to each of its own doors, one each 15 seconds: answered, or failed (no answer within a \
         second, or the address is gone, so pods may wait, too).";
    RESETS = Counter "metadata_proxy_resets_total" []
        "Client connections reset by the proxy.";
    PANICS = Counter "metadata_proxy_panics_total" []
        "Requests that failed because of a panic in the proxy; logged once a minute for each place.";
    CONNECTIONS = Gauge "metadata_proxy_connections" []
        "Open client connections.";
    ACCEPTED = Counter "metadata_proxy_connections_total" []
        "Accepted client connections.";
    TOKEN_REQUESTS = Counter "metadata_proxy_token_requests_total" ["outcome"]
        "Token requests by cache outcome: fresh, stale (still valid and served from memory), miss, coalesced (waited \
         for another request's fetch), failure (the last fetch failed too recently to retry).";
    TOKEN_FLIGHTS = Counter "metadata_proxy_token_flights_total" ["cause", "outcome"]
        "Token fetches from the metadata server, by cause (on demand or refresh) and outcome: new, same, refused, \
         failed.";
    TOKEN_ENTRIES = Gauge "metadata_proxy_token_entries" []
        "Entries in the token cache.";
    HANDOVER_TOKENS = Counter "metadata_proxy_handover_tokens_total" []
        "Tokens taken over from the predecessor, with --handover; 0 after a cold start. The log and /statusz say why.";
    TOKEN_EVICTIONS = Counter "metadata_proxy_token_evictions_total" []
        "Entries evicted from the token cache to make room.";
    DEFAULT_TOKEN_EXPIRY = Gauge "metadata_proxy_default_token_expiry_seconds" []
        "Seconds until the default account's token expires; 0 if the machine has an account and there is no valid token. \
         Absent before the first answer, on a machine without a service account, and with Workload Identity while no pod here acts \
         as the node (--passthrough).";
    UPSTREAM_REQUESTS = Counter "metadata_proxy_upstream_requests_total" ["outcome"]
        "Requests sent to the metadata server, by status class, 429 apart, or kind of failure.";
    UPSTREAM_DURATION = Histogram "metadata_proxy_upstream_duration_seconds" ["endpoint", "outcome"]
        "Duration of requests to the metadata server, from sending the request to the last response byte. outcome: \
         status class, 429, failed, or abandoned (no client was waiting any more).";
    UPSTREAM_FIRST_BYTE = Histogram "metadata_proxy_upstream_first_byte_seconds" ["endpoint", "outcome"]
        "Time from sending a request to the metadata server to its response head.";
    MEMORY_USAGE = Gauge "metadata_proxy_memory_usage_bytes" []
        "Memory used by the control group, including socket buffers if the kernel counts them, without pages and caches of files, which \
         the kernel takes back; 0 without a memory limit.";
    MEMORY_LIMIT = Gauge "metadata_proxy_memory_limit_bytes" []
        "Memory limit of the control group; 0 if there is none.";
    MEMORY_LEVEL = Gauge "metadata_proxy_memory_level" []
        "Memory pressure: 0 normal, 1 thrifty (idle connections release their buffers), 2 closing (idle connections \
         are closed), 3 cutting (connections of the client that uses most are cut).";
    CONNECTION_BYTES = Gauge "metadata_proxy_connection_bytes" []
        "Memory charged to client connections, with full socket buffers.";
    CONNECTION_BYTES_LIMIT = Gauge "metadata_proxy_connection_bytes_limit" []
        "Maximum memory that can be charged to client connections. At the limit, a connection of the client that uses \
         most is closed.";
    CHECK_PROTECTED = Gauge "metadata_proxy_check_protected" []
        "1 if the last check found pods of this node protected, except for what is exposed on purpose, otherwise 0. Only \
         with check --interval.";
    CHECK_FINDINGS = Gauge "metadata_proxy_check_findings" ["check", "verdict"]
        "Findings of the last check, by what was checked (proxied, name, concealed, way_round) and verdict: protected, allowed \
         (exposed on purpose), trouble (nothing is exposed, but something does not work) or unprotected. Only with check --interval.";
    CHECK_TIME = Gauge "metadata_proxy_check_last_run_timestamp_seconds" []
        "Time of the last check, in seconds since the Unix epoch. Only with check --interval.";
    REDIRECT_DROPPED = Counter "metadata_proxy_redirect_dropped_packets_total" []
        "Packets that the kernel dropped because a pod opened more connections than --redirect-max-new-connections, as of the \
         last check of the rules. Only with --redirect, and at --keeper-metrics-addr of redirect install --keep.";
    REDIRECT_SPOOFED = Gauge "metadata_proxy_redirect_spoofed" ["decision"]
        "Whether the redirect drops packets with spoofed source addresses: 1 for the current decision, 0 for the others. \
         `dropped`; or passed because of `flag`, `no_route`, `no_pods`, `unknown` (interfaces or routes cannot be listed) or `refused` \
         (by the tool). `redirect check` names the interface without a route. All 0 while the redirect is not installed, and in \
         a sidecar. Only with --redirect, and at --keeper-metrics-addr of redirect install --keep.";
    REDIRECT_RESTORED = Counter "metadata_proxy_redirect_restored_total" ["found"]
        "How often a check of the rules found the redirect gone or changed, and tried to restore it, by what was found: absent (pods could \
         reach the metadata server itself), changed (other rules, or rules of others before them), closed (those that close it whole) or \
         unreadable (the rules could not be listed). Only with --redirect, and at --keeper-metrics-addr of redirect install \
         --keep.";
    REQUEST_COUNT = Counter "request_count" ["code", "filter_result"]
        "Requests answered, by status and filter_result (filter_result_blocked, filter_result_proxied). Compatible \
         with k8s-metadata-proxy.";
    CPU_SECONDS = Counter "process_cpu_seconds_total" []
        "Total user and system CPU time in seconds.";
    RESIDENT_MEMORY = Gauge "process_resident_memory_bytes" []
        "Resident memory size in bytes.";
    START_TIME = Gauge "process_start_time_seconds" []
        "Start time of the process, in seconds since the Unix epoch.";
    OPEN_FDS = Gauge "process_open_fds" []
        "Open file descriptors.";
    MAX_FDS = Gauge "process_max_fds" []
        "Maximum open file descriptors.";
    BUILD_INFO = Gauge "metadata_proxy_build_info" ["version"]
        "Always 1. The label shows the version of the running binary.";
}
