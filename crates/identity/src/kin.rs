//! [`Kin`]: whether the other end of a Unix socket is a process of a pod of this `DaemonSet` on this node.
//!
//! The kernel says which process called `connect` or `listen` (`SO_PEERPIDFD`, Linux 6.5), and which pod it is of. The API server
//! says what that pod is. Nothing that the process says counts.
//!
//! A descriptor for the process, not its number, is the evidence. `SO_PEERCRED` gives the number in the reader's own namespace of
//! process IDs, which for a process of another container is 0; and a number may be another process's by the time that it is looked
//! up. The descriptor stands for one process. It is asked for the number before and after the number was used: if it was the same
//! and the process had not ended, the number was that process's all the time.
//!
//! The pod must have this pod's namespace, service account and controller. Who may create such a pod has the service account's token,
//! and with it all that is handed over. Owners are asked for when they are needed: the watch of pods does not keep them, since
//! their number is a tenant's choice.

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

/// How long the API server may take to report a pod that has connected already.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Attests processes of this `DaemonSet`'s pods.
#[derive(Debug)]
pub struct Kin {
    proc: HostProc,
    own: PodUid,
    pods: Arc<Pods>,
    cluster: Cluster,
}

/// Why the other end is not believed.
#[derive(Debug, thiserror::Error)]
pub enum Stranger {
    /// The kernel does not say who it is.
    #[error("the kernel does not say which process it is ({0}); that takes Linux 6.5")]
    Unsupported(Errno),
    /// It cannot be looked up.
    #[error("its process cannot be looked up: {0}")]
    Unread(#[from] io::Error),
    /// Another user's process.
    #[error("it is a process of user {0}")]
    User(u32),
    /// It has ended.
    #[error("its process has ended")]
    Ended,
    /// Not a process of a pod.
    #[error("it is a process outside pods")]
    NoPod,
    /// The API server does not list a pod.
    #[error("{0} is not a pod that the API server lists on this node")]
    Unlisted(PodUid),
    /// A pod of others.
    #[error("it is pod {0}, which has another namespace, service account or controller")]
    Other(String),
    /// The API server does not say who owns a pod.
    #[error("the API server does not say who owns a pod: {0}")]
    Owner(#[from] RequestError),
}

/// Whether the kernel says which process is at the other end of a socket.
pub fn is_supported() -> Result<(), Stranger> {
    let (one, _other) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|errno| Stranger::Unread(errno.into()))?;
    getsockopt(&one, sockopt::PeerPidfd).map(drop).map_err(Stranger::Unsupported)
}

impl Kin {
    /// For the pod with this UID, which is this process's own.
    pub fn open(host_proc: &Path, own: PodUid, pods: Arc<Pods>, cluster: Cluster) -> Result<Self, ProcError> {
        Ok(Self { proc: HostProc::open(host_proc)?, own, pods, cluster })
    }

    /// Whether the other end of a connected Unix socket is kin.
    pub async fn attest(&self, socket: BorrowedFd<'_>) -> Result<(), Stranger> {
        // Not that of rustix, which fails for a process of another container: it has the number 0 here.
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

    /// The pod of the process that a descriptor stands for.
    fn pod_of(&self, pidfd: BorrowedFd<'_>) -> Result<PodUid, Stranger> {
        let before = self.proc.pid_of(pidfd)?.ok_or(Stranger::Ended)?;
        let pod = self.proc.pod_of(before);
        // Else what was read may be of another process that has got its number.
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

    /// A pod that the API server lists. It may list one a moment after the pod's first process has begun.
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

    /// The UID of what manages a pod, by the API server's word of now.
    async fn controller_of(&self, pod: &Pod) -> Result<Option<String>, Stranger> {
        let owned = self.cluster.owned_pod(&pod.namespace, &pod.name).await?;
        let is_it = |owned: &crate::cluster::OwnedPod| {
            PodUid::parse(owned.uid()) == Some(pod.uid) && owned.account() == &*pod.account
        };
        Ok(owned.filter(is_it).and_then(|owned| owned.controller().map(str::to_owned)))
    }
}

#[cfg(test)]
mod tests;
