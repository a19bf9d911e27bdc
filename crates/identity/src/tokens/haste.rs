//! [`Haste`]: whether a client waits for a flight, which may be so only after it has begun.

use std::sync::Arc;

use tokio::sync::SetOnce;

use proxy::tokens::Urgency;

/// The urgency of a flight. A flight that began for nobody becomes urgent once a client waits for it, and stays so if that one leaves:
/// the next one finds its result. A clone is the same.
#[derive(Debug, Clone)]
pub(super) struct Haste {
    /// As it began.
    pub(super) began: Urgency,
    is_demanded: Arc<SetOnce<()>>,
}

impl Haste {
    /// The urgency now.
    pub(super) fn now(&self) -> Urgency {
        if self.is_demanded.initialized() { Urgency::Demanded } else { self.began }
    }

    /// Records that a client waits.
    pub(super) fn hurry(&self) {
        // It may do so already.
        let _ = self.is_demanded.set(());
    }

    /// Resolves as soon as a client waits.
    pub(super) async fn demanded(&self) {
        self.is_demanded.wait().await;
    }
}

impl From<Urgency> for Haste {
    fn from(began: Urgency) -> Self {
        let is_demanded = SetOnce::new_with((began == Urgency::Demanded).then_some(()));
        Self { began, is_demanded: Arc::new(is_demanded) }
    }
}

impl Default for Haste {
    fn default() -> Self {
        Urgency::Background.into()
    }
}
