//! Every metric there is: name, labels and meaning, once. The README's table is checked against this one.

/// One metric.
#[derive(Debug)]
pub struct Row {
    /// In Prometheus' spelling, with its unit.
    pub name: &'static str,
    /// Names of its labels, each from a closed set.
    pub labels: &'static [&'static str],
    /// What it is, in one line.
    pub help: &'static str,
}

macro_rules! table {
    ($($row:ident = $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(super) const $row: Row = Row { name: $name, labels: &[$($label),*], help: $help };)+

        /// All of them, in the order in which they are told.
        pub const TABLE: &[Row] = &[$($row),+];
    };
}

table! {
    REQUESTS = "metadata_proxy_requests_total" ["code"]
        "Requests answered, by class of status.";
    REFUSALS = "metadata_proxy_refusals_total" ["reason"]
        "Requests that got a refusal or a failure made by the proxy, by reason; what the metadata server itself refused is \
         not among them.";
    REQUEST_DURATION = "metadata_proxy_request_duration_seconds" ["endpoint", "outcome"]
        "From a request's head to the last byte of its answer: answered (by the proxy, in its own name), passed (in the metadata server's words), \
         refused, shed, failed (the metadata server failed it), cut (the client left, or the answer broke off).";
    REQUEST_FIRST_BYTE = "metadata_proxy_request_first_byte_seconds" ["endpoint", "outcome"]
        "From a request's head to the first byte of its answer.";
    FILTER_DURATION = "metadata_proxy_request_filter_duration_seconds" ["filter", "outcome"]
        "From when a filter starts until the next one does (passed) or it has answered or refused, less what it waited.";
    FILTER_WAIT = "metadata_proxy_request_filter_wait_duration_seconds" ["filter"]
        "How long requests that had to wait in a filter were suspended there: for a flight, for the metadata server, for a \
         seat.";
    POLICY_VERDICTS = "metadata_proxy_policy_verdicts_total" ["verdict", "mode"]
        "Requests judged by the policy: allowed, redacted, concealed; and whether that was carried out (enforce) or only logged (audit).";
    POLICY_INFO = "metadata_proxy_policy_info" ["name", "version", "hash"]
        "1, with the policy in force and the beginning of its file's SHA-256.";
    POLICY_REJECTED = "metadata_proxy_policy_rejected" []
        "1 while the policy's file cannot be used and the policy before it stays in force.";
    POLICY_RELOADS = "metadata_proxy_policy_reloads_total" ["outcome"]
        "Changes of the policy's file: applied or rejected.";
    IN_FLIGHT = "metadata_proxy_in_flight" []
        "Requests in flight.";
    IN_FLIGHT_PEAK = "metadata_proxy_in_flight_peak" []
        "Most requests in flight since the last scrape.";
    IN_FLIGHT_LIMIT = "metadata_proxy_in_flight_limit" []
        "Most requests in flight that are let in.";
    HANGING = "metadata_proxy_hanging" []
        "wait_for_change requests to the metadata server under way.";
    SHEDS = "metadata_proxy_sheds_total" ["reason"]
        "Requests and connections refused or closed for want of room: in_flight, hanging, connections, idle_connection, fair_share, \
         unread_answer, large_answers, tokens, memory.";
    RESETS = "metadata_proxy_resets_total" []
        "Connections of clients that were reset.";
    PANICS = "metadata_proxy_panics_total" []
        "Requests that failed because of a panic in the proxy; each is logged.";
    CONNECTIONS = "metadata_proxy_connections" []
        "Open connections of clients.";
    ACCEPTED = "metadata_proxy_connections_total" []
        "Connections of clients accepted.";
    TOKEN_REQUESTS = "metadata_proxy_token_requests_total" ["outcome"]
        "Requests for tokens: fresh, stale (from memory), miss, coalesced (they waited for a flight), failure (so recent that \
         the server was not asked again).";
    TOKEN_FLIGHTS = "metadata_proxy_token_flights_total" ["cause", "outcome"]
        "Tokens fetched from the metadata server, on demand or to refresh: new, same, refused, failed.";
    TOKEN_ENTRIES = "metadata_proxy_token_entries" []
        "Keys in the token cache.";
    TOKEN_EVICTIONS = "metadata_proxy_token_evictions_total" []
        "Keys that the token cache gave up for others.";
    DEFAULT_TOKEN_EXPIRY = "metadata_proxy_default_token_expiry_seconds" []
        "Seconds that the default account's token has left; 0 if it expired and no new one came; nothing before the first one, \
         and on a machine without a service account.";
    UPSTREAM_REQUESTS = "metadata_proxy_upstream_requests_total" ["outcome"]
        "Requests sent to the metadata server, by class of status or kind of failure.";
    UPSTREAM_DURATION = "metadata_proxy_upstream_duration_seconds" ["endpoint", "outcome"]
        "From sending a request to the metadata server to the last byte of its answer: a class of status, failed, or \
         abandoned (whoever waited had left).";
    UPSTREAM_FIRST_BYTE = "metadata_proxy_upstream_first_byte_seconds" ["endpoint", "outcome"]
        "From sending a request to the metadata server to the head of its answer.";
    SPANS = "metadata_proxy_spans_total" ["outcome"]
        "Spans of traced requests: exported, failed (the collector did not take them), dropped (too many waited for it); all 0 \
         without --otlp-endpoint.";
    MEMORY_USAGE = "metadata_proxy_memory_usage_bytes" []
        "Memory used by the control group, with its sockets where the kernel counts them; 0 without a memory limit.";
    MEMORY_LIMIT = "metadata_proxy_memory_limit_bytes" []
        "Memory limit of the control group; 0 without one.";
    MEMORY_LEVEL = "metadata_proxy_memory_level" []
        "How short memory is: 0 normal, 1 thrifty (idle connections give up their buffers), 2 closing (idle connections are \
         closed), 3 cutting (connections of the client with most are cut).";
    CONNECTION_BYTES = "metadata_proxy_connection_bytes" []
        "Memory charged to client connections, with their socket buffers filled.";
    CONNECTION_BYTES_LIMIT = "metadata_proxy_connection_bytes_limit" []
        "Memory that client connections may be charged; then the client with most gives way.";
    REQUEST_COUNT = "request_count" ["code", "filter_result"]
        "Requests answered, by status and filter_result_blocked or filter_result_proxied: the metric of k8s-metadata-proxy, for \
         what is made for it.";
    CPU_SECONDS = "process_cpu_seconds_total" []
        "Processor time, user and system.";
    RESIDENT_MEMORY = "process_resident_memory_bytes" []
        "Memory that is held.";
    START_TIME = "process_start_time_seconds" []
        "When the process started, since 1970.";
    OPEN_FDS = "process_open_fds" []
        "Open files and connections.";
    MAX_FDS = "process_max_fds" []
        "Most of them that the system allows.";
    BUILD_INFO = "metadata_proxy_build_info" ["version"]
        "1, with the version of the running binary.";
}
