//! [`Kin`]: whether the other end of a Unix socket is a process of a pod of this `DaemonSet` on this node.
//!
//! The kernel identifies the process that called `connect` or `listen` (`SO_PEERPIDFD`, Linux 6.5), and its pod. The API server
//! describes that pod. Claims of the process itself are ignored.
//!
//! The evidence is a descriptor of the process, not its ID. `SO_PEERCRED` returns the ID in the reader's own PID namespace, which is
//! 0 for a process of another container; and an ID may be reused before it is looked up. A descriptor always refers to the same
//! process. Its ID is read before and after the ID is used: if it is the same and the process has not ended, the ID belonged to that
//! process throughout.
//!
//! The pod must have this pod's namespace, service account and controller. Anyone who can create such a pod can use the service
//! account's token, and so get all that is handed over. Owners are requested when they are needed: the watch of pods does not keep
//! them, because tenants choose their number.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socketpair, sockopt};
use rustix::process::geteuid;
use tokio::time::timeout;

use crate::cluster::{Cluster, RequestError};
use crate::pods::{HostProc, Pod, PodUid, Pods, ProcError};

/// Maximum wait until the API server reports a pod that has already connected.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Attests processes of this `DaemonSet`'s pods.
#[derive(Debug)]
pub struct Kin {
    proc: HostProc,
    own: PodUid,
    pods: Arc<Pods>,
    cluster: Cluster,
}

/// Reason for not trusting the other end.
#[derive(Debug, thiserror::Error)]
pub enum Stranger {
    /// The kernel does not identify the process.
    #[error("the kernel does not say which process it is ({0}); that takes Linux 6.5")]
    Unsupported(Errno),
    /// The process cannot be read from `/proc`.
    #[error("its process cannot be looked up: {0}")]
    Unread(#[from] io::Error),
    /// Another user's process.
    #[error("it is a process of user {0}")]
    User(u32),
    /// The process has ended.
    #[error("its process has ended")]
    Ended,
    /// Not a process of a pod.
    #[error("it is a process outside pods")]
    NoPod,
    /// The API server does not list a pod.
    #[error("{0} is not a pod that the API server lists on this node")]
    Unlisted(PodUid),
    /// A pod with another namespace, service account or controller.
    #[error("it is pod {0}, which has another namespace, service account or controller")]
    Other(String),
    /// The owner of a pod cannot be read from the API server.
    #[error("the API server does not say who owns a pod: {0}")]
    Owner(#[from] RequestError),
}

/// Whether the kernel identifies the process at the other end of a socket.
pub fn is_supported() -> Result<(), Stranger> {
    let (one, _other) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|errno| Stranger::Unread(errno.into()))?;
    getsockopt(&one, sockopt::PeerPidfd).map(drop).map_err(Stranger::Unsupported)
}

impl Kin {
    /// `own` is the UID of this process's pod.
    pub fn open(host_proc: &Path, own: PodUid, pods: Arc<Pods>, cluster: Cluster) -> Result<Self, ProcError> {
        Ok(Self { proc: HostProc::open(host_proc)?, own, pods, cluster })
    }

    /// Whether the other end of a connected Unix socket is kin.
    pub async fn attest(&self, socket: BorrowedFd<'_>) -> Result<(), Stranger> {
        // Not with rustix, which fails for a process of another container: its ID is 0 here.
        let user = getsockopt(&socket, sockopt::PeerCredentials).map_err(io::Error::from)?.uid();
        if user != geteuid().as_raw() {
            return Err(Stranger::User(user));
        }
        let pidfd = getsockopt(&socket, sockopt::PeerPidfd).map_err(|error| match error {
            // It was reaped.
            Errno::ESRCH | Errno::EINVAL => Stranger::Ended,
            error => Stranger::Unsupported(error),
        })?;
        let pod = self.pod_of(pidfd.as_fd())?;
        self.is_kin(pod).await
    }

    /// The pod of the process that a descriptor refers to.
    fn pod_of(&self, pidfd: BorrowedFd<'_>) -> Result<PodUid, Stranger> {
        let before = self.proc.pid_of(pidfd)?.ok_or(Stranger::Ended)?;
        let pod = self.proc.pod_of(before);
        // Otherwise the ID may have been reused, and the files read may be those of another process.
        if self.proc.pid_of(pidfd)? != Some(before) {
            return Err(Stranger::Ended);
        }
        pod?.ok_or(Stranger::NoPod)
    }

    /// Whether the pod with this UID is kin.
    async fn is_kin(&self, uid: PodUid) -> Result<(), Stranger> {
        let own = self.listed(self.own).await?;
        let other = self.listed(uid).await?;
        let stranger = || Stranger::Other(format!("{}/{}", other.namespace, other.name));
        let is_alike = own.namespace == other.namespace && own.account == other.account && !own.account.is_empty();
        if !is_alike || other.ended {
            return Err(stranger());
        }
        let (mine, its) = (self.controller_of(&own).await?, self.controller_of(&other).await?);
        if mine.is_some() && mine == its { Ok(()) } else { Err(stranger()) }
    }

    /// A pod that the API server lists. It may list a pod shortly after the pod's first process has started.
    async fn listed(&self, uid: PodUid) -> Result<Arc<Pod>, Stranger> {
        let mut changes = self.pods.subscribe();
        let found = async {
            loop {
                if let Some(pod) = self.pods.get(uid) {
                    return pod;
                }
                // The sender is in `pods`.
                let _ = changes.changed().await;
            }
        };
        timeout(MAX_WAIT, found).await.map_err(|_| Stranger::Unlisted(uid))
    }

    /// The UID of a pod's controller, as the API server reports it now.
    async fn controller_of(&self, pod: &Pod) -> Result<Option<String>, Stranger> {
        let owned = self.cluster.owned_pod(&pod.namespace, &pod.name).await?;
        let owned = owned.filter(|owned| {
            PodUid::parse(&owned.metadata.uid) == Some(pod.uid) && owned.spec.service_account_name == *pod.account
        });
        Ok(owned.and_then(|owned| owned.controller().map(str::to_owned)))
    }
}

#[cfg(test)]
mod tests;
