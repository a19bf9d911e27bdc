//! [`Secret`]: a token of any step, with its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use zeroize::Zeroizing;

use base::clock::BootTime;

/// Minimum remaining life of a token that is used: it must still be valid when the request that has it arrives.
const MIN_LEFT: Duration = Duration::from_secs(10);

/// Maximum time since the request for an uncollected identity token until another request may get it.
const MAX_UNCOLLECTED: Duration = Duration::from_secs(60);

/// A token. Wiped from memory on drop; never shown.
pub(super) struct Secret {
    pub(super) text: Zeroizing<String>,
    /// Time of the request for it. Its life counts from here, so that it is never overestimated.
    pub(super) asked: BootTime,
    pub(super) expires: BootTime,
}

/// The required freshness of a kept token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// Any that is valid. One past half of its life is renewed in the background.
    Valid,
    /// One before half of its life. If there is none in time, any that is valid.
    Young,
    /// One that was just issued.
    Recent,
}

impl Secret {
    /// A token that was requested at `asked` and lives for this long.
    pub(super) fn new(text: Zeroizing<String>, asked: BootTime, life: Duration) -> Self {
        Self { text, asked, expires: asked + life }
    }

    pub(super) fn is_valid(&self, now: BootTime) -> bool {
        self.expires > now + MIN_LEFT
    }

    /// Whether more than half of its life is left.
    pub(super) fn is_young(&self, now: BootTime) -> bool {
        now.since(self.asked) * 2 < self.expires.since(self.asked)
    }

    /// Whether it may be kept for this use.
    pub(super) fn is_of_use(&self, want: Want, now: BootTime) -> bool {
        self.is_valid(now) && (want != Want::Recent || now.since(self.asked) <= MAX_UNCOLLECTED)
    }

    /// Whether it is good enough that none needs to be fetched.
    pub(super) fn is_good(&self, want: Want, now: BootTime) -> bool {
        self.is_of_use(want, now) && (want == Want::Recent || self.is_young(now))
    }

    /// Whole seconds that are left, at most a day.
    pub(super) fn seconds_left(&self, now: BootTime) -> u32 {
        u32::try_from(self.expires.seconds_since(now)).unwrap_or(u32::MAX).min(24 * 60 * 60)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("asked", &self.asked).field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// The token as bytes that share its memory.
pub(super) fn bytes(secret: Arc<Secret>) -> Bytes {
    struct Shared(Arc<Secret>);

    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            self.0.text.as_bytes()
        }
    }

    Bytes::from_owner(Shared(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_half_of_its_life_and_never_used_past_its_end() {
        let asked = BootTime::now();
        let secret = Secret::new(Zeroizing::new("s3cret".to_owned()), asked, Duration::from_secs(3600));
        let at = |seconds| asked + Duration::from_secs(seconds);
        for (seconds, wants) in [
            (0, [true, true, true]),
            (61, [true, true, false]),
            (1799, [true, true, false]),
            (1800, [false, false, false]),
        ] {
            let good = [Want::Valid, Want::Young, Want::Recent].map(|want| secret.is_good(want, at(seconds)));
            assert_eq!(good, wants, "{seconds}");
        }
        assert!(secret.is_of_use(Want::Young, at(3589)) && !secret.is_of_use(Want::Recent, at(3589)));
        assert!(!secret.is_of_use(Want::Valid, at(3590)));
        assert_eq!((secret.seconds_left(at(1)), secret.seconds_left(at(9999))), (3599, 0));
        assert!(!format!("{secret:?} {secret:#?}").contains("s3cret"));
        assert_eq!(bytes(Arc::new(secret)), "s3cret");
    }
}
