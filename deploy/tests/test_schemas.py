"""Every object is what Kubernetes' own schemas allow, with no field that they do not know."""

import json
import unittest

import jsonschema
import kubernetes_validate
from kubernetes_validate import utils

import rendered

# Kubernetes' schemas do not have them: the Prometheus operator and Cilium define them.
MONITOR, RULE = "PodMonitor", "PrometheusRule"
CILIUM = {"CiliumLocalRedirectPolicy", "CiliumClusterwideNetworkPolicy", "CiliumNetworkPolicy"}
FOREIGN = {MONITOR, RULE} | CILIUM
# Sidecars came with 1.29 (alpha in 1.28), admission policies and recursiveReadOnly with 1.30. The right to act as a node
# (1.36) is in no schema. The rest works from 1.25.
SINCE = {"sidecar/environment": "1.28", "sidecar/redirect": "1.28", "tests/startup-taint": "1.30"}
SINCE |= {where: "1.30" for where, way in rendered.IDENTITY.items() if way != "kubelet"}
SINCE |= {doctor: SINCE[of] for doctor, of in rendered.DOCTORS.items() if of in SINCE}


class Schemas(unittest.TestCase):
    def test_every_object_is_valid_in_every_version(self):
        versions = utils.all_versions()
        self.assertIn("1.25.0", versions)
        for where, found in rendered.everything():
            if found["kind"] in FOREIGN:
                continue
            since = SINCE.get(where.removeprefix("chart as "), "1.25")
            oldest = tuple(map(int, since.split(".")))
            for version in versions:
                if tuple(map(int, version.split(".")))[:2] < oldest:
                    continue
                with self.subTest(where, object=rendered.name_of(found), version=version):
                    self.assertEqual(self.complaint(found, version), None)

    @staticmethod
    def complaint(found, version):
        try:
            kubernetes_validate.validate(found, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"{'.'.join(map(str, error.path))}: {error.message}"
        return None

    def test_foreign_objects_have_only_fields_that_their_operator_knows(self):
        monitors = [found for _, found in rendered.everything() if found["kind"] == MONITOR]
        self.assertTrue(monitors)
        for monitor in monitors:
            self.assertEqual(monitor["apiVersion"], "monitoring.coreos.com/v1")
            self.assertEqual(set(monitor["spec"]), {"selector", "podMetricsEndpoints"})
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                self.assertLessEqual(set(endpoint), {"path", "interval", "relabelings"})
                for relabeling in endpoint["relabelings"]:
                    self.assertLessEqual(set(relabeling), {"sourceLabels", "action", "regex", "targetLabel", "replacement"})

        rules = [found for _, found in rendered.everything() if found["kind"] == RULE]
        self.assertTrue(rules)
        for rule in rules:
            self.assertEqual((rule["apiVersion"], set(rule["spec"])), ("monitoring.coreos.com/v1", {"groups"}))
            for group in rule["spec"]["groups"]:
                self.assertLessEqual(set(group), {"name", "interval", "rules"})
                for one in group["rules"]:
                    self.assertLessEqual(set(one), {"record", "alert", "expr", "for", "labels", "annotations"})

    def test_ciliums_objects_are_what_its_definitions_allow(self):
        schema = json.loads((rendered.TESTS / "cilium.schema.json").read_text())
        validator = jsonschema.Draft7Validator(schema)
        found = [found for _, found in rendered.everything() if found["kind"] in CILIUM]
        self.assertEqual({one["kind"] for one in found}, CILIUM)
        for one in found:
            with self.subTest(rendered.name_of(one)):
                self.assertEqual([why(error) for error in validator.iter_errors(one)], [])


class Cilium(unittest.TestCase):
    """The objects of the overlay belong together."""

    def setUp(self):
        objects = rendered.kustomize("overlays/cilium")
        [self.canary] = [one for one in objects if one["metadata"]["name"] == "gce-metadata-proxy-canary"]
        self.of = {one["kind"]: one for one in objects if one is not self.canary}
        self.pod = self.of["DaemonSet"]["spec"]["template"]
        [self.proxy] = self.pod["spec"]["containers"]

    def test_redirected_requests_end_at_the_proxy(self):
        redirect = self.of["CiliumLocalRedirectPolicy"]
        backend = redirect["spec"]["redirectBackend"]
        self.assertEqual(redirect["metadata"]["namespace"], self.of["DaemonSet"]["metadata"]["namespace"])
        self.assertLessEqual(backend["localEndpointSelector"]["matchLabels"].items(), self.pod["metadata"]["labels"].items())
        # With a single frontend Cilium takes all ports of the pod for backends, so there is one.
        [port], [backend_port] = self.proxy["ports"], backend["toPorts"]
        self.assertEqual(str(port["containerPort"]), backend_port["port"])
        self.assertIn(f"--addr=0.0.0.0:{backend_port['port']}", self.proxy["args"])
        self.assertIs(redirect["spec"]["skipRedirectFromBackend"], True)
        self.assertFalse(self.pod["spec"]["hostNetwork"])

    def test_every_pod_but_the_proxy_is_closed(self):
        rules = self.of["CiliumClusterwideNetworkPolicy"]["specs"]
        namespace, labels = self.of["DaemonSet"]["metadata"]["namespace"], self.pod["metadata"]["labels"]
        other = {"app.kubernetes.io/name": "other"}
        for where, has, closed in [
            (namespace, labels, False),
            (namespace, other, True),
            (namespace, self.canary["spec"]["template"]["metadata"]["labels"], True),
            (namespace, {}, True),
            # A pod that calls itself so is no proxy.
            ("default", labels, True),
            ("default", {}, True),
        ]:
            as_cilium = {f"k8s:{key}": value for key, value in has.items()} | {"k8s:io.kubernetes.pod.namespace": where}
            with self.subTest(where, labels=has):
                self.assertEqual(any(selects(rule["endpointSelector"], as_cilium) for rule in rules), closed)

    def test_all_of_tcp_but_dns_is_closed_and_nothing_else(self):
        for rule in self.of["CiliumClusterwideNetworkPolicy"]["specs"]:
            self.assertEqual(rule["enableDefaultDeny"], {"ingress": False, "egress": False})
            [denied] = rule["egressDeny"]
            self.assertEqual(denied["toCIDR"], ["169.254.169.254/32", "fd20:ce::254/128"])
            [ports] = denied["toPorts"]
            closed = {port for one in ports["ports"] for port in range(int(one["port"]), one["endPort"] + 1)}
            self.assertEqual(set(range(1, 65536)) - closed, {53})
            self.assertEqual({one["protocol"] for one in ports["ports"]}, {"TCP"})


def selects(selector, labels):
    """Whether a selector of expressions selects these labels."""
    tests = {"In": lambda has, values: has in values, "NotIn": lambda has, values: has not in values}
    return all(tests[one["operator"]](labels.get(one["key"]), one["values"]) for one in selector["matchExpressions"])


def why(error):
    """The deepest of what a schema of alternatives complains about."""
    deepest = jsonschema.exceptions.best_match([error])
    return f"{'.'.join(map(str, deepest.absolute_path))}: {deepest.message}"


if __name__ == "__main__":
    unittest.main()
