"""The chart renders what the overlays render, and more with values of its own."""

import difflib
import json
import os
import shutil
import tempfile
import unittest
from copy import deepcopy
from pathlib import Path

import yaml

import rendered

# What Helm's users expect on every object, and Kustomize's do not.
HELMS = [
    "helm.sh/chart", "helm.sh/resource-policy",
    "app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "app.kubernetes.io/version",
]  # fmt: skip


class Chart(unittest.TestCase):
    def test_it_renders_the_same_objects_as_kustomize(self):
        for folder, arguments in rendered.CHARTS.items():
            ours = {rendered.name_of(found): found for found in rendered.kustomize(folder)}
            charts = {rendered.name_of(found): found for found in rendered.helm(*arguments)}
            with self.subTest(folder):
                self.assertEqual(sorted(ours), sorted(charts))
            for name in ours:
                with self.subTest(folder, object=name):
                    self.assertEqual(difference(ours[name], without_helms_labels(charts[name])), "")

    def test_it_takes_more_values(self):
        tag = f"v1@sha256:{'0' * 64}"
        pod = self.pod(
            "--set", f"image.repository=r.example/p,image.tag={tag}", "--set", "image.pullSecrets[0].name=s",
            "--set", "extraArgs={--max-in-flight=400}", "--set", "resources.limits.cpu=null",
        )  # fmt: skip
        self.assertEqual(pod["containers"][0]["image"], f"r.example/p:{tag}")
        self.assertEqual(pod["imagePullSecrets"], [{"name": "s"}])
        self.assertEqual(pod["containers"][0]["args"][-1], "--max-in-flight=400")
        self.assertNotIn("cpu", pod["containers"][0]["resources"]["limits"])

    def test_another_format_of_the_log_replaces_the_charts(self):
        for given, wanted in [
            ("extraArgs={--max-in-flight=400,--log-format=text}", "text"),
            ("extraArgs={--max-in-flight=400}", "json"),
        ]:
            formats = {
                container["name"]: all_of(container["args"], "--log-format")
                for of in ("gce-metadata-proxy", "gce-metadata-proxy-canary")
                for container in self.pod("--set", given, of=of)["containers"]
            }
            with self.subTest(given):
                self.assertEqual(formats, {name: [wanted] for name in ("proxy", "redirect", "canary")})
                [removing] = self.pod("--set", given, *rendered.CHARTS["tests/removal"])["initContainers"]
                self.assertEqual(all_of(removing["args"], "--log-format"), [wanted])

    def test_a_network_policy_lets_pods_reach_pods_where_an_ip_block_matches_none(self):
        policies = [
            *rendered.kustomize("tests/everything"),
            *rendered.helm("--set", "networkPolicy.namespaces={shop,default}"),
        ]
        policies = [one for one in policies if one["kind"] == "NetworkPolicy"]
        self.assertEqual(len(policies), 3)
        for policy in policies:
            self.assertEqual(policy["spec"]["egress"][0], {"to": [{"namespaceSelector": {}}]})

    def test_a_pod_may_take_as_long_as_the_drain(self):
        variable = "env[0].name=METADATA_PROXY_DRAIN_TIMEOUT,env[0].value"
        for given, seconds in [
            ("port=988", 30),
            ("extraArgs={--drain-timeout=20s}", 30),
            ("extraArgs={--drain-timeout=26s}", 31),
            ("extraArgs={--drain-timeout=2m}", 125),
            ("extraArgs={--drain-timeout=60000ms}", 65),
            (f"{variable}=1m", 65),
            (f"{variable}=1m,extraArgs={{--drain-timeout=40s}}", 45),
        ]:
            with self.subTest(given):
                self.assertEqual(self.pod("--set", given)["terminationGracePeriodSeconds"], seconds)

    def test_the_canary_goes_where_the_proxy_goes(self):
        where = ["--set", "nodeSelector.try=this", "--set", "image.pullSecrets[0].name=s"]
        canary, proxy = self.pod(*where, of="gce-metadata-proxy-canary"), self.pod(*where)
        for field in ("affinity", "nodeSelector", "tolerations", "imagePullSecrets"):
            self.assertEqual(canary[field], proxy[field], field)

    def test_node_pools_with_googles_own_server_are_left_alone(self):
        keys = ["iam.gke.io/gke-metadata-server-enabled", "cloud.google.com/gke-nodepool"]
        left_alone = [{"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]} for key in keys]
        seen = set()
        for where, found in rendered.everything():
            name = found["metadata"]["name"]
            if found["kind"] != "DaemonSet" or name == "gce-metadata-mock":
                continue
            seen.add(name)
            with self.subTest(where, of=name):
                affinity = found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
                terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
                self.assertEqual(terms, left_alone)
        self.assertEqual(seen, {"gce-metadata-proxy", "gce-metadata-proxy-canary"})
        self.assertNotIn("affinity", self.pod("--set", "affinity=null"))

    def test_the_proxy_may_have_other_addresses(self):
        pod = self.pod("--set", "redirect.addresses={169.254.169.253,fd20:ce::253}")
        proxy, redirect = pod["containers"]
        to = ["169.254.169.253:988", "[fd20:ce::253]:988"]
        self.assertEqual(all_of(proxy["args"], "--addr"), [*to, "127.0.0.1:988"])
        # Not arguments: `redirect check` by hand in the container must know them, too.
        self.assertEqual(values_of(redirect), {"METADATA_PROXY_REDIRECT_TO": ",".join(to)})

    def test_what_is_run_in_a_container_finds_its_process(self):
        others = 0
        for where, _, container in rendered.containers():
            args = container["args"]
            served = [one.removeprefix("--metrics-addr=") for one in args if one.startswith("--metrics-addr=")]
            if args[0] in ("redirect", "mock") or not served:
                continue
            port = served[0].rsplit(":", 1)[1]
            if port != "989":
                others += 1
                with self.subTest(where):
                    self.assertEqual(values_of(container).get("METADATA_PROXY_METRICS_ADDR"), f"127.0.0.1:{port}")
        self.assertGreater(others, 0)

    def test_selinux_lets_only_those_use_proc_that_do(self):
        values = ["--values", rendered.TESTS / "identity-kubelet" / "values.yaml", "--set", "seLinuxType=spc_t"]
        for more, wanted in [
            (values, {"proxy"}),
            ([*values, "--set", "identity.enabled=false,identity.workloadPool=null,identity.clusterUri=null"], set()),
            ([*values, "--set", "redirect.enabled=false,redirect.remove=true,canary.enabled=false"], {"proxy"}),
            (["--set", "seLinuxType="], set()),
        ]:
            with self.subTest(more):
                pod = self.pod(*more)
                containers = pod["containers"] + pod.get("initContainers", [])
                options = {one["name"]: one["securityContext"].get("seLinuxOptions") for one in containers}
                self.assertEqual({name: {"type": "spc_t"} for name in wanted}, {k: v for k, v in options.items() if v})
        [doctor] = [one for one in rendered.helm(*values, "--set", "identity.doctor.node=n") if one["kind"] == "Job"]
        [container] = doctor["spec"]["template"]["spec"]["containers"]
        self.assertEqual(container["securityContext"]["seLinuxOptions"], {"type": "spc_t"})

    def test_a_proxy_with_identity_hands_over_to_the_next(self):
        for folder in ("overlays/identity", "tests/identity-own-node", "tests/identity-kubelet", "tests/identity-fenced"):
            env = {entry["name"]: entry for entry in rendered.container(folder, "proxy")["env"]}
            path = env["METADATA_PROXY_HANDOVER"]["valueFrom"]["fieldRef"]["fieldPath"]
            self.assertEqual(path, "metadata.uid", folder)

    def test_what_the_redirect_lets_pass_is_known_to_all_who_check_it(self):
        for given, redirects, canarys in [
            ([], {}, {}),
            (
                ["--set", "redirect.allow={443,ipv6}", "--set", "redirect.dropSpoofed=true"],
                {"METADATA_PROXY_REDIRECT_ALLOW": "443,ipv6", "METADATA_PROXY_REDIRECT_DROP_SPOOFED": "true"},
                {"METADATA_PROXY_REDIRECT_ALLOW": "443,ipv6"},
            ),
            # Helm takes `false` for nothing where a template is not careful.
            (["--set", "redirect.dropSpoofed=false"], {"METADATA_PROXY_REDIRECT_DROP_SPOOFED": "false"}, {}),
            (["--set", "redirect.dropSpoofed=true"], {"METADATA_PROXY_REDIRECT_DROP_SPOOFED": "true"}, {}),
            (["--set", "redirect.dropSpoofed=auto"], {}, {}),
            (["--set", "redirect.tool=iptables"], {"METADATA_PROXY_REDIRECT_TOOL": "iptables"}, {}),
            (["--set", "redirect.uplinks={eth0,eth1}"], {"METADATA_PROXY_REDIRECT_UPLINK": "eth0,eth1"}, {}),
            (
                ["--set", "redirect.maxNewConnections=0"],
                {"METADATA_PROXY_REDIRECT_MAX_NEW_CONNECTIONS": "0"},
                {},
            ),
            (
                ["--set", "redirect.maxNewConnections=100000"],
                {"METADATA_PROXY_REDIRECT_MAX_NEW_CONNECTIONS": "100000"},
                {},
            ),
        ]:
            with self.subTest(given):
                containers = {one["name"]: one for one in self.pod(*given)["containers"]}
                [canary] = self.pod(*given, of="gce-metadata-proxy-canary")["containers"]
                self.assertEqual(values_of(containers["redirect"]), redirects)
                self.assertEqual(values_of(canary), {"METADATA_PROXY_METRICS_ADDR": "127.0.0.1:8989"} | canarys)
                # It would not know the environment of another container.
                self.assertNotIn("env", containers["proxy"])

    def test_the_redirect_has_an_open_port_only_if_asked(self):
        for given, wanted in [([], []), (["--set", "redirect.metricsAddr=0.0.0.0:1990"], ["--keeper-metrics-addr=0.0.0.0:1990"])]:
            containers = {one["name"]: one for one in self.pod(*given)["containers"]}
            self.assertEqual([one for one in containers["redirect"]["args"] if "metrics" in one], wanted)
        scraped = rendered.helm(
            "--set", "redirect.metricsAddr=0.0.0.0:1990", "--set", "podMonitor.enabled=true"
        )
        [monitor] = [
            one for one in scraped if one["kind"] == "PodMonitor" and one["metadata"]["name"] == "gce-metadata-proxy"
        ]
        addresses = [
            rule["replacement"]
            for endpoint in monitor["spec"]["podMetricsEndpoints"]
            for rule in endpoint["relabelings"]
            if rule.get("targetLabel") == "__address__"
        ]
        self.assertEqual(addresses, ["$1:989", "[$1]:989", "$1:1990", "[$1]:1990"])

    def test_each_endpoint_has_the_metric_relabelings_that_are_given(self):
        drop = {"sourceLabels": ["__name__"], "action": "drop", "regex": ".+_first_byte_seconds_bucket"}
        scraped = ["--set", "redirect.metricsAddr=0.0.0.0:1990,podMonitor.enabled=true"]
        for given, wanted in [([], [None] * 3), (["--set-json", f"podMonitor.metricRelabelings={json.dumps([drop])}"], [[drop]] * 3)]:
            monitors = [one for one in rendered.helm(*scraped, *given) if one["kind"] == "PodMonitor"]
            endpoints = [endpoint for monitor in monitors for endpoint in monitor["spec"]["podMetricsEndpoints"]]
            self.assertEqual([endpoint.get("metricRelabelings") for endpoint in endpoints], wanted)

    def test_its_alerts_are_those_of_kustomize(self):
        own = "labels.release=monitoring,prometheusRule.runbookUrl=https://git.example/README.md"
        [shipped] = [one for one in rendered.kustomize("observability") if one["kind"] == "PrometheusRule"]
        for given, where, labels in [
            ("prometheusRule.enabled=true", "deploy/observability/README.md", {}),
            (f"prometheusRule.enabled=true,prometheusRule.{own}", "https://git.example/README.md", {"release": "monitoring"}),
        ]:
            [rule] = [one for one in rendered.helm("--set", given) if one["kind"] == "PrometheusRule"]
            with self.subTest(given):
                self.assertEqual(without_helms_labels(rule["metadata"]["labels"]), shipped["metadata"]["labels"] | labels)
                for ours, charts in zip(alerts(shipped), alerts(rule), strict=True):
                    link = ours["annotations"]["runbook_url"].split("#")[1]
                    self.assertEqual(charts["annotations"]["runbook_url"], f"{where}#{link}")
                    # Kustomize folds lines otherwise.
                    self.assertEqual(charts["expr"].split(), ours["expr"].split())

    def test_what_a_site_needs_reaches_the_proxy_and_its_doctor(self):
        values = [
            "--set", "env[0].name=HTTPS_PROXY,env[0].value=http://proxy.example:3128",
            "--set", "volumes[0].name=ca,volumes[0].configMap.name=ca,volumeMounts[0].name=ca,volumeMounts[0].mountPath=/ca",
        ]  # fmt: skip
        identity = ["--values", rendered.TESTS / "identity-kubelet" / "values.yaml"]
        for more in ([], identity):
            pod = self.pod(*values, *more)
            with self.subTest(more):
                self.assert_has_these(pod, pod["containers"][0])
                [redirect] = [one for one in pod["containers"] if one["name"] == "redirect"]
                self.assertNotIn("HTTPS_PROXY", values_of(redirect))
        [doctor] = [one for one in rendered.helm(*values, *identity, "--set", "identity.doctor.node=n") if one["kind"] == "Job"]
        pod = doctor["spec"]["template"]["spec"]
        self.assert_has_these(pod, pod["containers"][0])

    def assert_has_these(self, pod, container):
        self.assertEqual(values_of(container)["HTTPS_PROXY"], "http://proxy.example:3128")
        self.assertIn({"name": "ca", "configMap": {"name": "ca"}}, pod["volumes"])
        self.assertIn({"name": "ca", "mountPath": "/ca"}, container["volumeMounts"])

    def test_proxy_and_canary_are_placed_as_the_values_say(self):
        given = [
            "--set", "priorityClassName=ours,canary.priorityClassName=its,tolerations[0].key=a,tolerations[0].operator=Exists",
            "--set", "podAnnotations.ours=yes", "--set", "redirect.resources.limits.cpu=60m,canary.resources.limits.cpu=20m",
        ]  # fmt: skip
        limits = {}
        for name, priority in [("gce-metadata-proxy", "ours"), ("gce-metadata-proxy-canary", "its")]:
            template = rendered.daemonset(rendered.helm(*given), name)["spec"]["template"]
            with self.subTest(name):
                self.assertEqual(template["metadata"]["annotations"]["ours"], "yes")
                self.assertEqual(template["spec"]["priorityClassName"], priority)
                self.assertEqual(template["spec"]["tolerations"], [{"key": "a", "operator": "Exists"}])
            limits |= {one["name"]: one["resources"]["limits"]["cpu"] for one in template["spec"]["containers"]}
        self.assertEqual(limits, {"proxy": "100m", "redirect": "60m", "canary": "20m"})
        none = self.pod("--set", "priorityClassName=,tolerations=null")
        self.assertFalse({"priorityClassName", "tolerations"} & set(none))

    def test_an_update_begins_on_as_many_nodes_as_the_values_say(self):
        for given, wanted in [([], "10%"), (["--set", "maxSurge=1"], 1), (["--set", "maxSurge=100%"], "100%")]:
            with self.subTest(given):
                strategy = rendered.daemonset(rendered.helm(*given))["spec"]["updateStrategy"]
                self.assertEqual(strategy["rollingUpdate"], {"maxSurge": wanted, "maxUnavailable": 0})

    def test_another_port_is_known_to_all_who_need_it(self):
        ports = "port=888,metricsPort=1989,canary.metricsPort=9999,podMonitor.enabled=true,redirect.startupTaint=t"
        given = ["--set", ports, "--kube-version", "1.30.0"]
        containers = {one["name"]: one for one in self.pod(*given)["containers"]}
        [canary] = self.pod(*given, of="gce-metadata-proxy-canary")["containers"]
        proxy, redirect = containers["proxy"], containers["redirect"]
        to = ["169.254.169.252:888", "[fd20:ce::252]:888"]
        self.assertEqual(all_of(proxy["args"], "--addr"), [*to, "127.0.0.1:888"])
        self.assertIn("--metrics-addr=0.0.0.0:1989", proxy["args"])
        for probe in ("livenessProbe", "readinessProbe"):
            self.assertEqual(proxy[probe]["httpGet"]["port"], 1989)
        self.assertEqual(values_of(redirect)["METADATA_PROXY_REDIRECT_TO"], ",".join(to))
        # What is run in the container asks there, and the redirect whether it may take the taint away.
        for container in (proxy, redirect):
            self.assertEqual(values_of(container)["METADATA_PROXY_METRICS_ADDR"], "127.0.0.1:1989")
        self.assertIn("--metrics-addr=0.0.0.0:9999", canary["args"])
        self.assertEqual(canary["readinessProbe"]["exec"]["command"][1:], ["check", "--last"])
        self.assertEqual(values_of(canary)["METADATA_PROXY_METRICS_ADDR"], "127.0.0.1:9999")
        monitors = [one for one in rendered.helm(*given) if one["kind"] == "PodMonitor"]
        scraped = [
            rule["replacement"]
            for monitor in monitors
            for endpoint in monitor["spec"]["podMetricsEndpoints"]
            for rule in endpoint["relabelings"]
            if "replacement" in rule
        ]
        self.assertEqual(scraped, ["$1:1989", "[$1]:1989", "$1:9999", "[$1]:9999"])

    def test_where_nodes_have_ipv6_only_all_addresses_are_its(self):
        given = ["--set", "podMonitor.enabled=true,podMonitor.address=[::]"]
        for of, port in [("gce-metadata-proxy", 989), ("gce-metadata-proxy-canary", 8989)]:
            args = self.pod(*given, of=of)["containers"][0]["args"]
            self.assertEqual(all_of(args, "--metrics-addr"), [f"[::]:{port}"])

    def test_its_notes_say_how_to_check_and_how_to_remove(self):
        first, second = "--set redirect.enabled=false,redirect.startupTaint=,canary.enabled=false", "--set redirect.remove=true"
        at_boot = "systemctl disable gce-metadata-redirect.service"
        for given, wanted in [
            ("canary.enabled=true", ["get daemonset/gce-metadata-proxy-canary", "BEFORE helm uninstall", at_boot, first, second]),
            ("redirect.enabled=false", ["need the proxy", at_boot, second]),
            ("redirect.enabled=false,canary.enabled=false,redirect.remove=true", ["helm uninstall removes the rest"]),
            ("identity.enabled=true,identity.workloadIdentityProvider=none", ["identity doctor", "new pods then get 503"]),
            ("podMonitor.enabled=true", ["MetadataProxyRedirectFlushed", "--set redirect.metricsAddr=0.0.0.0:1990", "BEFORE helm uninstall"]),
            ("image.repository=r.example/p,image.tag=v1", ["--image=r.example/p:v1 ", '"nodeName": "NODE"', "-c proxy -- /gce-metadata-proxy status"]),
        ]:
            text = notes(given)
            with self.subTest(given):
                for part in ["-n metadata rollout status daemonset/gce-metadata-proxy", *wanted]:
                    self.assertIn(part, text)
                # The order is that of the text.
                self.assertEqual(sorted(wanted, key=text.index), wanted)

    def test_an_uninstall_leaves_what_pods_would_be_cut_off_without(self):
        own = ["--values", rendered.TESTS / "everything" / "values.yaml"]
        removed = ["--set", "redirect.enabled=false,canary.enabled=false"]
        taint = ["--values", rendered.TESTS / "startup-taint" / "values.yaml", "--kube-version", "1.30.0"]
        # The right, and what bounds it.
        kinds = ["ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
        of_taint = [f"{kind} gce-metadata-proxy-startup-taint" for kind in kinds]
        for more, wanted in [
            (own, {"DaemonSet gce-metadata-proxy", "ServiceAccount gce-metadata-proxy", "ConfigMap gce-metadata-proxy-policy"}),
            (taint, {"DaemonSet gce-metadata-proxy", "ServiceAccount gce-metadata-proxy", *of_taint}),
            ([*own, *removed], set()),
            ([*own, *removed, "--set", "redirect.remove=true"], set()),
        ]:
            kept = {
                f"{one['kind']} {one['metadata']['name']}"
                for one in rendered.helm(*more)
                if one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
            }
            with self.subTest(more):
                self.assertEqual(kept, wanted)

    def test_without_a_pool_pods_are_told_apart_and_nobody_gets_tokens_of_an_audience(self):
        found = rendered.helm("--set", "identity.enabled=true,identity.workloadIdentityProvider=none", "--kube-version", "1.36.0")
        self.assertIn("ClusterRole -/gce-metadata-proxy-own-node", map(rendered.name_of, found))
        self.assertNotIn("ClusterRole -/gce-metadata-proxy-audience", map(rendered.name_of, found))

    def test_in_another_namespace_the_rights_go_to_the_account_there(self):
        values = ["--values", rendered.TESTS / "identity-fenced" / "values.yaml", "--kube-version", "1.30.0"]
        found = {rendered.name_of(one): one for one in rendered.helm(*values, "--namespace", "metadata")}
        [subject] = found["ClusterRoleBinding -/gce-metadata-proxy-fenced"]["subjects"]
        self.assertEqual(subject["namespace"], "metadata")
        [condition] = found["ValidatingAdmissionPolicy -/gce-metadata-proxy-tokens"]["spec"]["matchConditions"]
        self.assertIn("'system:serviceaccount:metadata:gce-metadata-proxy'", condition["expression"])

    @staticmethod
    def pod(*arguments, of="gce-metadata-proxy"):
        return rendered.daemonset(rendered.helm(*arguments), of)["spec"]["template"]["spec"]


def notes(given):
    """What Helm prints after an installation, which `helm template` does not show unless it is part of an object."""
    with tempfile.TemporaryDirectory() as place:
        chart = Path(place) / "chart"
        shutil.copytree(rendered.CHART, chart)
        (chart / "templates" / "NOTES.txt").rename(chart / "notes")
        (chart / "templates" / "notes.yaml").write_text('kind: Notes\ntext: {{ tpl (.Files.Get "notes") . | toJson }}\n')
        command = ["template", "release", chart, "--namespace", "metadata", "--kube-version", "1.36.0", "--set", given]
        found = rendered.objects(rendered.run(os.environ.get("HELM", "helm"), *command))
        [shown] = [one["text"] for one in found if one["kind"] == "Notes"]
        return shown


def alerts(rule):
    """The alerts of a PrometheusRule."""
    return [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]


def all_of(args, flag):
    """The values of a flag that is repeated."""
    return [arg.split("=", 1)[1] for arg in args if arg.startswith(f"{flag}=")]


def values_of(container):
    """The variables of a container's environment that have a value here."""
    return {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


def without_helms_labels(found):
    if isinstance(found, dict):
        kept = {key: without_helms_labels(value) for key, value in found.items() if key not in HELMS}
        return {key: value for key, value in kept.items() if (key, value) != ("annotations", {})}
    if isinstance(found, list):
        return [without_helms_labels(value) for value in found]
    return found


def difference(ours, charts):
    lines = [yaml.safe_dump(read(found)).splitlines() for found in (ours, charts)]
    return "\n".join(difflib.unified_diff(*lines, "kustomize", "helm", lineterm=""))


def read(found):
    """A ConfigMap's files as the documents that they are: the order of a document's keys says nothing. Nor does that of
    a pod's volumes."""
    if found["kind"] in ("DaemonSet", "Job"):
        found = deepcopy(found)
        pod = found["spec"]["template"]["spec"]
        for listed in [pod, *pod["containers"]]:
            for volumes in ("volumes", "volumeMounts"):
                listed.get(volumes, []).sort(key=lambda volume: volume["name"])
    if found["kind"] != "ConfigMap":
        return found
    return found | {"data": {name: yaml.safe_load(text) for name, text in found["data"].items()}}


if __name__ == "__main__":
    unittest.main()
