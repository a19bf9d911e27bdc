"""The chart renders what the overlays render, and refuses values that it does not understand."""

import difflib
import json
import re
import unittest
from copy import deepcopy

import yaml

import rendered

# What Helm's users expect on every object, and Kustomize's do not.
HELMS = ["helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "app.kubernetes.io/version"]


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
        pod = self.pod(
            "--set", "image.repository=r.example/p,image.tag=v1", "--set", "image.pullSecrets[0].name=s",
            "--set", "extraArgs={--max-in-flight=400}", "--set", "resources.limits.cpu=null",
        )  # fmt: skip
        self.assertEqual(pod["containers"][0]["image"], "r.example/p:v1")
        self.assertEqual(pod["imagePullSecrets"], [{"name": "s"}])
        self.assertEqual(pod["containers"][0]["args"][-1], "--max-in-flight=400")
        self.assertNotIn("cpu", pod["containers"][0]["resources"]["limits"])

    def test_the_canary_goes_where_the_proxy_goes(self):
        where = [
            "--values", rendered.CHART / "values-gke-standard.yaml",
            "--set", "nodeSelector.try=this", "--set", "image.pullSecrets[0].name=s",
        ]  # fmt: skip
        canary, proxy = self.pod(*where, of="gce-metadata-proxy-canary"), self.pod(*where)
        for field in ("affinity", "nodeSelector", "tolerations", "imagePullSecrets"):
            self.assertEqual(canary[field], proxy[field], field)

    def test_the_switch_of_the_kernel_can_be_left_alone(self):
        pod = self.pod("--set", "redirect.routeLocalnet=false")
        self.assertNotIn("volumes", pod)
        self.assertFalse(any("volumeMounts" in one for one in pod["containers"]))

    def test_selinux_lets_only_those_use_proc_that_do(self):
        values = ["--values", rendered.TESTS / "identity-kubelet" / "values.yaml", "--set", "seLinuxType=spc_t"]
        for more, wanted in [
            (values, {"proxy", "redirect"}),
            ([*values, "--set", "identity.enabled=false"], {"redirect"}),
            ([*values, "--set", "redirect.routeLocalnet=false"], {"proxy"}),
            ([*values, "--set", "redirect.enabled=false,redirect.remove=true"], {"proxy", "redirect-remove"}),
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

    def test_what_the_redirect_lets_pass_is_known_to_all_who_check_it(self):
        for given, redirects, canarys in [
            ([], {}, {}),
            (
                ["--set", "redirect.allow={443,ipv6}", "--set", "redirect.dropSpoofed=true"],
                {"METADATA_PROXY_REDIRECT_ALLOW": "443,ipv6", "METADATA_PROXY_REDIRECT_DROP_SPOOFED": "true"},
                {"METADATA_PROXY_REDIRECT_ALLOW": "443,ipv6"},
            ),
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
                self.assertEqual(values_of(canary), canarys)
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
        self.assertEqual(addresses, ["$1:989", "$1:1990"])

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

    def test_it_refuses_values_that_it_does_not_understand(self):
        for mistake in [
            "redirect.enabled=maybe",
            "redirect.enable=true",
            "redirect.remove=true",
            "redirect.allow={80}",
            "redirect.maxNewConnections=-1",
            "redirect.maxNewConnections=100001",
            "redirect.metricsAddr=990",
            "redirect.allow={https}",
            "redirect.allow=443",
            "redirect.uplinks={eth0;eth1}",
            "image.pullPolicy=Sometimes",
            "policy.document.extends=strict",
            "policy.document.apiVersion=v1",
            "resources.limits.memory=null",
            "extraArgs={max-in-flight=400}",
            "canary.enabled=maybe",
            "seLinuxType=spc-t",
            "podMonitor.interval=often",
            "tolerations={}",
        ]:
            with self.subTest(mistake), self.assertRaisesRegex(AssertionError, "schema"):
                rendered.helm("--set", mistake)

    def test_it_refuses_a_policy_that_the_proxy_would_refuse(self):
        values = rendered.TESTS / "own-policy" / "values.yaml"
        rule = "policy.document.rules[0]"
        for mistake, sentence in [
            ("policy.document.rule={}", "additional properties 'rule' not allowed"),
            ("policy.document.extends=stict", "'/policy/document/extends'"),
            ("policy.document.name=Ours", "'/policy/document/name'"),
            (f"{rule}.paths={{instance/tags}},{rule}.verdict=deny", "'/policy/document/rules/0/verdict'"),
            (f"{rule}.paths={{/instance/tags}},{rule}.verdict=allow", "'/policy/document/rules/0/paths/0'"),
        ]:
            with self.subTest(mistake), self.assertRaisesRegex(AssertionError, re.escape(sentence)):
                rendered.helm("--values", values, "--set", mistake)

    def test_it_knows_the_fields_of_a_policy_as_the_proxy_does(self):
        wanted = policy_for_the_chart()
        schema = json.loads((rendered.CHART / "values.schema.json").read_text())
        self.assertTrue(schema["definitions"]["policy"] == wanted, f"put this there:\n{on_few_lines(wanted)}")

    def test_it_refuses_an_identity_that_cannot_be(self):
        provider = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
        pool, cluster = "shop.svc.id.goog", "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c"
        for mistake, sentence in [
            ({"access": "cluster"}, "'/identity/access': value must be one of 'own-node', 'kubelet', 'fenced'"),
            ({"workloadPool": "Shop.svc.id.goog"}, "'/identity/workloadPool'"),
            ({"workloadIdentityProvider": "projects/1"}, "'/identity/workloadIdentityProvider'"),
            ({"workloadPool": pool, "clusterUri": "shop"}, "'/identity/clusterUri'"),
            # It would end the string in the admission policy.
            ({"workloadIdentityProvider": provider, "tokenAudience": "a', 'b"}, "'/identity/tokenAudience'"),
            ({"passthrough": ["fluentbit"]}, "'/identity/passthrough/0'"),
            ({"prefetch": "some"}, "'/identity/prefetch'"),
            ({"kubeconfig": "kubelet.conf"}, "'/identity/kubeconfig'"),
            ({"resources": {"limits": {"memory": None}}}, "'/identity/resources/limits'"),
            ({"workloadPool": pool, "clusterUri": cluster, "workloadIdentityProvider": provider}, "are both set"),
            ({"workloadPool": pool}, "identity.workloadPool needs identity.clusterUri"),
            ({"clusterUri": cluster}, "identity.clusterUri needs identity.workloadPool"),
            ({"tokenAudience": "a"}, "identity.tokenAudience needs identity.workloadPool or"),
            ({"shortTokens": True}, "identity.shortTokens needs identity.workloadPool or"),
            ({"access": "fenced"}, "identity.access fenced needs identity.workloadPool or"),
        ]:
            with self.subTest(mistake), self.assertRaisesRegex(AssertionError, re.escape(sentence)):
                self.with_identity(mistake, "1.36.0")

    def test_it_refuses_a_way_that_the_cluster_does_not_have(self):
        fenced = {
            "access": "fenced",
            "workloadIdentityProvider": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        }
        with self.assertRaisesRegex(AssertionError, "own-node needs Kubernetes 1.36 .*, and this is v1.34.1;"):
            self.with_identity({}, "1.34.1-gke.5")
        with self.assertRaisesRegex(AssertionError, "fenced needs Kubernetes 1.30 .*, and this is v1.29.9"):
            self.with_identity(fenced, "1.29.9")
        short = fenced | {"access": "kubelet", "shortTokens": True}
        with self.assertRaisesRegex(AssertionError, "shortTokens needs Kubernetes 1.30 .*, and this is v1.29.9"):
            self.with_identity(short, "1.29.9")
        self.with_identity({}, "1.36.0-gke.100")
        self.with_identity(fenced, "1.30.0-eks-1")
        self.with_identity({"access": "kubelet"}, "1.25.0")

    def test_without_a_pool_pods_are_told_apart_and_nobody_gets_tokens_of_an_audience(self):
        found = self.with_identity({}, "1.36.0")
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
    def with_identity(values, version):
        given = ["--set-json", f"identity={json.dumps(values | {'enabled': True})}"]
        return rendered.helm(*given, "--kube-version", version)

    @staticmethod
    def pod(*arguments, of="gce-metadata-proxy"):
        return rendered.daemonset(rendered.helm(*arguments), of)["spec"]["template"]["spec"]


def alerts(rule):
    """The alerts of a PrometheusRule."""
    return [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]


def values_of(container):
    """The variables of a container's environment that have a value here."""
    return {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


def policy_for_the_chart():
    """The schema of a policy file, at its place in the schema of the chart's values, without what `policy schema` explains."""
    text = (rendered.DEPLOY.parent / "policies" / "schema.json").read_text()
    schema = json.loads(text.replace('"#/$defs/', '"#/definitions/policy/$defs/'), object_hook=without_descriptions)
    del schema["$schema"], schema["title"]
    return schema


def without_descriptions(found):
    return {key: value for key, value in found.items() if key != "description" or not isinstance(value, str)}


def on_few_lines(schema):
    """As JSON, with one line for each field and each type."""
    line = lambda item: f"{json.dumps(item[0])}: {json.dumps(item[1])}"
    lines = lambda found: "{\n    " + ",\n    ".join(map(line, found.items())) + "\n  }"
    parts = {key: lines(value) if key in ("properties", "$defs") else json.dumps(value) for key, value in schema.items()}
    return "{\n" + ",\n".join(f'  "{key}": {part}' for key, part in parts.items()) + "\n}"


def without_helms_labels(found):
    if isinstance(found, dict):
        return {key: without_helms_labels(value) for key, value in found.items() if key not in HELMS}
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
