//! The table. In targets, `v1` is the tree and `SA` its default account.
//!
//! Where the protocol notes leave a choice, the mock must behave as documented, and the proxy as decided: it refuses
//! concealed paths with 403 and a reason, and likewise unknown query parameters and API versions; it answers paths
//! above the API versions itself; and it allows only reads.

use std::time::Duration;

use mock::{BUILDER_ACCOUNT, DEFAULT_ACCOUNT, Fault};

use super::ask::{ask, get};
use super::bodies::{
    is_account, is_account_map, is_account_text, is_for_the_audience, is_instance, is_instance_listing, is_project,
    is_project_text, is_scheduling, names_the_licences, names_the_machine,
};
use super::expect::{
    Expect, identity_that, json, json_that, kept_token, known_leaf, leaf, method_refusal, own_listing, page, redirect,
    redirect_under, refusal, text, text_that, token, unavailable,
};
use super::row::{Row, row};
use super::stage::Side;
use super::stories;

/// A story, with its name.
macro_rules! story {
    ($story:ident) => {
        (stringify!($story), |stage| Box::pin(stories::$story(stage)))
    };
}

/// All rows, in the order of the table.
pub fn all() -> Vec<Row> {
    let chapters = [
        discovery,
        proofs,
        leaves,
        recursion,
        instance,
        paths,
        accounts,
        tokens,
        token_parameters,
        methods,
        identities,
        attributes,
        waiting,
        writing,
        failures,
        connections,
    ];
    chapters.into_iter().flat_map(|chapter| chapter()).collect()
}

fn discovery() -> Vec<Row> {
    let servers = || text("0.1/\ncomputeMetadata/\n").no_etag();
    // The listing contains only what is served without conditions.
    let proxys = || own_listing("computeMetadata/\n");
    let accounts = || redirect("v1/instance/service-accounts/").header("content-length", "47");
    vec![
        row("T01").ask(get("/").bare()).mock(servers()).proxy(proxys()),
        row("T02").get("/").mock(servers()).proxy(proxys()),
        row("T03").ask(get("/").bare().line("Metadata-Flavor: Not Google")).mock(servers()).proxy(proxys()),
        row("T04").ask(ask("HEAD", "/")).mock(servers().headers_only()).proxy(proxys().headers_only()),
        row("T06").get("/computeMetadata/").mock(text("v1/\nv1beta1/\n")).proxy(own_listing("v1/\n")),
        row("T07").get("v1").mock(redirect("v1/")).proxy(redirect("v1/").by_proxy()),
        row("T08").get("v1/").both(text("instance/\noslogin/\nproject/\nuniverse/\n").known()),
        // Node's library detects the metadata server by this path, so the proxy answers it itself.
        row("T09")
            .get("v1/instance")
            .mock(redirect("v1/instance/"))
            .proxy(redirect("v1/instance/").by_proxy())
            .get("v1/instance?alt=json")
            .both(redirect("v1/instance/?alt=json").holding("/computeMetadata/v1/instance/"))
            // The proxy does not ask for a tree here, whatever the server has at this path.
            .get("v1/instance/scheduling?recursive=true")
            .both(
                redirect("v1/instance/scheduling/?recursive=true").holding("/computeMetadata/v1/instance/scheduling/"),
            ),
        row("T10")
            .ask(get("v1/instance").host("metadata"))
            .mock(redirect_under("metadata", "v1/instance/"))
            .proxy(redirect_under("metadata", "v1/instance/").by_proxy()),
        row("T12").get("v1/instance/service-accounts").mock(accounts()).proxy(accounts().by_proxy()),
        row("T13").get("v1/instance/").both(text_that(is_instance_listing).known()),
    ]
}

fn proofs() -> Vec<Row> {
    let project = "v1/project/project-id";
    let old_proof = "X-Google-Metadata-Request: True";
    let forwarded = "X-Forwarded-For: 10.0.0.1";
    vec![
        row("T14").ask(get("v1/instance/").bare()).mock(page(403)).proxy(refusal(403)),
        row("T15").ask(get(project).bare()).mock(page(403)).proxy(refusal(403)),
        row("T16").ask(get("SA/token").bare()).mock(page(403)).proxy(refusal(403)),
        row("T18").ask(get(project).bare().line("Metadata-Flavor: google")).mock(page(403)).proxy(refusal(403)),
        // Accepted as Compute Engine does; GKE's server refuses it.
        row("T19").ask(get(project).bare().line(old_proof)).both(known_leaf("mock-project")),
        row("T20").ask(get(project).line(forwarded)).mock(page(403)).proxy(refusal(403)),
        row("T21").ask(get(project).line("x-forwarded-for:")).proxy(refusal(403)),
        row("T22").ask(get("/").bare().line(forwarded)).mock(page(403)).proxy(refusal(403)),
        row("T24").ask(get(project).host("evil.example")).mock(leaf("mock-project")).proxy(refusal(403)),
        row("T25").ask(get(project).without_host()).mock(page(400)).proxy(refusal(400)),
    ]
}

fn leaves() -> Vec<Row> {
    vec![
        row("T26").get("v1/project/project-id").both(known_leaf("mock-project")),
        row("T27").get("v1/project/project-id/").both(page(404)),
        row("T28").get("v1/project/numeric-project-id").both(known_leaf("123456789012")),
        row("T30").get("v1/project/project-id?alt=json").both(json("\"mock-project\"").etag()),
        // Unknown on the real server; the mock refuses.
        row("T31")
            .get("v1/project/project-id?alt=JSON")
            .mock(page(400))
            .get("v1/project/project-id?alt=xml")
            .mock(page(400)),
        row("T32").get("v1/project/project-id?recursive=true").both(known_leaf("mock-project")),
        row("T33").get("v1/project/project-id?foo=bar").mock(leaf("mock-project")).proxy(refusal(403)),
        // Each attribute is judged when it is requested, so the directory is listed.
        row("T34").get("v1/project/").both(text("attributes/\nnumeric-project-id\nproject-id\n").known()),
    ]
}

fn recursion() -> Vec<Row> {
    let project = || json_that(is_project).etag();
    let listing = || text("attributes/\nnumeric-project-id\nproject-id\n");
    let spelled = |row: Row, flags: &[&str], expect: fn() -> Expect| {
        flags.iter().fold(row, |row, flag| row.get(&format!("v1/project/?recursive{flag}")).mock(expect()))
    };
    vec![
        row("T36").get("v1/project/?recursive=true").mock(project()),
        spelled(row("T37"), &["=True", "=TRUE", "=1", "=yes", "=on"], project),
        spelled(row("T38"), &["=false", "=0", "=maybe"], listing),
        // The mock takes the reading that reveals more, and so must the proxy.
        row("T39").get("v1/project/?recursive").both(project().known()),
        row("T40").get("v1/project/?recursive=true&alt=text").mock(text_that(is_project_text).etag()),
    ]
}

fn instance() -> Vec<Row> {
    let instance = |leaf: &str| get(&format!("v1/instance/{leaf}"));
    vec![
        row("T42").ask(instance("id?alt=json")).mock(json("4520031799277581759").etag()),
        row("T43").ask(instance("zone")).both(known_leaf("projects/123456789012/zones/us-central1-a")),
        row("T44")
            .ask(instance("tags"))
            .mock(json(r#"["gke-mock-cluster-0a1b2c3d-node","allow-health-checks"]"#).etag()),
        row("T45").ask(instance("tags?alt=text")).mock(leaf("gke-mock-cluster-0a1b2c3d-node\nallow-health-checks\n")),
        row("T46")
            .ask(instance("disks/0/type"))
            .mock(leaf("PERSISTENT-BALANCED"))
            .ask(instance("disks/9/type"))
            .mock(page(404)),
        row("T48").ask(instance("scheduling/?recursive=true")).proxy(json_that(is_scheduling).etag()),
        row("T49").ask(instance("scheduling/preemptible")).mock(leaf("FALSE")),
        row("T50").ask(instance("maintenance-event")).mock(leaf("NONE")).ask(instance("preempted")).mock(leaf("FALSE")),
    ]
}

fn paths() -> Vec<Row> {
    let project = || known_leaf("mock-project");
    vec![
        row("T51").get("v1/nothing").mock(page(404).holding("/computeMetadata/v1/nothing")),
        row("T52").get("v1/nothing").proxy(page(404)),
        // Under the proxy's policy this is an unknown API version.
        row("T54").get("/COMPUTEMETADATA/V1/project/project-id").mock(page(404)).proxy(refusal(403)),
        row("T55").get("v1/Project/project-id").both(page(404)),
        row("T56")
            .get("v1//project/project-id")
            .both(project())
            .get("v1/project//project-id")
            .both(project())
            .get("v1//instance/attributes//kube-env")
            .proxy(refusal(403)),
        row("T57").get("v1/project/project%2Did").mock(page(404)).proxy(refusal(404)),
        // The table allows 100 ms; a machine that is busy with other tests gets more.
        row("T58")
            .get("v1/universe/universe-domain")
            .both(known_leaf("googleapis.com").within(Duration::from_secs(1)))
            .get("v1/universe/universe_domain")
            .both(known_leaf("googleapis.com").within(Duration::from_secs(1))),
    ]
}

fn accounts() -> Vec<Row> {
    let scopes = "https://www.googleapis.com/auth/cloud-platform\n\
                  https://www.googleapis.com/auth/devstorage.read_only\n\
                  https://www.googleapis.com/auth/userinfo.email\n";
    let all = "v1/instance/service-accounts/";
    vec![
        row("T60").get("SA/").both(text("aliases\nemail\nidentity\nscopes\ntoken\n").known()),
        row("T61").get("SA").mock(redirect("SA/")).proxy(redirect("SA/").by_proxy()),
        row("T62").get("SA/email").both(known_leaf(DEFAULT_ACCOUNT)),
        row("T63").get("SA/aliases").both(leaf("default\n")),
        row("T64").get("SA/scopes").both(known_leaf(scopes)),
        row("T66").get("SA/?recursive=true").both(json_that(is_account).etag().known()),
        row("T67").get("SA/?recursive=True").both(json_that(is_account).etag().known()),
        row("T68").get("SA/?recursive=true&alt=text").mock(text_that(is_account_text).etag()),
        row("T69").get(&format!("{all}?recursive=true")).both(json_that(is_account_map).etag().known()),
        row("T70").get(&format!("{all}{DEFAULT_ACCOUNT}/token")).token(),
        // The proxy decodes once and sends the name that the server knows.
        row("T72")
            .get(&format!("{all}{}/email", BUILDER_ACCOUNT.replace('@', "%40")))
            .mock(page(404))
            .proxy(leaf(BUILDER_ACCOUNT)),
    ]
}

fn tokens() -> Vec<Row> {
    vec![
        row("T73").get("SA/token").token(),
        row("T74").get("SA/token/").both(page(404)),
        row("T75").stories(story!(a_token_ages)),
        row("T76").story(Side::Proxy, story!(many_clients_are_one_request)),
        row("T81").story(Side::Proxy, story!(a_dead_token_is_not_given)),
    ]
}

fn token_parameters() -> Vec<Row> {
    let scopes = "https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform";
    let audience = "https%3A%2F%2Fwww.googleapis.com%2Foauth2%2Fv4%2Ftoken";
    vec![
        row("T82").get(&format!("SA/token?scopes={scopes}")).token().stories(story!(scopes_have_their_own_tokens)),
        row("T84").ask(get(&format!("SA/token?audience={audience}")).host("metadata")).token(),
        row("T85")
            .get("SA/token?transport=mtls&binding-enforcement=on")
            .token()
            .stories(story!(a_bound_token_is_not_the_plain_one)),
        row("T86").get("SA/token?enforce_scopes=false").mock(page(400)),
        row("T87").get("SA/token?wait_for_change=true").both(page(400)),
        row("T88").get("SA/token?recursive=true").token().get("SA/token?alt=json").token(),
    ]
}

fn methods() -> Vec<Row> {
    let chain = r#"{"certificate_chain":["-----BEGIN CERTIFICATE-----"]}"#;
    let post = ask("POST", "SA/token").line("Content-Type: application/json").body(chain);
    vec![
        row("T90").ask(post).mock(token()).proxy(refusal(404)),
        row("T91")
            .ask(ask("PUT", "SA/token"))
            .mock(page(405))
            .proxy(method_refusal())
            .ask(ask("DELETE", "SA/token"))
            .mock(page(405))
            .proxy(method_refusal()),
        row("T92").ask(ask("HEAD", "SA/token")).mock(token().headers_only()).proxy(kept_token().headers_only()),
    ]
}

/// The proxy conceals all identity tokens: their holder can impersonate the node.
fn identities() -> Vec<Row> {
    let raw = "SA/identity?audience=https://aud.example";
    let other = "SA/identity?audience=https://other.example";
    let missing = || page(400).holding("audience is missing");
    vec![
        row("T93").get("SA/identity").mock(missing()).proxy(refusal(403)),
        row("T94").get("SA/identity?audience=").mock(missing()).proxy(refusal(404)),
        row("T96")
            .get("SA/identity?audience=https%3A%2F%2Faud.example")
            .mock(identity_that(is_for_the_audience))
            .proxy(refusal(404))
            .get(raw)
            .mock(identity_that(is_for_the_audience)),
        row("T97").get("SA/identity?format=full&audience=X").mock(identity_that(names_the_machine)),
        row("T98").get("SA/identity?audience=X&format=full&licenses=TRUE").mock(identity_that(names_the_licences)),
        row("T99").get(raw).proxy(refusal(404)),
        row("T100").get(raw).proxy(refusal(404)).get(other).proxy(refusal(404)),
    ]
}

fn attributes() -> Vec<Row> {
    let attributes = "v1/instance/attributes";
    vec![
        row("T102").get(&format!("{attributes}/cluster-name")).both(known_leaf("mock-cluster")),
        row("T103").get(&format!("{attributes}/kube-env")).mock(leaf("").holding("KUBELET_KEY: ")).proxy(refusal(403)),
        row("T104").get(&format!("{attributes}/missing")).both(page(404)),
        row("T105").get("v1/project/attributes/ssh-keys").proxy(refusal(403)),
    ]
}

fn waiting() -> Vec<Row> {
    let at_once = Duration::from_secs(1);
    let agents = "v1/instance/?recursive=true&wait_for_change=true&timeout_sec=60&alt=json&last_etag=NONE";
    vec![
        row("T106")
            .get("v1/instance/attributes/k?wait_for_change=true&last_etag=0")
            .given(|mock| mock.set("instance/attributes/k", "v"))
            .mock(leaf("v").within(at_once)),
        row("T108").story(Side::Mock, story!(a_change_ends_the_wait)),
        row("T109").get("v1/instance/?wait_for_change=true").mock(page(400)),
        row("T110").get(agents).mock(json_that(is_instance).etag().within(at_once)),
        row("T112").story(Side::Mock, story!(an_etag_depends_on_the_content_and_not_on_its_form)),
    ]
}

fn writing() -> Vec<Row> {
    let old = "/computeMetadata/v1beta1/project/project-id";
    vec![
        row("T114")
            .ask(ask("PUT", "v1/instance/guest-attributes/ns/key").body("v"))
            .mock(text(""))
            .proxy(method_refusal())
            .given(|mock| mock.remove("instance/attributes/enable-guest-attributes"))
            .mock(page(403).holding("disabled")),
        row("T115").story(Side::Mock, story!(what_was_put_can_be_read)),
        row("T116")
            .get("v1/instance/gce-workload-certificates/config-status")
            .given(|mock| mock.remove("instance/gce-workload-certificates/config-status"))
            .mock(page(412)),
        row("T117").get("v1/instance/credentials/mds-client-certificate").proxy(refusal(403)),
        // The proxy passes requests for the old tree on, but only with the proof that the old tree never required.
        row("T118")
            .get(old)
            .both(page(404))
            .given(mock::Handle::enable_legacy)
            .both(leaf("mock-project"))
            .ask(get(old).bare())
            .mock(leaf("mock-project"))
            .proxy(refusal(403)),
    ]
}

fn failures() -> Vec<Row> {
    // A cached token would hide the failure.
    let unseen = stories::CLOUD_PLATFORM;
    vec![
        row("T120").story(Side::Proxy, story!(an_absent_upstream_is_a_503)),
        row("T121").story(Side::Proxy, story!(a_silent_upstream_is_a_503_and_is_left)),
        row("T122")
            .get(unseen)
            .given(|mock| mock.fault(Fault::CutBody { after: 9 }))
            .proxy(unavailable())
            .given(|mock| mock.fault(Fault::CutBodyFin { after: 9 }))
            .proxy(unavailable())
            .given(|mock| mock.fault(Fault::Reset))
            .proxy(unavailable())
            .given(|mock| mock.fault(Fault::Close))
            .proxy(unavailable()),
        row("T123").story(Side::Proxy, story!(a_server_that_asks_for_patience_gets_it)),
        row("T124")
            .get(unseen)
            .given(|mock| mock.fault(Fault::NoFlavor))
            .proxy(unavailable())
            .given(|mock| mock.fault(Fault::Html))
            .proxy(unavailable()),
        row("T126").get(unseen).given(|mock| mock.fault(Fault::HugeBody { bytes: 10_000_000 })).proxy(unavailable()),
    ]
}

fn connections() -> Vec<Row> {
    let (old, disks) = (get("/").bare().http10(), "v1/instance/disks");
    vec![
        row("T127").ask(get("v1/project/project-id").line("Accept-Encoding: gzip")).both(known_leaf("mock-project")),
        row("T128").stories(story!(one_connection_carries_two_requests)),
        row("T129")
            .ask(old.clone())
            .mock(text("0.1/\ncomputeMetadata/\n"))
            .proxy(own_listing("computeMetadata/\n"))
            .ask(old.without_host())
            .mock(text("0.1/\ncomputeMetadata/\n"))
            .proxy(own_listing("computeMetadata/\n"))
            .ask(get(disks).http10().without_host())
            .mock(redirect_under("169.254.169.254", "v1/instance/disks/"))
            .proxy(redirect("v1/instance/disks/")),
    ]
}
