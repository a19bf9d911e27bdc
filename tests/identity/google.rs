//! [`Cloud`]: a fake Google that trusts the world's API server, in the node's network.

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::{fs, ops};

use mock::google::{Google, Handle, Jwks, Pool, Settings};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::kube::{Client, KUBELET};
use crate::world::World;

/// The pool of the cluster's project.
pub const POOL: &str = "shop.svc.id.goog";

const CLUSTER: &str = "https://container.googleapis.com/v1/projects/shop/locations/europe-west3/clusters/one";

/// A fake Google. Ends with this value.
pub struct Cloud {
    handle: Handle,
    ca: PathBuf,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// A world, an administrator of its API server, and a fake Google that trusts it.
pub fn world_with_google() -> (World, Client, Cloud) {
    let world = World::new();
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    (world, api, google)
}

impl Cloud {
    /// Starts it, and lets nodes request tokens for the pool.
    pub fn start(world: &World, api: &mut Client) -> Self {
        api.apply(KUBELET, POOL);
        let jwks = api.patiently("GET", "/openid/v1/jwks", None).body.to_string();
        let pool = Pool::gke(POOL, CLUSTER).issued_by("https://issuer.example");
        let settings = Settings { jwks: Jwks::parse(&jwks).expect("the API server's keys"), ..Settings::new(pool) };
        let (send, started) = channel();
        let (end, ended) = oneshot::channel();
        // A thread whose sockets are the node's.
        let running = world.node.namespace.spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let google = Google::start(settings).await;
                send.send(google.clone()).expect("it is waited for");
                // It also ends when the sender is gone.
                let _ = ended.await;
                google.stop().await;
            });
        });
        let handle = started.recv().expect("it starts");
        let ca = world.server.dir().join("google-ca.pem");
        fs::write(&ca, handle.ca_pem()).expect("target/tmp can be written");
        Self { handle, ca, running: Some((end, running)) }
    }

    /// The proxy's flags for it.
    pub fn flags(&self) -> Vec<String> {
        let url = self.url();
        vec![
            format!("--workload-pool={POOL}"),
            format!("--cluster-uri={CLUSTER}"),
            format!("--sts-endpoint={url}"),
            format!("--iam-endpoint={url}"),
            format!("--google-ca={}", self.ca.display()),
        ]
    }
}

impl ops::Deref for Cloud {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        if let Some((end, running)) = self.running.take() {
            drop(end);
            let _ = running.join();
        }
    }
}
