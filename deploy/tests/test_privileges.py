"""What the proxy may do on a node, one by one, and that each thing it may do has its reason beside it."""

import re
import unittest

import rendered

# What a pod on the node's network has, and what its containers have, beyond what every container has: exactly this.
POD = {"hostNetwork", "priorityClassName", "toleration of everything"}
PROXY = POD | {"runAsUser: 0", "NET_BIND_SERVICE"}
REDIRECT = POD | {"runAsUser: 0", "NET_ADMIN"}
PRIVILEGED = POD | {"runAsUser: 0", "privileged", "privilege escalation", "default capabilities"}
PRIVILEGES = {
    ("base", "proxy"): PROXY,
    ("overlays/self-managed", "proxy"): PROXY,
    ("overlays/self-managed", "redirect"): REDIRECT,
    ("overlays/gke-standard", "proxy"): PROXY,
    ("overlays/gke-standard", "redirect"): REDIRECT,
    ("tests/everything", "proxy"): PROXY,
    ("tests/everything", "redirect"): REDIRECT,
    ("tests/everything", "route-localnet"): PRIVILEGED,
    ("tests/removal", "proxy"): PROXY,
    ("tests/removal", "redirect-remove"): PRIVILEGED,
    ("sidecar/environment", "metadata-proxy"): set(),
    ("sidecar/redirect", "metadata-proxy"): set(),
    ("sidecar/redirect", "metadata-redirect"): {"runAsUser: 0", "NET_ADMIN"},
}

# A line of a manifest, patch or template that gives one of them.
GIVES = re.compile(
    r"""^\s*(-\s+)?(value:\s+)?(
        hostNetwork:\s+true | hostPID:\s+true | hostIPC:\s+true | privileged:\s+true | hostPath: | hostPort:
        | runAsUser:\s+0 | allowPrivilegeEscalation:\s+true | readOnlyRootFilesystem:\s+false | type:\s+Unconfined
        | automountServiceAccountToken:\s+true | priorityClassName:.* | operator:\s+Exists
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
    had |= {"a port of the node's" for port in container.get("ports", [])}
    had |= {f"volume {kind}" for volume in pod.get("volumes", []) for kind in volume if kind not in ("name", "configMap")}
    had |= {"a writable mount" for mount in container.get("volumeMounts", []) if not mount.get("readOnly")}
    had |= {"toleration of everything" for toleration in pod.get("tolerations", []) if toleration == {"operator": "Exists"}}
    return had


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

    def test_nothing_can_talk_to_the_api_server(self):
        for where, found in rendered.everything():
            with self.subTest(where, object=rendered.name_of(found)):
                self.assertNotRegex(found["kind"], "Role|Secret")
                if found["kind"] == "ServiceAccount":
                    self.assertIs(found["automountServiceAccountToken"], False)
                if found["kind"] == "DaemonSet":
                    self.assertIs(found["spec"]["template"]["spec"]["automountServiceAccountToken"], False)

    def test_every_container_is_bounded_and_guaranteed(self):
        for where, _, container in rendered.containers():
            with self.subTest(where, container=container["name"]):
                bound = {"cpu": "30m", "memory": "25Mi"}
                self.assertEqual(container["resources"], {"requests": bound, "limits": bound})

    def test_a_rolling_update_starts_the_new_pod_first(self):
        for where, found in rendered.everything():
            if found["kind"] != "DaemonSet":
                continue
            with self.subTest(where):
                self.assertEqual(
                    found["spec"]["updateStrategy"],
                    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}},
                )
                # The new process is degraded, and so ready, after 10 s at the latest.
                self.assertGreater(found["spec"]["minReadySeconds"], 10)
                pod = found["spec"]["template"]["spec"]
                self.assertIn("--reuse-port", pod["containers"][0]["args"])
                # The scheduler keeps two pods with the same port of the node's apart.
                self.assertNotIn("ports", pod["containers"][0])
                self.assertEqual(pod["containers"][0]["securityContext"]["runAsUser"], 0, "sockets are shared by user")

    def test_probes_do_not_kill_it_for_a_metadata_server_that_is_away(self):
        probed = 0
        for where, _, container in rendered.containers():
            if not container["image"].startswith("gce-metadata-proxy:"):
                continue
            with self.subTest(where):
                probed += 1
                alive = container["livenessProbe"]
                self.assertEqual(alive["httpGet"]["path"], "/healthz")
                self.assertGreaterEqual(alive["failureThreshold"] * alive["periodSeconds"], 60)
                ready = container.get("readinessProbe") or container.get("startupProbe")
                self.assertEqual(ready["httpGet"]["path"], "/readyz")
        self.assertGreater(probed, 0)

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


def explained(lines, number):
    """Whether the nearest line above that is not the list item's own beginning is a comment that ends a sentence."""
    above = number - 1
    while re.match(r"\s*(- op: add|path: |- key: )", lines[above]):
        above -= 1
    return bool(re.match(r"\s*#.*\.$", lines[above]))


if __name__ == "__main__":
    unittest.main()
