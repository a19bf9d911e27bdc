"""What the proxy may do on a node, one by one, and that each thing it may do has its reason beside it."""

import re
import unittest

import rendered

# What a pod on the node's network has, and what its containers have, beyond what every container has: exactly this.
POD = {"hostNetwork", "priorityClassName", "toleration of everything"}
PROXY = POD | {"runAsUser: 0", "NET_BIND_SERVICE"}
REDIRECT = POD | {"runAsUser: 0", "NET_ADMIN"}
IDENTITY = PROXY | {"the node's /proc", "a writable mount"}
ACCOUNT = IDENTITY | {"a token of its account"}
DOCTOR = {"hostNetwork", "toleration of everything", "runAsUser: 0", "the node's /proc", "a writable mount"}
# A pod like any other, on nodes with any taint. It evicts nobody.
CANARY = {"toleration of everything"}
KUBELET = IDENTITY | {"the node's /etc/kubernetes/kubelet.conf", "the node's /var/lib/kubelet/pki"}
PRIVILEGES = {
    ("base", "proxy"): PROXY,
    ("overlays/self-managed", "proxy"): PROXY,
    ("overlays/self-managed", "redirect"): REDIRECT,
    ("overlays/self-managed", "canary"): CANARY,
    ("overlays/gke-standard", "proxy"): PROXY,
    ("overlays/gke-standard", "redirect"): REDIRECT,
    ("overlays/gke-standard", "canary"): CANARY,
    ("overlays/cilium", "proxy"): {"priorityClassName", "toleration of everything"},
    ("overlays/cilium", "canary"): CANARY,
    ("overlays/demo", "proxy"): PROXY,
    ("overlays/demo", "redirect"): REDIRECT,
    ("overlays/demo", "canary"): CANARY,
    ("overlays/demo", "mock"): {"hostNetwork", "toleration of everything"},
    ("tests/everything", "proxy"): PROXY,
    ("tests/everything", "redirect"): REDIRECT,
    ("tests/own-policy", "proxy"): PROXY,
    ("tests/everything", "canary"): CANARY,
    ("overlays/identity", "proxy"): ACCOUNT,
    ("overlays/identity", "redirect"): REDIRECT,
    ("overlays/identity", "canary"): CANARY,
    ("tests/identity-own-node", "proxy"): ACCOUNT,
    ("tests/identity-own-node", "redirect"): REDIRECT,
    ("tests/identity-own-node", "canary"): CANARY,
    ("tests/identity-kubelet", "proxy"): KUBELET,
    ("tests/identity-kubelet", "redirect"): REDIRECT,
    ("tests/identity-kubelet", "canary"): CANARY,
    ("tests/identity-fenced", "proxy"): ACCOUNT,
    ("tests/identity-fenced", "redirect"): REDIRECT,
    ("tests/identity-fenced", "canary"): CANARY,
    ("overlays/identity-doctor", "doctor"): DOCTOR | {"a token of its account"},
    ("tests/identity-doctor-own-node", "doctor"): DOCTOR | {"a token of its account"},
    ("tests/identity-doctor-kubelet", "doctor"): DOCTOR | (KUBELET - IDENTITY),
    ("tests/identity-doctor-fenced", "doctor"): DOCTOR | {"a token of its account"},
    ("tests/startup-taint", "proxy"): PROXY,
    ("tests/startup-taint", "redirect"): REDIRECT | {"a token of its account"},
    ("tests/startup-taint", "canary"): CANARY,
    ("tests/removal", "proxy"): PROXY,
    ("tests/removal", "redirect-remove"): REDIRECT,
    ("sidecar/environment", "metadata-proxy"): set(),
    ("sidecar/redirect", "metadata-proxy"): set(),
    ("sidecar/redirect", "metadata-redirect"): {"runAsUser: 0", "NET_ADMIN"},
}

# What the API server allows, by the way to it: who may do what with what. Exactly this, and without identity nothing.
RIGHTS = {
    "own-node": {
        "gce-metadata-proxy: impersonate:associated-node nodes.authentication.k8s.io",
        "gce-metadata-proxy: impersonate-on:associated-node:list pods",
        "gce-metadata-proxy: impersonate-on:associated-node:watch pods",
        "gce-metadata-proxy: impersonate-on:associated-node:get serviceaccounts",
        "gce-metadata-proxy: impersonate-on:associated-node:create serviceaccounts/token",
        "system:nodes: request-serviceaccounts-token-audience AUDIENCE",
    },
    "kubelet": {"system:nodes: request-serviceaccounts-token-audience AUDIENCE"},
    "fenced": {
        "gce-metadata-proxy: list pods",
        "gce-metadata-proxy: watch pods",
        "gce-metadata-proxy: get serviceaccounts",
        # Of the whole cluster: never without the policy.
        "gce-metadata-proxy: create serviceaccounts/token",
    },
}

STARTUP_TAINT = "tests/startup-taint"

# The one in which tokens of nodes are short.
SHORT_TOKENS = "tests/identity-own-node"

# A line of a manifest, patch or template that gives one of them.
GIVES = re.compile(
    r"""^\s*(-\s+)?(value:\s+)?(
        hostNetwork:\s+true | hostPID:\s+true | hostIPC:\s+true | privileged:\s+true | hostPath: | hostPort:
        | runAsUser:\s+0 | allowPrivilegeEscalation:\s+true | readOnlyRootFilesystem:\s+false | type:\s+Unconfined
        | automountServiceAccountToken:\s+true | serviceAccountToken: | priorityClassName:.* | operator:\s+Exists
        | (NET|SYS|DAC|SET|CAP|IPC|MAC|AUDIT)_[A-Z_]+ | ALL
    )\s*$""",
    re.VERBOSE,
)


def privileges(pod, container):
    """All that a container has beyond the least: in its own words, or those of its pod."""
    own, pods = container.get("securityContext", {}), pod.get("securityContext", {})
    setting = pods | own
    had = {field for field in ("hostNetwork", "hostPID", "hostIPC", "priorityClassName") if pod.get(field)}
    had |= {"privileged"} if own.get("privileged") else set()
    had |= {"privilege escalation"} if own.get("allowPrivilegeEscalation", True) else set()
    had |= {"a writable root"} if not own.get("readOnlyRootFilesystem") else set()
    had |= {f"runAsUser: {setting.get('runAsUser', 'by the image')}"} if setting.get("runAsUser", 0) == 0 else set()
    had |= {"no seccomp profile"} if setting.get("seccompProfile") != {"type": "RuntimeDefault"} else set()
    capabilities = own.get("capabilities", {})
    had |= {"default capabilities"} if capabilities.get("drop") != ["ALL"] else set()
    had |= set(capabilities.get("add", []))
    had |= {"a port of the node's" for port in container.get("ports", []) if pod.get("hostNetwork") or "hostPort" in port}
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    had |= {what_is_in(volumes[mount["name"]]) for mount in container.get("volumeMounts", [])} - {None}
    had |= {"a writable mount" for mount in container.get("volumeMounts", []) if not mount.get("readOnly")}
    had |= {"toleration of everything" for toleration in pod.get("tolerations", []) if toleration == {"operator": "Exists"}}
    return had


def what_is_in(volume):
    """What a container gets to see with a volume. None if that is nothing but what is its own."""
    [kind] = volume.keys() - {"name"}
    if kind == "hostPath":
        return f"the node's {volume[kind]['path']}"
    if kind == "projected" and any("serviceAccountToken" in source for source in volume[kind]["sources"]):
        return "a token of its account"
    return None if kind in ("configMap", "emptyDir") else f"volume {kind}"


def rights(found, audience):
    """What the API server allows by these objects."""
    roles = {one["metadata"]["name"]: one["rules"] for one in found if one["kind"] == "ClusterRole"}
    given = set()
    for binding in (one for one in found if one["kind"] == "ClusterRoleBinding"):
        for subject in binding["subjects"]:
            for rule in roles.pop(binding["roleRef"]["name"]):
                [group], [resource] = rule["apiGroups"], rule["resources"]
                resource = "AUDIENCE" if resource == audience else f"{resource}.{group}".rstrip(".")
                given |= {f"{subject['name']}: {verb} {resource}" for verb in rule["verbs"]}
    assert not roles, f"bound to nobody: {roles}"
    return given


def installs():
    """All that can be rendered: where it comes from, and its objects."""
    found = {}
    for where, one in rendered.everything():
        found.setdefault(where, []).append(one)
    return found.items()


def proxy_of(found):
    """The pod of a DaemonSet among these objects, and its container `proxy`."""
    pod = rendered.daemonset(found)["spec"]["template"]["spec"]
    [proxy] = [one for one in pod["containers"] if one["name"] == "proxy"]
    return pod, proxy


class Privileges(unittest.TestCase):
    def test_every_container_has_these_and_no_more(self):
        seen = {}
        for where, pod, container in rendered.containers():
            # The chart's are compared with the overlays' objects as a whole.
            where = where.removeprefix("chart as ")
            with self.subTest(where, container=container["name"]):
                self.assertEqual(privileges(pod, container), PRIVILEGES[where, container["name"]])
                seen[where, container["name"]] = True
        self.assertEqual(set(seen), set(PRIVILEGES))

    def test_nobody_can_talk_to_the_api_server_by_default(self):
        for where, found in rendered.everything():
            with self.subTest(where, object=rendered.name_of(found)):
                self.assertNotEqual(found["kind"], "Secret")
                if where.removeprefix("chart as ") not in {*rendered.IDENTITY, STARTUP_TAINT}:
                    self.assertNotRegex(found["kind"], "Role|Admission")
                if found["kind"] == "ServiceAccount":
                    self.assertIs(found["automountServiceAccountToken"], False)
                if found["kind"] == "DaemonSet":
                    self.assertIs(found["spec"]["template"]["spec"]["automountServiceAccountToken"], False)

    def test_identity_has_these_rights_and_no_more(self):
        seen = set()
        for where, found in installs():
            way = rendered.IDENTITY.get(where.removeprefix("chart as "))
            if not way:
                continue
            seen.add(way)
            with self.subTest(where):
                audience = audience_of(found)
                self.assertTrue(audience)
                self.assertEqual(rights(found, audience), RIGHTS[way])
                is_judged = way == "fenced" or where.removeprefix("chart as ") == SHORT_TOKENS
                self.assertEqual("ValidatingAdmissionPolicy" in {one["kind"] for one in found}, is_judged)
        self.assertEqual(seen, set(RIGHTS))

    def test_the_startup_taint_has_these_rights_and_a_fence(self):
        """The policy is about this account, and about the taint that the container removes."""
        seen = 0
        for where, found in installs():
            if where.removeprefix("chart as ") != STARTUP_TAINT:
                continue
            seen += 1
            with self.subTest(where):
                of = {one["kind"]: one for one in found}
                self.assertEqual(rights(found, None), {"gce-metadata-proxy: get nodes", "gce-metadata-proxy: patch nodes"})
                policy, binding = of["ValidatingAdmissionPolicy"], of["ValidatingAdmissionPolicyBinding"]
                self.assertEqual(policy["spec"]["failurePolicy"], "Fail")
                [account] = of["ClusterRoleBinding"]["subjects"]
                user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
                [condition] = policy["spec"]["matchConditions"]
                self.assertEqual(condition["expression"], f"request.userInfo.username == '{user}'")
                self.assertEqual(binding["spec"], {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]})
                pod, _ = proxy_of(found)
                [redirect] = [one for one in pod["containers"] if one["name"] == "redirect"]
                [taint] = [one["value"] for one in redirect["env"] if one["name"] == "METADATA_PROXY_STARTUP_TAINT"]
                judged = [validation["expression"] for validation in policy["spec"]["validations"]]
                self.assertEqual(sum(f"taint.key == '{taint}'" in expression for expression in judged), 1)
        self.assertEqual(seen, 2)

    def test_rights_of_the_whole_cluster_are_fenced(self):
        """The policy is about this account and this audience, and refuses what it cannot judge."""
        fenced = [(where, found) for where, found in installs() if rendered.IDENTITY.get(where.removeprefix("chart as ")) == "fenced"]
        self.assertEqual(len(fenced), 2)
        for where, found in fenced:
            of = {one["kind"]: one for one in found}
            [account] = of["ClusterRoleBinding"]["subjects"]
            policy, binding = of["ValidatingAdmissionPolicy"], of["ValidatingAdmissionPolicyBinding"]
            with self.subTest(where):
                self.assertEqual(policy["spec"]["failurePolicy"], "Fail")
                [condition] = policy["spec"]["matchConditions"]
                user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
                self.assertEqual(condition["expression"], f"request.userInfo.username == '{user}'")
                judged = [validation["expression"] for validation in policy["spec"]["validations"]]
                self.assertIn(f"object.spec.audiences == ['{audience_of(found)}']", judged)
                self.assertEqual(binding["spec"], {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]})

    def test_tokens_of_nodes_are_short_where_that_is_chosen(self):
        """The policy is about nodes and this audience alone: all other tokens of a cluster are not its business."""
        short = [(where, found) for where, found in installs() if where.removeprefix("chart as ") == SHORT_TOKENS]
        self.assertEqual(len(short), 2)
        for where, found in short:
            of = {one["kind"]: one for one in found}
            policy, binding = of["ValidatingAdmissionPolicy"], of["ValidatingAdmissionPolicyBinding"]
            with self.subTest(where):
                self.assertEqual(policy["spec"]["failurePolicy"], "Fail")
                audience = audience_of(found)
                conditions = [condition["expression"] for condition in policy["spec"]["matchConditions"]]
                self.assertEqual(
                    conditions,
                    [
                        "request.userInfo.username.startsWith('system:node:')",
                        f"'{audience}' in object.spec.?audiences.orValue([])",
                    ],
                )
                self.assertIn(f" {audience} ", policy["spec"]["validations"][0]["message"])
                self.assertEqual(binding["spec"], {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]})

    def test_the_doctor_has_what_the_proxy_has(self):
        """Else it would find what the proxy does not have, or not find what it has."""
        for doctor, of in rendered.DOCTORS.items():
            with self.subTest(doctor):
                [job] = rendered.kustomize(doctor)
                self.assertEqual(job["kind"], "Job")
                pod = job["spec"]["template"]["spec"]
                [container] = pod["containers"]
                its, proxy = proxy_of(rendered.kustomize(of))
                for field in ("image", "env", "volumeMounts"):
                    self.assertEqual(container[field], proxy[field], field)
                for field in ("serviceAccountName", "hostNetwork", "dnsPolicy"):
                    self.assertEqual(pod[field], its[field], field)
                mounted = {mount["name"] for mount in proxy["volumeMounts"]}
                self.assertEqual(pod["volumes"], [volume for volume in its["volumes"] if volume["name"] in mounted])
                self.assertEqual(job["metadata"]["namespace"], "kube-system")
                # A DaemonSet adopts pods that it selects.
                self.assertNotEqual(job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"], "gce-metadata-proxy")

    def test_of_the_nodes_proc_nothing_can_be_written(self):
        """A read-only mount has writable ones in it unless something is mounted over them."""
        seen = 0
        for where, found in installs():
            if where.removeprefix("chart as ") not in rendered.IDENTITY:
                continue
            seen += 1
            pod, proxy = proxy_of(found)
            with self.subTest(where):
                volumes = {volume["name"]: volume for volume in pod["volumes"]}
                paths = [mount["mountPath"] for mount in proxy["volumeMounts"]]
                self.assertLess(paths.index("/host/proc"), paths.index("/host/proc/sys"))
                over = proxy["volumeMounts"][paths.index("/host/proc/sys")]
                self.assertEqual(volumes[over["name"]]["emptyDir"], {})
                beside = [mount for one in pod["containers"] if one["name"] != "proxy" for mount in one.get("volumeMounts", [])]
                self.assertEqual(beside, [])
        self.assertEqual(seen, 2 * len(rendered.IDENTITY) - len(rendered.UNEDITED & set(rendered.IDENTITY)))

    def test_no_sysctl_of_the_node_can_be_written(self):
        seen = 0
        for where, found in installs():
            for pod in (one["spec"]["template"]["spec"] for one in found if one["kind"] == "DaemonSet"):
                seen += 1
                with self.subTest(where):
                    paths = [str(volume.get("hostPath")) for volume in pod.get("volumes", [])]
                    self.assertEqual([path for path in paths if "/proc/sys" in path], [])
        self.assertGreater(seen, 0)

    def test_a_token_of_the_account_is_not_made_valid_for_a_year(self):
        seen = 0
        for where, found in installs():
            folder = where.removeprefix("chart as ")
            if folder != STARTUP_TAINT and rendered.IDENTITY.get(folder, "kubelet") == "kubelet":
                continue
            pod, _ = proxy_of(found)
            projected = [volume["projected"] for volume in pod["volumes"] if "projected" in volume]
            [token] = [source["serviceAccountToken"] for one in projected for source in one["sources"] if "serviceAccountToken" in source]
            with self.subTest(where):
                seen += 1
                self.assertEqual(token, {"path": "token", "expirationSeconds": 3600})
        self.assertGreater(seen, 0)

    def test_every_container_is_bounded(self):
        for where, _, container in rendered.containers():
            with self.subTest(where, container=container["name"]):
                least = most = {"cpu": "30m", "memory": "25Mi"}
                if "--workload-identity" in container["args"] or container["name"] == "doctor":
                    least = most = {"cpu": "100m", "memory": "32Mi"}
                elif container["name"] == "proxy":
                    most = {"cpu": "100m", "memory": "25Mi"}
                if container["name"] == "canary":
                    least = most = {"cpu": "10m", "memory": "16Mi"}
                self.assertEqual(container["resources"], {"requests": least, "limits": most})

    def test_a_rolling_update_starts_the_new_pod_first(self):
        for where, found in rendered.everything():
            if found["kind"] != "DaemonSet" or found["metadata"]["name"] != "gce-metadata-proxy":
                continue
            with self.subTest(where):
                self.assertEqual(
                    found["spec"]["updateStrategy"],
                    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}},
                )
                # The new process is degraded, and so ready, after 10 s at the latest.
                self.assertGreater(found["spec"]["minReadySeconds"], 10)
                pod = found["spec"]["template"]["spec"]
                if not pod["hostNetwork"]:
                    continue
                self.assertIn("--reuse-port", pod["containers"][0]["args"])
                # The scheduler keeps two pods with the same port of the node's apart.
                self.assertNotIn("ports", pod["containers"][0])
                self.assertEqual(pod["containers"][0]["securityContext"]["runAsUser"], 0, "sockets are shared by user")

    def test_probes_do_not_kill_it_for_a_metadata_server_that_is_away(self):
        probed = 0
        for where, _, container in rendered.containers():
            if not container["image"].startswith("gce-metadata-proxy:") or container["name"] in ("doctor", "canary"):
                continue
            with self.subTest(where):
                probed += 1
                alive = container["livenessProbe"]
                self.assertEqual(alive["httpGet"]["path"], "/healthz")
                self.assertGreaterEqual(alive["failureThreshold"] * alive["periodSeconds"], 60)
                ready = container.get("readinessProbe") or container.get("startupProbe")
                self.assertEqual(ready["httpGet"]["path"], "/readyz")
        self.assertGreater(probed, 0)

    def test_the_canary_is_where_the_proxy_is_and_a_pod_like_any_other(self):
        seen = 0
        for where, found in installs():
            pods = {one["metadata"]["name"]: one["spec"]["template"] for one in found if one["kind"] == "DaemonSet"}
            if "gce-metadata-proxy-canary" not in pods:
                continue
            seen += 1
            proxy, canary = pods["gce-metadata-proxy"]["spec"], pods["gce-metadata-proxy-canary"]["spec"]
            with self.subTest(where):
                for field in ("tolerations", "nodeSelector", "affinity"):
                    self.assertEqual(canary.get(field), proxy.get(field), field)
                # Not the account that the proxy's rights are bound to, nor the proxy's DNS.
                self.assertLessEqual({"serviceAccountName", "dnsPolicy", "volumes"} & canary.keys(), set())
                self.assertIs(canary["securityContext"]["runAsNonRoot"], True)
                # Of each answer the kubelet makes an event: the process itself knows which failures to wait out.
                [container] = canary["containers"]
                self.assertEqual(container["readinessProbe"]["failureThreshold"], 1)
        self.assertGreater(seen, 0)

    def test_every_privilege_has_its_sentence(self):
        given = 0
        for path in sorted([*rendered.DEPLOY.rglob("*.yaml"), *rendered.DEPLOY.rglob("*.tpl")]):
            lines = path.read_text().splitlines()
            for number, line in enumerate(lines):
                dropped = lines[number - 1].strip() == "drop:"
                if GIVES.match(line) and not dropped:
                    given += 1
                    with self.subTest(f"{path.relative_to(rendered.DEPLOY)}:{number + 1}", line=line.strip()):
                        self.assertTrue(explained(lines, number), "no comment above it says why")
        self.assertGreater(given, 10)


def audience_of(found):
    """The audience that the proxy asks for."""
    _, proxy = proxy_of(found)
    [audience] = [one["value"] for one in proxy["env"] if one["name"] == "METADATA_PROXY_TOKEN_AUDIENCE"]
    return audience


def explained(lines, number):
    """Whether the nearest line above that is not the list item's own beginning is a comment that ends a sentence."""
    above = number - 1
    while re.match(r"\s*(- op: add|path: |- key: )", lines[above]):
        above -= 1
    return bool(re.match(r"\s*#.*\.$", lines[above]))


if __name__ == "__main__":
    unittest.main()
