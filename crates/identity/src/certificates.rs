//! [`Certificates`]: how many certificates a pod has its tokens bound to.
//!
//! Each is an exchange of its own, and a pod can make up as many chains as it likes: nobody verifies them. A pod has one
//! certificate, and another one when it is renewed, once a day.

use std::time::Duration;

use smallvec::SmallVec;

use base::clock::BootTime;
use protocol::metadata::Fingerprint;

/// Maximum certificates of one pod at a time.
pub(super) const MAX_CERTIFICATES: usize = 4;

/// Time for which a certificate counts after its last use. Longer than the life of a token that is bound to it.
pub(super) const COUNTS_FOR: Duration = Duration::from_secs(3600);

/// The certificates that a pod has used lately.
#[derive(Debug, Default)]
pub(super) struct Certificates(SmallVec<[(Fingerprint, BootTime); 1]>);

impl Certificates {
    /// Whether a token may be bound to this certificate.
    pub(super) fn admit(&mut self, fingerprint: &Fingerprint, now: BootTime) -> bool {
        if let Some((_, used)) = self.0.iter_mut().find(|(known, _)| known == fingerprint) {
            *used = now;
            return true;
        }
        self.0.retain(|(_, used)| now.since(*used) < COUNTS_FOR);
        let has_room = self.0.len() < MAX_CERTIFICATES;
        if has_room {
            self.0.push((fingerprint.clone(), now));
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_a_few_certificates_at_a_time() {
        let (mut certificates, now) = (Certificates::default(), BootTime::now());
        let all: Vec<_> = (0..100).map(|number| Fingerprint::from([number; 32])).collect();
        let admitted =
            |certificates: &mut Certificates, now| all.iter().filter(|it| certificates.admit(it, now)).count();
        for _ in 0..3 {
            assert_eq!(admitted(&mut certificates, now), MAX_CERTIFICATES);
        }
        let later = now + COUNTS_FOR - Duration::from_secs(1);
        assert!(certificates.admit(&all[0], later) && !certificates.admit(&all[99], later));
        // The one that is in use stays.
        assert_eq!(admitted(&mut certificates, now + COUNTS_FOR), MAX_CERTIFICATES);
        assert!(certificates.admit(&all[0], now + COUNTS_FOR));
        assert_eq!(certificates.0.len(), MAX_CERTIFICATES);
    }
}
