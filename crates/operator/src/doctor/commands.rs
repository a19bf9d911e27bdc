//! The commands that fix findings. Each is one line that can be copied into a shell.

use serde_json::{Value, json};

use identity::cluster::{Acting, rights};
use identity::workloads::{GoogleAccount, Provider};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Lets the proxy's account act as the node that it runs on, for the proxy's requests.
pub(super) fn act_as_node(namespace: &str, account: &str) -> String {
    let rights = rights::needed(Acting::AsItsNode);
    let rules: Value = rights
        .chunk_by(|one, next| (one.group, one.resource) == (next.group, next.resource))
        .map(|same| {
            let verbs: Vec<&str> = same.iter().map(|right| right.verb).collect();
            json!({"apiGroups": [same[0].group], "resources": [same[0].resource], "verbs": verbs})
        })
        .collect();
    let subject = json!({"kind": "ServiceAccount", "namespace": namespace, "name": account});
    grant("gce-metadata-proxy-own-node", &rules, &subject)
}

/// Lets nodes request tokens with this audience.
pub(super) fn allow_audience(audience: &str) -> String {
    let verbs = ["request-serviceaccounts-token-audience"];
    let rules = json!([{"apiGroups": [""], "resources": [audience], "verbs": verbs}]);
    let subject = json!({"apiGroup": RBAC, "kind": "Group", "name": "system:nodes"});
    grant("gce-metadata-proxy-audience", &rules, &subject)
}

/// Creates a cluster role and its binding, or changes both. The names match those of the manifests (`deploy/`).
fn grant(name: &str, rules: &Value, subject: &Value) -> String {
    let version = format!("{RBAC}/v1");
    let metadata = json!({"name": name});
    let role = json!({"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": rules});
    let reference = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": name});
    let binding = json!({
        "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata,
        "roleRef": reference, "subjects": [subject],
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]});
    format!("echo {} | kubectl apply -f -", quoted(&list.to_string()))
}

/// A subcommand of `gcloud iam workload-identity-pools providers` for a provider, such as `describe`.
pub(super) fn provider(verb: &str, provider: &Provider, flags: &[(&str, &str)]) -> String {
    let (id, pool, location, project) = (provider.id(), provider.pool(), provider.location(), provider.project());
    let group = "gcloud iam workload-identity-pools providers";
    let mut command =
        format!("{group} {verb} {id} --workload-identity-pool={pool} --location={location} --project={project}");
    for (flag, value) in flags {
        command.extend([" --", flag, "=", &quoted(value)]);
    }
    command
}

/// Uploads the cluster's current keys to a provider, so that it need not fetch them.
pub(super) fn upload_keys(to: &Provider) -> [String; 2] {
    let fetch = "kubectl get --raw /openid/v1/jwks > jwks.json".to_owned();
    [fetch, provider("update-oidc", to, &[("jwk-json-path", "jwks.json")])]
}

/// Grants a member this role on a Google account.
pub(super) fn bind(account: &GoogleAccount, member: &str, role: &str) -> String {
    let member = quoted(member);
    format!("gcloud iam service-accounts add-iam-policy-binding {account} --role={role} --member={member}")
}

/// Creates a Google account. `None` if its e-mail address does not name the project.
pub(super) fn create(account: &GoogleAccount) -> Option<String> {
    let (name, domain) = account.as_str().split_once('@')?;
    let project = domain.strip_suffix(".iam.gserviceaccount.com")?;
    // `PROJECT.DOMAIN` is the project `DOMAIN:PROJECT`.
    let project = match project.split_once('.') {
        Some((project, domain)) => format!("{domain}:{project}"),
        None => project.to_owned(),
    };
    Some(format!("gcloud iam service-accounts create {name} --project={project}"))
}

/// Runs a command on a node itself.
pub(super) fn on_node(node: &str, command: &str) -> String {
    format!(
        "kubectl debug node/{node} -it --profile=sysadmin --image=busybox -- chroot /host sh -c {}",
        quoted(command)
    )
}

/// Enables an API.
pub(super) fn enable(service: &str, consumer: &str) -> String {
    let project = consumer.strip_prefix("projects/").unwrap_or(consumer);
    let project = if project.is_empty() { String::new() } else { format!(" --project={}", quoted(project)) };
    format!("gcloud services enable {}{project}", quoted(service))
}

/// Quotes a text so that a shell reads it as one word.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@=,+".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (text, word) in
            [("a-b.c", "a-b.c"), ("", "''"), ("a b", "'a b'"), ("$(x)'", r"'$(x)'\'''"), ("p[a/b]", "'p[a/b]'")]
        {
            assert_eq!(quoted(text), word);
        }
    }

    #[test]
    fn the_project_of_an_account_is_in_its_e_mail() {
        let create = |email| create(&GoogleAccount::parse(email).expect("an e-mail"));
        let command = "gcloud iam service-accounts create app --project=";
        assert_eq!(create("app@shop.iam.gserviceaccount.com"), Some(format!("{command}shop")));
        assert_eq!(create("app@shop.example.com.iam.gserviceaccount.com"), Some(format!("{command}example.com:shop")));
        assert_eq!(create("shop@appspot.gserviceaccount.com"), None);
    }
}
