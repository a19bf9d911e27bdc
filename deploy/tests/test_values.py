"""The chart refuses values that it does not understand, that contradict each other, or that cut pods off."""

import json
import os
import re
import unittest
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import rendered


class Values(unittest.TestCase):
    def test_it_refuses_what_would_lead_its_own_parts_astray(self):
        for mistake, sentence in [
            ("extraArgs={--metrics-addr=0.0.0.0:1989}", "extraArgs: instead of --metrics-addr=0.0.0.0:1989 set metricsPort, which"),
            ("extraArgs={--addr=127.0.0.1:888}", "extraArgs: instead of --addr=127.0.0.1:888 set port and redirect.addresses, which the redirect"),
            ("extraArgs={--workload-identity}", "extraArgs: instead of --workload-identity set identity.enabled"),
            ("extraArgs={--redirect}", "extraArgs: instead of --redirect set redirect.enabled"),
            ("extraArgs={--redirect-allow=443}", "extraArgs: instead of --redirect-allow=443 set redirect.allow,"),
            ("extraArgs={--redirect-drop-spoofed}", "extraArgs: instead of --redirect-drop-spoofed set redirect.dropSpoofed,"),
            ("extraArgs={--redirect-max-new-connections=9}", "set redirect.maxNewConnections, for the container"),
            ("env[0].name=METADATA_PROXY_REDIRECT_ALLOW", "env: instead of METADATA_PROXY_REDIRECT_ALLOW set redirect.allow,"),
            ("env[0].name=METADATA_PROXY_REDIRECT_TO", "env: instead of METADATA_PROXY_REDIRECT_TO set redirect.addresses and port,"),
            ("env[0].name=METADATA_PROXY_REDIRECT_TOOL", "env: instead of METADATA_PROXY_REDIRECT_TOOL set redirect.tool,"),
            ("env[0].name=METADATA_PROXY_REDIRECT_UPLINK", "env: instead of METADATA_PROXY_REDIRECT_UPLINK set redirect.uplinks,"),
            ("env[0].name=METADATA_PROXY_STARTUP_TAINT", "env: instead of METADATA_PROXY_STARTUP_TAINT set redirect.startupTaint,"),
            ("env[0].name=METADATA_PROXY_LOG_FORMAT", "env: instead of METADATA_PROXY_LOG_FORMAT set --log-format in extraArgs"),
            ("redirect.addresses={127.0.0.1}", "redirect.addresses: 127.0.0.1 is no address that pods can be sent to"),
            ("redirect.addresses={169.254.169.254}", "redirect.addresses: 169.254.169.254 is the metadata server's,"),
            ("redirect.addresses={fd20:ce::254}", "redirect.addresses: fd20:ce::254 is the metadata server's,"),
            ("redirect.addresses={fd20:00ce:0:0:0:0:0:0254}", "redirect.addresses: fd20:00ce:0:0:0:0:0:0254 is the metadata server's,"),
            ("redirect.addresses={169.254.169.256}", "redirect.addresses: 169.254.169.256 is no address;"),
            ("redirect.metricsAddr=0.0.0.256:1990", "redirect.metricsAddr=0.0.0.256:1990 has no address before its port"),
            ("redirect.metricsAddr=1.2.3.4.5:1990", "redirect.metricsAddr=1.2.3.4.5:1990 has no address before its port"),
            ("canary.metricsPort=1023", "canary.metricsPort=1023 is below 1024, where the canary, which has no privilege, can listen on some nodes only"),
            ("env[0].name=GOMAXPROCS,env[0].value=1", "env: the value of GOMAXPROCS is not a text"),
            ("env[0].name=A,env[0].value=true", "env: the value of A is not a text"),
            ("redirect.addresses={fd20:ce::253,::1}", "redirect.addresses: ::1 is no address"),
            ("redirect.addresses={169.254.1.1,169.254.1.2}", "redirect.addresses: 169.254.1.1 and 169.254.1.2 are of one IP version"),
            ("redirect.addresses={fd20:ce::1,fd20:ce::2}", "redirect.addresses: fd20:ce::1 and fd20:ce::2 are of one IP version"),
            ("extraArgs={--reuse-port=false}", "extraArgs: instead of --reuse-port=false set nothing: the chart always has it"),
            ("extraArgs={--workload-pool=a.svc.id.goog}", "set identity.workloadPool, which the rights and the doctor must know"),
            ("extraArgs={--cluster-uri=u}", "instead of --cluster-uri=u set identity.clusterUri, which the doctor"),
            ("extraArgs={--workload-identity-provider=none}", "set identity.workloadIdentityProvider, which the rights"),
            ("extraArgs={--token-audience=a}", "instead of --token-audience=a set identity.tokenAudience, which the rights"),
            ("env[0].name=METADATA_PROXY_TOKEN_AUDIENCE", "instead of METADATA_PROXY_TOKEN_AUDIENCE set identity.tokenAudience,"),
            ("extraArgs={--passthrough=b/c}", "instead of --passthrough=b/c set identity.passthrough, whose list"),
            ("extraArgs={--prefetch=none}", "instead of --prefetch=none set identity.prefetch"),
            ("extraArgs={--kubeconfig=/k}", "instead of --kubeconfig=/k set identity.access and identity.kubeconfig"),
            ("extraArgs={--impersonate-node=false}", "instead of --impersonate-node=false set identity.access"),
            ("extraArgs={--handover=u}", "instead of --handover=u set nothing: the chart has it"),
            ("extraArgs={--state-dir=/s}", "instead of --state-dir=/s set nothing: the chart has it"),
            ("extraArgs={--google-ca=/c}", "instead of --google-ca=/c set METADATA_PROXY_GOOGLE_CA in env, which the doctor"),
            ("extraArgs={--sts-endpoint=u}", "instead of --sts-endpoint=u set METADATA_PROXY_STS_ENDPOINT in env,"),
            ("extraArgs={--iam-endpoint=u}", "instead of --iam-endpoint=u set METADATA_PROXY_IAM_ENDPOINT in env,"),
            ("podMonitor.enabled=true,prometheusRule.enabled=true,podMonitor.interval=61s", "podMonitor.interval=61s is more than 1m,"),
            ("podMonitor.enabled=true,prometheusRule.enabled=true,podMonitor.interval=1h", "podMonitor.interval=1h is more than 1m,"),
            ("podMonitor.enabled=true,prometheusRule.enabled=true,podMonitor.interval=60001ms", "podMonitor.interval=60001ms is more than 1m,"),
            ("env[0].name=METADATA_PROXY_METRICS_ADDR", "env: instead of METADATA_PROXY_METRICS_ADDR set metricsPort"),
            ("port=989", "port and metricsPort are the same"),
            ("metricsPort=1990,redirect.metricsAddr=0.0.0.0:1990", "redirect.metricsAddr=0.0.0.0:1990 has the port of metricsPort"),
            ("podMonitor.enabled=true,redirect.metricsAddr=127.0.0.1:1990", "redirect.metricsAddr=127.0.0.1:1990 is on loopback"),
        ]:
            with self.subTest(mistake), self.assertRaisesRegex(AssertionError, re.escape(sentence)):
                rendered.helm("--set", mistake)
        # Somebody on the node may ask.
        rendered.helm("--set", "redirect.metricsAddr=127.0.0.1:1990")
        for addr in ["0.0.0.0:1024", "[::]:1990", "0.0.0.0:65535"]:
            rendered.helm("--set", f"redirect.metricsAddr={addr}")
        rendered.helm("--set", "podMonitor.enabled=true,podMonitor.interval=5m")
        for interval in ["1m", "60s", "5s", "500ms", "60000ms", "null"]:
            rendered.helm("--set", f"podMonitor.enabled=true,prometheusRule.enabled=true,podMonitor.interval={interval}")
        rendered.helm("--set", "env[0].name=METADATA_PROXY_GOOGLE_CA")
        rendered.helm("--set", "canary.metricsPort=1024")
        rendered.helm("--set", "canary.enabled=false,canary.metricsPort=80")
        rendered.helm("--set", "redirect.addresses={169.254.169.25,fd20:ce::2540}")
        rendered.helm("--set-string", "env[0].name=A,env[0].value=1", "--set", "env[1].name=B")
        rendered.helm("--set", "env[0].name=A,env[0].valueFrom.fieldRef.fieldPath=spec.nodeName")
        # Others whose names begin alike.
        rendered.helm("--set", "extraArgs={--metrics-allowed-host=a,--policy-mode=audit}")

    def test_it_refuses_a_second_policy(self):
        values = rendered.TESTS / "own-policy" / "values.yaml"
        for second, sentence in [
            ("extraArgs={--policy=strict}", "extraArgs: instead of --policy=strict set policy.document alone"),
            ("env[0].name=METADATA_PROXY_POLICY", "env: instead of METADATA_PROXY_POLICY set policy.document alone"),
        ]:
            with self.subTest(second), self.assertRaisesRegex(AssertionError, re.escape(sentence)):
                rendered.helm("--values", values, "--set", second)
            rendered.helm("--set", second)

    def test_it_refuses_a_startup_taint_that_the_proxy_does_not_tolerate(self):
        taint = ["--set", "redirect.startupTaint=t", "--kube-version", "1.30.0"]
        for tolerations in ["tolerations=null", "tolerations[0].key=a,tolerations[0].operator=Exists", "tolerations[0].operator=Equal",
                            "tolerations[0].operator=Exists,tolerations[0].effect=NoExecute"]:  # fmt: skip
            with self.subTest(tolerations), self.assertRaisesRegex(AssertionError, "startupTaint=t: tolerations does not tolerate it"):
                rendered.helm(*taint, "--set", tolerations)
            rendered.helm("--set", tolerations)
        second = "tolerations[0].key=a,tolerations[0].operator=Exists,tolerations[1].key=t,tolerations[1].operator=Exists"
        of_effect = "tolerations[0].key=t,tolerations[0].effect=NoSchedule"
        for tolerations in [second, of_effect, "tolerations[0].key=t", "tolerations[0].operator=Exists"]:
            rendered.helm(*taint, "--set", tolerations)

    def test_the_removal_has_an_order(self):
        sentence = "redirect.remove=true is the second of two steps.*First upgrade with redirect.enabled=false.*rollout status"
        for early in ["redirect.remove=true", "redirect.remove=true,redirect.enabled=false"]:
            with self.subTest(early), self.assertRaisesRegex(AssertionError, sentence):
                rendered.helm("--set", early)

    def test_it_refuses_values_that_it_does_not_understand(self):
        for mistake in [
            "redirect.enabled=maybe",
            "redirect.enable=true",
            "redirect.allow={80}",
            "redirect.addresses={somewhere}",
            "redirect.addresses={169.254.169.252:988}",
            "redirect.maxNewConnections=-1",
            "redirect.maxNewConnections=100001",
            "redirect.metricsAddr=990",
            "redirect.metricsAddr=0.0.0.0:1023",
            "redirect.metricsAddr=0.0.0.0:65536",
            "redirect.dropSpoofed=maybe",
            "redirect.allow={https}",
            "redirect.tool=pf",
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
            "podMonitor.metricRelabelings[0].action=remove",
            "podMonitor.metricRelabelings[0].source_labels={__name__}",
            "tolerations=all",
            "toleration={}",
            "port=8988",
            "metricsPort=0",
            "canary.metricsPort=high",
            "redirect.resources.limits.memory=null",
            "canary.resources.limits.memory=null",
            "volumes[0].emptyDir.medium=Memory",
            "env={HTTPS_PROXY=x}",
            "identity.workloadIdentityProvider=no",
            "maxSurge=0",
            "maxSurge=0%",
            "maxSurge=101%",
            "maxSurge=few",
            "prometheusRule.runbookUrl=page#anchor",
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
            *[
                (f"{rule}.paths={{{path}}},{rule}.verdict=allow", "'/policy/document/rules/0/paths/0'")
                for path in ("/instance/tags", "instance/a b", "instance/a%2Fb", "instance/id?alt=json", "*/../id")
            ],
            (f"{rule}.paths={{instance/tags}},{rule}.verdict=conceal", "missing property 'reason'"),
            (f"{rule}.paths={{instance/tags}},{rule}.verdict=conceal,{rule}.reason=", "'/policy/document/rules/0/reason'"),
            (f"{rule}.paths={{instance/tags}},{rule}.verdict=allow,{rule}.answer=404", "'/policy/document/rules/0/answer'"),
        ]:
            with self.subTest(mistake), self.assertRaisesRegex(AssertionError, re.escape(sentence)):
                rendered.helm("--values", values, "--set", mistake)
        for empty in ["methods", "trees", "rules[0].paths"]:
            pointer = "'/policy/document/" + empty.replace("[0].", "/0/") + "': minItems"
            with self.subTest(empty), self.assertRaisesRegex(AssertionError, pointer):
                rendered.helm("--values", values, "--set-json", f"policy.document.{empty}=[]")

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
            # By the documents pods then have no tokens at all.
            ({}, "identity.enabled needs what Google knows this cluster by: identity.workloadIdentityProvider, or"),
            ({"workloadIdentityProvider": "none", "access": "fenced"}, "identity.access fenced needs identity.workloadPool or"),
            ({"workloadIdentityProvider": "none", "workloadPool": pool}, "are both set"),
            ({"workloadIdentityProvider": "none", "prefetch": "all"}, "identity.prefetch=all needs identity.workloadPool or"),
        ]:
            with self.subTest(mistake), self.assertRaisesRegex(AssertionError, re.escape(sentence)):
                with_identity(mistake, "1.36.0")

    def test_it_refuses_an_identity_that_is_not_turned_on(self):
        pool = "identity.workloadPool=shop.svc.id.goog,identity.clusterUri=https://container.googleapis.com/v1/c"
        provider = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
        for idle, named in [
            (pool, "identity.workloadPool, identity.clusterUri"),
            (f"identity.workloadIdentityProvider={provider}", "identity.workloadIdentityProvider"),
            ("identity.workloadIdentityProvider=none", "identity.workloadIdentityProvider"),
            ("identity.tokenAudience=a", "identity.tokenAudience"),
            ("identity.shortTokens=true", "identity.shortTokens"),
        ]:
            sentence = f"no effect, and all pods get the node's tokens: {named}. Set identity.enabled=true"
            with self.subTest(idle), self.assertRaisesRegex(AssertionError, re.escape(sentence)):
                rendered.helm("--set", idle)
        # As the sentence says.
        rendered.helm("--set", "identity.workloadPool=null,identity.clusterUri=null,identity.shortTokens=null")

    def test_it_refuses_a_way_that_the_cluster_does_not_have(self):
        fenced = {
            "access": "fenced",
            "workloadIdentityProvider": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        }
        with self.assertRaisesRegex(AssertionError, "own-node needs Kubernetes 1.36 .*, and this is v1.34.1;"):
            with_identity({"workloadIdentityProvider": "none"}, "1.34.1-gke.5")
        with self.assertRaisesRegex(AssertionError, "fenced needs Kubernetes 1.30 .*, and this is v1.29.9"):
            with_identity(fenced, "1.29.9")
        short = fenced | {"access": "kubelet", "shortTokens": True}
        with self.assertRaisesRegex(AssertionError, "shortTokens needs Kubernetes 1.30 .*, and this is v1.29.9"):
            with_identity(short, "1.29.9")
        with_identity({"workloadIdentityProvider": "none"}, "1.36.0-gke.100")
        with_identity(fenced, "1.30.0-eks-1")
        with_identity({"access": "kubelet", "workloadIdentityProvider": "none"}, "1.25.0")

    def test_the_removal_waits_for_the_containers_that_run(self):
        second = "redirect.remove=true,redirect.enabled=false,canary.enabled=false"
        old, new, removing = pod("proxy", "redirect"), pod("proxy"), pod("proxy", before=["redirect-remove"])
        done = {"observedGeneration": 2, "desiredNumberScheduled": 10, "updatedNumberScheduled": 10, "numberUnavailable": 1}
        half = done | {"updatedNumberScheduled": 9}
        # What the API server leaves out is 0.
        none = {"observedGeneration": 2, "desiredNumberScheduled": 10}
        for running, wanted in [
            (daemonset(old, done), "the pods that run still keep the rules"),
            (daemonset(new, done), None),
            (daemonset(new, half), "may still keep the rules: 9 of 10 nodes have a new one.* kubectl delete node NAME"),
            (daemonset(new, none), "may still keep the rules: 0 of 10 nodes"),
            # Accepted, and not yet seen by the controller.
            (daemonset(new, done | {"observedGeneration": 1}), "may still keep the rules"),
            # The second step goes on.
            (daemonset(removing, half), None),
            (None, None),
        ]:
            with self.subTest(running), cluster_with(running) as server:
                command = ["template", "gce-metadata-proxy", rendered.CHART, "--namespace", "kube-system", "--kube-version", "1.36.0"]
                ask = [os.environ.get("HELM", "helm"), *command, "--dry-run=server", "--kube-apiserver", server, "--set", second]
                if not wanted:
                    self.assertIn("redirect-remove", rendered.run(*ask))
                    continue
                with self.assertRaisesRegex(AssertionError, wanted):
                    rendered.run(*ask)


def pod(*containers, before=()):
    return {"containers": [{"name": name} for name in containers], "initContainers": [{"name": name} for name in before]}


def daemonset(pod, status):
    """Of which this is the second edition."""
    metadata = {"name": "gce-metadata-proxy", "generation": 2}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": {"spec": pod}}, "status": status}


@contextmanager
def cluster_with(daemonset):
    """An API server that knows this DaemonSet; or none."""
    resource = {"name": "daemonsets", "singularName": "", "namespaced": True, "kind": "DaemonSet", "verbs": ["get"]}
    version = {"groupVersion": "apps/v1", "version": "v1"}
    pages = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": []},
        "/apis": {"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [version], "preferredVersion": version}]},
        "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [resource]},
    }
    if daemonset:
        pages["/apis/apps/v1/namespaces/kube-system/daemonsets/gce-metadata-proxy"] = daemonset

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            page = pages.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(page or missing).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def with_identity(values, version):
    given = ["--set-json", f"identity={json.dumps(values | {'enabled': True})}"]
    return rendered.helm(*given, "--kube-version", version)


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


if __name__ == "__main__":
    unittest.main()
