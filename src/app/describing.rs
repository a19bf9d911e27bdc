//! [`describe`]: reads facts about a node without a metadata server from the API server.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use base::backoff::{Backoff, Jitter};
use identity::cluster::{Cluster, Failure};
use proxy::layers::leaves::Leaves;
use proxy::upstream::Values;

/// Interval between reads of the node's object. A label may be added later, and many nodes have none.
const BACK_OFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(600)).with(Jitter(0.8, 1.2));

/// Interval while the cloud has not initialized the node yet. Its first pods start right after that.
const UNINITIALIZED: Duration = Duration::from_secs(2);

/// Reads the node's object until its zone is known.
pub(super) async fn describe(cluster: Cluster, values: Arc<Values>, leaves: Arc<Leaves>) {
    for attempts in 1.. {
        let mut wait = BACK_OFF.wait(attempts, fastrand::f64());
        match cluster.node_facts().await {
            Ok(node) if node.is_uninitialized() => wait = UNINITIALIZED,
            Ok(node) => {
                values.know_node(node.uid(), node.zone());
                // If an earlier attempt was refused, trees were served without these facts.
                leaves.refresh_trees().await;
            }
            Err(error) => {
                if matches!(error.failure(), Failure::Refused(_)) && values.awaits_node() {
                    values.know_node(None, None);
                }
                tracing::warn!(
                    node = %cluster.node(), %error,
                    "cannot read this node's object, which names the zone (--zone); trying again in {} s", wait.as_secs()
                );
            }
        }
        if !values.awaits_node() && !values.lacks_zone() {
            return;
        }
        sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use serde_json::{Value, json};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;
    use identity::cluster::fake::{Asked, Fake};
    use proxy::failure;
    use proxy::reply::Body;
    use proxy::upstream::Named;

    /// A task that reads the object of `node-1` and ends when all is known, and the values that it fills.
    fn reading(named: Named) -> (Fake, Arc<Values>, JoinHandle<()>) {
        let (fake, cluster) = Fake::new("node-1");
        let values = Arc::new(Values::of_node(named, "node-1"));
        let leaves = Arc::new(Leaves::new(|_| async { Err::<Response<Body>, _>(failure::Failure::Closed) }));
        let reading = tokio::spawn(describe(cluster, Arc::clone(&values), leaves));
        (fake, values, reading)
    }

    async fn asked(fake: &mut Fake) -> Asked {
        let asked = fake.asked().await;
        assert_eq!(asked.request.uri().path(), "/api/v1/nodes/node-1");
        asked
    }

    fn node(labels: &Value) -> Value {
        json!({"metadata": {"uid": "u", "resourceVersion": "1", "labels": labels}})
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_read_until_its_zone_is_known() {
        let (mut fake, values, reading) = reading(Named::default());
        drop(asked(&mut fake).await);
        let uninitialized = json!([{"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}]);
        let mut new = node(&Value::Null);
        new["spec"] = json!({ "taints": uninitialized });
        asked(&mut fake).await.answer(200, &new);
        let began = Instant::now();
        let next = asked(&mut fake).await;
        assert!(values.awaits_node(), "its labels will come");
        assert_eq!(began.elapsed().as_secs(), UNINITIALIZED.as_secs());
        next.answer(200, &node(&json!({"a": "b"})));
        let next = asked(&mut fake).await;
        assert!(!values.awaits_node() && values.lacks_zone());
        next.answer(200, &node(&json!({"topology.kubernetes.io/zone": "eu-a"})));
        reading.await.expect("no panic");
        assert!(!values.lacks_zone());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_ends_the_wait_of_pods_and_not_the_reading() {
        let (mut fake, values, reading) = reading(Named::default());
        asked(&mut fake).await.refuse(403, "no");
        let next = asked(&mut fake).await;
        assert!(!values.awaits_node() && values.lacks_zone());
        next.answer(200, &node(&json!({"topology.kubernetes.io/zone": "eu-a"})));
        reading.await.expect("no panic");
        assert!(!values.lacks_zone());
    }
}
