//! The sieges, one a row.

use crate::burden::Burden::{
    self, ByteByByte, DistinctWatch, EndlessHead, Ghost, InventedScopes, InventedScopesFailing, InventedScopesSlow,
    LargeChangeUnread, LargeHead, LargeUnread, LargeUnreadNarrow, Pipelining, PipeliningNarrow, Silent, SlowToken,
    TreeUnread, Watcher, WatcherWithLargeHead,
};
use crate::honest::Errand::{KnownToken, Leaf, Ping};
use crate::honest::Honest;

use Emulated::{Always, AtFullSize, Never};

/// One test.
pub(crate) struct Siege {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// What comes from where.
    pub(crate) attack: Attack,
    /// Who must be served meanwhile.
    pub(crate) honest: Honest,
    /// Further arguments of the proxy.
    pub(crate) arguments: &'static [&'static str],
    /// When it also runs on an emulated machine.
    pub(crate) emulated: Emulated,
}

/// When a siege runs on an emulated machine, which is many times slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emulated {
    /// At every size: much of its memory is socket buffers, which cgroup v2 counts against the limit.
    Always,
    /// At full size.
    AtFullSize,
    /// Never: an emulated processor takes seconds to open 3,000 connections.
    Never,
}

impl Siege {
    const fn emulated(self, emulated: Emulated) -> Self {
        Self { emulated, ..self }
    }
}

/// What the proxy has to bear besides honest pods.
pub(crate) enum Attack {
    /// One hostile pod that is a burden in these ways, each with this many connections at once.
    Burdens(&'static [(usize, Burden)]),
    /// One pod with this many honest clients at once, each of which opens a connection for every request.
    Crowd(usize),
}

const fn of(name: &'static str, burdens: &'static [(usize, Burden)]) -> Siege {
    Siege { name, attack: Attack::Burdens(burdens), honest: Honest::OtherPods, arguments: &[], emulated: AtFullSize }
}

const fn crowd(name: &'static str, clients: usize, arguments: &'static [&'static str]) -> Siege {
    Siege { name, attack: Attack::Crowd(clients), honest: Honest::OtherPods, arguments, emulated: AtFullSize }
}

/// Every siege, in the order in which they run.
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
    // It has taken all seats, but not all connections: those beyond may be refused to the pod that has them all.
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
];
