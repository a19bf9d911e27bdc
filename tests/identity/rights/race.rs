//! Pods that were created on another node a moment ago: a decision must not treat an unknown pod as allowed.

use super::{AUDIENCE, ELSEWHERE, WAYS, Way, ask, bound};
use crate::kube::{ApiServer, NODE};
use crate::support::switch::is_full_size;

/// Number of pods that are created and requested for, for each way.
fn pods() -> usize {
    if is_full_size() { 1000 } else { 200 }
}

pub(super) fn pods_that_were_just_created_elsewhere_get_no_tokens() {
    let server = ApiServer::start(None);
    let mut admin = server.admin();
    let token = admin.own_token(NODE);
    admin.create_account("a", "app");
    // The account has a pod here, so a refusal comes from the knowledge of each pod's node.
    let own = admin.create_pod("a", "own", "app", NODE);
    for way in WAYS {
        let mut client = way.client(&server, &token);
        way.apply(&mut admin, &mut client, &own, AUDIENCE);
        let minted = (0..pods()).filter(|number| {
            let pod = admin.create_pod("a", &format!("{way:?}-{number}").to_lowercase(), "app", ELSEWHERE);
            ask(&mut client, &pod, &bound(&pod, AUDIENCE)) == 201
        });
        let minted = minted.count();
        println!("{way:?}: tokens of {minted} of {} pods that were just created on another node", pods());
        let expected = if way == Way::Fenced { pods() } else { 0 };
        assert_eq!(minted, expected, "{way:?}");
        admin.unapply(way.files());
    }
}
