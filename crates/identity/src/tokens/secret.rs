//! [`Secret`]: a token of any step, with its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use zeroize::Zeroizing;

use super::pace::ENDS_SOON;
use base::clock::BootTime;
use protocol::metadata::token::MAX_LIFE_SECONDS;
use proxy::tokens::{Fetched, Token};

/// Minimum remaining life of a token that is used: it must still be valid when the request that has it arrives.
const MIN_LEFT: Duration = Duration::from_secs(10);

/// Maximum time since the request for an uncollected identity token until another request may get it. The token cache serves it until it
/// is a minute old.
const MAX_UNCOLLECTED: Duration = Duration::from_secs(30);

/// When a token is due for renewal, as a part of its life. It is drawn for each one, so that tokens that were issued together, on one
/// node or on all of a fleet, are not renewed together.
const DUE: (f64, f64) = (0.4, 0.6);

/// A token. Wiped from memory on drop; never shown.
pub(super) struct Secret {
    pub(super) text: Zeroizing<String>,
    /// Time of the request for it. Its life counts from here, so that it is never overestimated.
    pub(super) asked: BootTime,
    pub(super) expires: BootTime,
    /// From when on it should be renewed.
    pub(super) due: BootTime,
}

/// The required freshness of a kept token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// Any that is valid. One that is due is renewed in the background.
    Valid,
    /// One that is not due for renewal. If there is none in time, any that is valid.
    Young,
    /// One that was just issued.
    Recent,
}

impl Secret {
    /// A token that was requested at `asked` and lives for this long.
    pub(super) fn new(text: Zeroizing<String>, asked: BootTime, life: Duration) -> Self {
        let due = asked + life.mul_f64(DUE.0 + (DUE.1 - DUE.0) * fastrand::f64());
        Self { text, asked, expires: asked + life, due }
    }

    /// The same token, which was issued for `subject`. If it ends with that one, it is also due with it: were it renewed earlier, the
    /// next one would live for less time, and cost an exchange more.
    pub(super) fn issued_for(self, subject: &Self) -> Self {
        let is_with_it = self.expires == subject.expires && subject.due > self.asked;
        Self { due: if is_with_it { subject.due } else { self.due }, ..self }
    }

    /// A copy that is due at this time, or earlier as before.
    pub(super) fn due_at(&self, due: BootTime) -> Self {
        Self { text: self.text.clone(), asked: self.asked, expires: self.expires, due: self.due.min(due) }
    }

    pub(super) fn ends_soon(&self, now: BootTime) -> bool {
        self.expires <= now + ENDS_SOON
    }

    pub(super) fn is_valid(&self, now: BootTime) -> bool {
        self.valid_until() > now
    }

    pub(super) fn valid_until(&self) -> BootTime {
        self.expires - MIN_LEFT
    }

    /// Whether it is not due for renewal.
    pub(super) fn is_young(&self, now: BootTime) -> bool {
        now < self.due
    }

    /// Whether it may be kept for this use.
    pub(super) fn is_of_use(&self, want: Want, now: BootTime) -> bool {
        self.is_valid(now) && (want != Want::Recent || now.since(self.asked) <= MAX_UNCOLLECTED)
    }

    /// Whether it is good enough that none needs to be fetched.
    pub(super) fn is_good(&self, want: Want, now: BootTime) -> bool {
        self.is_of_use(want, now) && (want == Want::Recent || self.is_young(now))
    }

    /// This token as pods get it, with its times.
    pub(super) fn given_as(&self, token: Token) -> Fetched {
        let longest = Duration::from_secs(MAX_LIFE_SECONDS.into());
        Fetched::Own { token, asked: self.asked, expires: self.expires.min(self.asked + longest) }
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
    fn a_token_is_good_until_it_is_due_and_never_used_past_its_end() {
        let asked = BootTime::now();
        let secret = Secret::new(Zeroizing::new("s3cret".to_owned()), asked, Duration::from_secs(3600));
        let secret = Secret { due: asked + Duration::from_secs(1800), ..secret };
        let at = |seconds| asked + Duration::from_secs(seconds);
        for (seconds, wants) in [
            (0, [true, true, true]),
            (31, [true, true, false]),
            (1799, [true, true, false]),
            (1800, [false, false, false]),
        ] {
            let good = [Want::Valid, Want::Young, Want::Recent].map(|want| secret.is_good(want, at(seconds)));
            assert_eq!(good, wants, "{seconds}");
        }
        assert!(secret.is_of_use(Want::Young, at(3589)) && !secret.is_of_use(Want::Recent, at(3589)));
        assert!(!secret.is_of_use(Want::Valid, at(3590)));
        assert!(!format!("{secret:?} {secret:#?}").contains("s3cret"));
        assert_eq!(bytes(Arc::new(secret)), "s3cret");
    }

    #[test]
    fn renewals_of_tokens_that_were_issued_together_are_spread_over_a_fifth_of_their_life() {
        let asked = BootTime::now();
        let secret = |seconds| Secret::new(Zeroizing::new("s3cret".to_owned()), asked, Duration::from_secs(seconds));
        let mut minutes = [0; 60];
        for _ in 0..12_000 {
            minutes[usize::try_from(secret(3600).due.seconds_since(asked) / 60).expect("small")] += 1;
        }
        // A thousand a minute.
        assert!(minutes[24..36].iter().all(|count| (800..1200).contains(count)), "{minutes:?}");
        assert_eq!(minutes.iter().sum::<u32>(), minutes[24..36].iter().sum::<u32>());
    }

    #[test]
    fn a_token_that_ends_with_the_one_that_it_was_issued_for_is_due_with_it() {
        let asked = BootTime::now();
        let secret = |after: u64, life: u64| {
            let asked = asked + Duration::from_secs(after);
            Secret::new(Zeroizing::new("s3cret".to_owned()), asked, Duration::from_secs(life))
        };
        let subject = secret(0, 3600);
        assert_eq!(secret(1, 3599).issued_for(&subject).due, subject.due);
        let shorter = secret(1, 600).issued_for(&subject);
        assert!(shorter.due < asked + Duration::from_secs(362), "a shorter one has a time of its own");
        // The subject could not be renewed.
        let late = secret(3000, 600).issued_for(&subject);
        assert!(late.due > late.asked, "not at once");
    }
}
