//! The tests, one per row.

use crate::burden::Burden::{
    self, ByteByByte, ClosingNarrow, DistinctWatch, EndlessHead, Ghost, HalfClosed, InventedAccounts, InventedScopes,
    InventedScopesFailing, InventedScopesSlow, LargeChangeUnread, LargeHead, LargeUnread, LargeUnreadNarrow, Leaves,
    NewConnections, OneAfterAnother, Pipelining, PipeliningAndReading, PipeliningNarrow, Resets, ScatteredWatch,
    ShortPipelines, Silent, SlowToken, TlsHello, TokensUnreadNarrow, TreeUnread, Trees, Watcher, WatcherWithLargeHead,
};
use crate::honest::Errand::{KnownToken, Leaf, Ping};
use crate::honest::Honest;

use Emulated::{Always, AtFullSize, Never};

/// One test.
#[derive(Clone, Copy)]
pub(crate) struct Siege {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The load.
    pub(crate) attack: Attack,
    /// The honest clients that must be served meanwhile.
    pub(crate) honest: Honest,
    /// Additional arguments of the proxy.
    pub(crate) arguments: &'static [&'static str],
    /// The resource limits of the proxy.
    pub(crate) limits: Limits,
    /// The address family of the pods' connections.
    pub(crate) family: Family,
    /// The sizes at which the test also runs on an emulated machine.
    pub(crate) emulated: Emulated,
}

/// Address family of the pods' connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6, from addresses of one /64.
    V6,
}

/// The sizes at which a test runs on an emulated machine, which is many times slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emulated {
    /// At every size: much of its memory is socket buffers, which cgroup v2 counts against the limit.
    Always,
    /// At full size.
    AtFullSize,
    /// Never: an emulated processor takes seconds to open 3,000 connections.
    Never,
}

/// The resource limits of the proxy, which also determine the maximum response time for [`Honest::Steady`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limits {
    /// 25 MiB.
    Memory,
    /// 25 MiB, and this many milliseconds of CPU in every 100. The pages of the program are charged to it, as after a
    /// reboot. An emulated processor gets more, in proportion to its slowness.
    Cpu(u32),
}

impl Siege {
    const fn emulated(self, emulated: Emulated) -> Self {
        Self { emulated, ..self }
    }
}

/// The load on the proxy besides honest pods.
#[derive(Clone, Copy)]
pub(crate) enum Attack {
    /// One hostile pod with these kinds of load, each with this many connections at once.
    Burdens(&'static [(usize, Burden)]),
    /// One pod with this many honest clients at once, each of which opens a connection for every request.
    Crowd(usize),
}

const fn of(name: &'static str, burdens: &'static [(usize, Burden)]) -> Siege {
    Siege {
        name,
        attack: Attack::Burdens(burdens),
        honest: Honest::OtherPods,
        arguments: &[],
        limits: Limits::Memory,
        family: Family::V4,
        emulated: AtFullSize,
    }
}

const fn crowd(name: &'static str, clients: usize, arguments: &'static [&'static str]) -> Siege {
    Siege { attack: Attack::Crowd(clients), arguments, ..of(name, &[]) }
}

/// Under the limits of the manifests: 25 MiB and 30m of CPU.
const fn tight(name: &'static str, burdens: &'static [(usize, Burden)]) -> Siege {
    limited(name, 3, burdens)
}

const fn limited(name: &'static str, cpu: u32, burdens: &'static [(usize, Burden)]) -> Siege {
    Siege { honest: Honest::Steady, limits: Limits::Cpu(cpu), ..of(name, burdens) }.emulated(Never)
}

/// Under the limits of the manifests, over IPv6.
const fn tight_v6(name: &'static str, burdens: &'static [(usize, Burden)]) -> Siege {
    Siege { family: Family::V6, arguments: &["--addr=[::1]:0"], ..tight(name, burdens) }
}

/// Without a CPU limit, with the same honest pods.
const fn steady(name: &'static str, burdens: &'static [(usize, Burden)]) -> Siege {
    Siege { honest: Honest::Steady, ..of(name, burdens) }.emulated(Never)
}

/// All tests, in the order in which they run.
pub(crate) const SIEGES: &[Siege] = &[
    of("ghosts", &[(200, Ghost)]),
    of("watchers", &[(1_000, Watcher)]),
    of("watchers_with_large_heads", &[(1_000, WatcherWithLargeHead)]).emulated(Always),
    of("distinct_watches", &[(100, DistinctWatch)]),
    of("large_changes_unread", &[(200, LargeChangeUnread)]).emulated(Always),
    of("waiters_on_a_slow_token", &[(1_100, SlowToken)]),
    of("pipelining_200", &[(200, Pipelining)]),
    of("pipelining_200_narrow", &[(200, PipeliningNarrow)]),
    of("pipelining_1000", &[(1_000, Pipelining)]).emulated(Always),
    of("pipelining_1000_narrow", &[(1_000, PipeliningNarrow)]).emulated(Always),
    of("closing_1000_narrow", &[(1_000, ClosingNarrow)]).emulated(Always),
    // With the default, a single pod has memory for almost all seats.
    Siege { arguments: &["--max-in-flight=100"], ..of("tokens_unread_200_narrow", &[(200, TokensUnreadNarrow)]) },
    of("silent", &[(2_000, Silent)]),
    of("large_heads", &[(1_000, LargeHead)]),
    of("endless_heads", &[(1_000, EndlessHead)]),
    of("a_byte_at_a_time", &[(1_000, ByteByByte)]),
    of("large_answers_unread", &[(500, LargeUnread)]).emulated(Always),
    of("large_answers_unread_narrow", &[(500, LargeUnreadNarrow)]),
    of("trees_unread", &[(500, TreeUnread)]).emulated(Always),
    of("invented_scopes", &[(100, InventedScopes)]),
    of("invented_scopes_slow", &[(300, InventedScopesSlow)]),
    of("invented_scopes_failing", &[(100, InventedScopesFailing)]),
    of(
        "everything_mixed",
        &[
            (200, Ghost),
            (100, Watcher),
            (100, WatcherWithLargeHead),
            (100, DistinctWatch),
            (100, LargeChangeUnread),
            (100, SlowToken),
            (100, Pipelining),
            (100, PipeliningNarrow),
            (100, Silent),
            (100, LargeHead),
            (100, EndlessHead),
            (100, ByteByByte),
            (100, LargeUnread),
            (100, LargeUnreadNarrow),
            (100, TreeUnread),
            (50, InventedScopes),
            (50, InventedScopesSlow),
            (50, InventedScopesFailing),
        ],
    )
    .emulated(Always),
    // The hostile pod has taken all seats, but not all connections. Further connections may be refused to the pod that
    // has them all.
    Siege {
        honest: Honest::SamePod(&[Ping, KnownToken]),
        ..of(
            "known_answers_for_the_same_pod",
            &[(180, Silent), (180, ByteByByte), (180, EndlessHead), (180, LargeUnread), (180, LargeUnreadNarrow)],
        )
    },
    Siege {
        honest: Honest::SamePod(&[Ping, KnownToken, Leaf]),
        ..of("everything_for_the_same_pod_among_slow_heads", &[(700, Silent), (700, ByteByByte), (700, EndlessHead)])
    },
    crowd("crowd_of_200", 200, &[]),
    crowd("crowd_of_1000", 1_000, &["--max-connections=2000"]).emulated(Always),
    crowd("crowd_of_3000", 3_000, &["--max-connections=4000"]).emulated(Never),
    tight("30m_nobody", &[]).emulated(AtFullSize),
    tight("30m_one_after_another_3000", &[(3_000, OneAfterAnother)]).emulated(AtFullSize),
    tight("30m_pipelining_1000", &[(1_000, Pipelining)]).emulated(AtFullSize),
    tight("30m_pipelining_and_reading_1000", &[(1_000, PipeliningAndReading)]).emulated(Always),
    tight("30m_pipelining_and_reading_3000", &[(3_000, PipeliningAndReading)]).emulated(AtFullSize),
    tight("30m_resets_300", &[(300, Resets)]).emulated(Always),
    tight("30m_silent_3000", &[(3_000, Silent)]).emulated(AtFullSize),
    tight("30m_invented_accounts_100", &[(100, InventedAccounts)]).emulated(Always),
    tight("30m_slow_tokens_600", &[(600, SlowToken)]).emulated(AtFullSize),
    tight("30m_connects_and_leaves_300", &[(300, Leaves)]),
    tight("30m_tls_hellos_500", &[(500, TlsHello)]),
    tight("30m_half_closed_500", &[(500, HalfClosed)]),
    tight("30m_bytes_at_a_time_1000", &[(1_000, ByteByByte)]),
    tight("30m_short_pipelines_1000", &[(1_000, ShortPipelines)]),
    tight("30m_watches_and_pipelines", &[(300, Watcher), (300, DistinctWatch), (600, PipeliningAndReading)]),
    tight("30m_watches_from_300_addresses", &[(300, ScatteredWatch)]).emulated(AtFullSize),
    // More connections than 25 MiB have places for. Refusing the rest again and again takes more than 30m.
    limited("100m_watches_from_500_addresses", 10, &[(1_000, ScatteredWatch)]),
    tight("30m_new_connections_500", &[(500, NewConnections)]),
    tight("30m_large_heads_1000", &[(1_000, LargeHead)]),
    tight("30m_unread_answers", &[(300, LargeUnread), (300, TreeUnread), (300, PipeliningNarrow)]),
    tight("30m_trees_200", &[(200, Trees)]),
    tight(
        "30m_everything_mixed",
        &[
            (60, Ghost),
            (60, Watcher),
            (60, WatcherWithLargeHead),
            (60, DistinctWatch),
            (60, LargeChangeUnread),
            (60, SlowToken),
            (60, Pipelining),
            (60, PipeliningNarrow),
            (60, PipeliningAndReading),
            (60, ShortPipelines),
            (60, OneAfterAnother),
            (60, Resets),
            (60, Leaves),
            (60, TlsHello),
            (60, HalfClosed),
            (60, NewConnections),
            (60, Silent),
            (60, LargeHead),
            (60, EndlessHead),
            (60, ByteByByte),
            (60, LargeUnread),
            (60, LargeUnreadNarrow),
            (60, TreeUnread),
            (30, InventedScopes),
            (30, InventedScopesSlow),
            (30, InventedScopesFailing),
            (30, InventedAccounts),
        ],
    )
    .emulated(AtFullSize),
    tight_v6("30m_ipv6_nobody", &[]),
    tight_v6("30m_ipv6_pipelining_and_reading_1000", &[(1_000, PipeliningAndReading)]),
    tight_v6("30m_ipv6_resets_300", &[(300, Resets)]),
    tight_v6("30m_ipv6_watches_from_300_addresses", &[(300, ScatteredWatch)]),
    steady("burst_of_6000_connects", &[(6_000, Silent)]),
    steady("connects_without_end", &[(300, Resets)]),
    steady("pipelining_and_reading_1000", &[(1_000, PipeliningAndReading)]),
];
