//! The proxy itself with its own account: pods get their tokens, and it reports the rights of that account.

use super::Way;
use crate::google::{Cloud, POOL};
use crate::kube::NODE;
use crate::tokens::{email, linked_accounts, subject};
use crate::world::World;

pub(super) fn the_proxy_serves_pods_with_its_own_account_either_way() {
    let world = World::new();
    let mut api = world.server.admin();
    // Lets nodes request the audience, which the first way needs, too.
    let google = Cloud::start(&world, &mut api);
    linked_accounts(&mut api, &google, 1);
    let token = api.own_token(NODE);
    let pod = world.pod(&mut api, "shop", world.address(0));
    for (way, flags, state) in
        [(Way::OwnNode, &[][..], "confined"), (Way::Fenced, &["--impersonate-node=false"], "last_resort")]
    {
        // The first result is shown: the next review is minutes later.
        way.apply(&mut api, &mut way.client(&world.server, &token), &pod.object, POOL);
        let google_flags = google.flags();
        let args: Vec<&str> = google_flags.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let proxy = world.proxy_of_own_account(&token, &args);
        assert_eq!(subject(&pod, "/default/token").email, Some(email("app-0")), "{way:?}");
        world.comes_to_show(&format!("metadata_proxy_identity_rights{{state=\"{state}\"}} 1\n"));
        drop(proxy);
        api.unapply(way.files());
    }
}
