//! A mock metadata server on its own thread.

use std::sync::LazyLock;

use mock::{Handle, Mock};
use tokio::runtime::{Builder, Runtime};

/// The proxy waits 2.5 s for the upstream. On its own thread the mock is not delayed by a thousand clients, or by
/// fifty processes that are being started.
static UPSTREAMS: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread can be started")
});

/// Starts an upstream.
pub async fn upstream() -> Handle {
    UPSTREAMS.spawn(Mock::start()).await.expect("the upstream starts")
}
