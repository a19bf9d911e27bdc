"""What the manifests ask of the binary is what the binary can do, and they name its version."""

import os
import re
import subprocess
import tomllib
import unittest

import yaml

import rendered

BINARY = os.environ.get("PROXY", rendered.DEPLOY.parent / "target" / "debug" / "gce-metadata-proxy")
USAGE = 64
IMAGES = {"gce-metadata-proxy", "gce-metadata-proxy-redirect", "gce-metadata-proxy-demo"}


# Wherever a test goes wrong, nothing must ask the real server.
NOWHERE = os.environ | {"METADATA_PROXY_UPSTREAM": "http://127.0.0.1:9"}


def commands():
    """All that the manifests run: where it comes from, the container, and the arguments."""
    for where, _, container in rendered.containers():
        yield where, container, container["args"]
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if "exec" in container.get(probe, {}):
                binary, *args = container[probe]["exec"]["command"]
                assert binary == "/gce-metadata-proxy", binary
                yield where, container, args


def environment(container):
    """The variables of a container of the proxy's image."""
    return variables_of(container) if container["image"].startswith("gce-metadata-proxy:") else {}


def variables_of(container):
    """A container's variables; those that the kubelet fills in have the name of a node, or a pod's UID."""
    filled_in = {"metadata.uid": "7ba6f403-e59c-4027-afb6-6c448d3b40bd"}
    field = lambda one: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return {one["name"]: one.get("value", filled_in.get(field(one), "node-1")) for one in container.get("env", [])}


def value(args, flag):
    """What a flag is set to."""
    [found] = [arg.split("=", 1)[1] for arg in args if arg.startswith(f"{flag}=")]
    return found


class Flags(unittest.TestCase):
    def test_every_flag_is_in_the_help_of_its_command(self):
        checked = 0
        for where, container, args in commands():
            subcommand = [arg for arg in args if not arg.startswith("-")]
            with self.subTest(where, container=container["name"], subcommand=subcommand):
                text = rendered.run(BINARY, *subcommand, "--help")
                # Where they are defined, not where others' texts name them.
                known = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)
                for flag in args[len(subcommand) :]:
                    checked += 1
                    self.assertIn(flag.split("=")[0], known)
                for variable in environment(container):
                    if (container["name"], variable) == ("doctor", "METADATA_PROXY_POLICY"):
                        continue  # The Job has the whole environment of the proxy.
                    checked += 1
                    self.assertIn(f"[env: {variable}=", " ".join(text.split()))
        self.assertGreater(checked, 0)

    def test_the_redirect_knows_the_variables_of_the_chart(self):
        given = "redirect.allow={443},redirect.dropSpoofed=true,redirect.uplinks={eth0},redirect.tool=nft"
        [variables] = [
            [one["name"] for one in container["env"]]
            for document in rendered.helm("--set", given)
            if document["kind"] == "DaemonSet"
            for container in document["spec"]["template"]["spec"]["containers"]
            if container["name"] == "redirect"
        ]
        self.assertEqual(len(variables), 4)
        for subcommand in (["redirect", "install"], ["redirect", "check"]):
            text = " ".join(rendered.run(BINARY, *subcommand, "--help").split())
            for variable in variables:
                self.assertIn(f"[env: {variable}=", text)

    def test_every_value_is_valid(self):
        """All mistakes are reported at once, so one that is made on purpose must be the only one; and nothing is started."""
        for where, container, args in commands():
            if where in rendered.UNEDITED:
                continue
            with self.subTest(where, container=container["name"]):
                mistakes = self.mistakes(args, environment(container))
                self.assertEqual(len(mistakes), 1, mistakes)
                self.assertIn("--made-on-purpose", mistakes[0])

    def test_what_the_chart_makes_of_more_values_is_valid(self):
        for given in [
            "identity.enabled=true,identity.workloadIdentityProvider=none",
            "identity.enabled=true,identity.workloadIdentityProvider=none,identity.prefetch=none",
            "port=888,metricsPort=1989,canary.metricsPort=9999,podMonitor.enabled=true,redirect.startupTaint=example.com/t",
        ]:
            for found in rendered.helm("--set", given, "--kube-version", "1.36.0"):
                for _, container in rendered.containers_of(found):
                    variables = variables_of(container)
                    with self.subTest(given, container=container["name"]):
                        [mistake] = self.mistakes(container["args"], variables)
                        self.assertIn("--made-on-purpose", mistake)

    def test_an_overlay_that_was_not_edited_is_refused(self):
        for where in rendered.UNEDITED:
            container = rendered.container(where, "doctor" if where in rendered.DOCTORS else "proxy")
            with self.subTest(where):
                mistakes = self.mistakes(container["args"], environment(container))
                self.assertRegex("\n".join(mistakes), r"METADATA_PROXY_WORKLOAD_IDENTITY_PROVIDER.*PROJECT_NUMBER.*is not valid")

    def mistakes(self, args, variables):
        """What the binary says is wrong about a container's arguments and variables."""
        variables = NOWHERE | {name: here(value) for name, value in variables.items()}
        asked = [BINARY, *args, "--made-on-purpose"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=10, env=variables)
        self.assertEqual(done.returncode, USAGE, done.stderr)
        return [line for line in done.stderr.splitlines() if line.startswith("gce-metadata-proxy: ")]

    def test_the_binary_has_the_features_of_the_image(self):
        self.assertRegex(rendered.run(BINARY, "--help"), r"(?m)^ +--workload-identity\[")

    def test_the_policy_that_is_shipped_has_no_mistake(self):
        policies = list(rendered.DEPLOY.glob("components/*/policy.yaml"))
        self.assertTrue(policies)
        for policy in policies:
            rendered.run(BINARY, "policy", "check", policy)

    def test_the_policy_for_monitoring_agents_shows_what_they_report_and_no_secret(self):
        policy = rendered.DEPLOY / "components/monitoring-policy/policy.yaml"
        for path, verdict in [("name", "allow"), ("machine-type", "allow"), ("zone", "allow"), ("tags", "conceal")]:
            with self.subTest(path):
                rendered.run(BINARY, "explain", "--policy", policy, "--expect", verdict, f"/computeMetadata/v1/instance/{path}")

    def test_probes_go_where_operators_are_served(self):
        text = rendered.run(BINARY, "--help")
        default = re.search(r"METADATA_PROXY_METRICS_ADDR.*?\[default: \S*:(\d+)\]", text, re.DOTALL).group(1)
        probed = 0
        for where, _, container in rendered.containers():
            served = [arg.rsplit(":", 1)[1] for arg in container["args"] if arg.startswith("--metrics-addr=")] or [default]
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                if "httpGet" in container.get(probe, {}):
                    probed += 1
                    with self.subTest(where, probe=probe):
                        self.assertEqual([str(container[probe]["httpGet"]["port"])], served)
        self.assertGreater(probed, 0)

    def test_the_canarys_probe_asks_the_canary(self):
        canaries = 0
        for where, _, container in rendered.containers():
            if container["name"] != "canary":
                continue
            canaries += 1
            with self.subTest(where):
                asked = container["readinessProbe"]["exec"]["command"]
                self.assertEqual(asked[1:], ["check", "--last"])
                # As a variable, `check --last` by hand in the container knows it, too.
                [addr] = [one["value"] for one in container["env"] if one["name"] == "METADATA_PROXY_METRICS_ADDR"]
                ip, port = addr.split(":")
                serving = value(container["args"], "--metrics-addr")
                self.assertIn((ip, serving), [("127.0.0.1", f"127.0.0.1:{port}"), ("127.0.0.1", f"0.0.0.0:{port}")])
        self.assertGreater(canaries, 0)

    def test_the_redirect_ends_where_the_proxy_listens(self):
        redirects = 0
        for where, pod, container in rendered.containers():
            if container["args"][:2] != ["redirect", "install"]:
                continue
            redirects += 1
            [proxy] = [one for near, beside, one in rendered.containers() if near == where and one["args"][0] not in ("redirect", "check", "mock")]
            with self.subTest(where, container=container["name"]):
                # By default both are the same, but for an address of loopback, at which the node itself asks.
                to = {one.split("=", 1)[1] for one in container["args"] if one.startswith("--to=")}
                # As a variable, `redirect check` in the container knows it, too.
                variables = {one["name"]: one.get("value", "") for one in container.get("env", [])}
                to |= set(filter(None, variables.get("METADATA_PROXY_REDIRECT_TO", "").split(",")))
                served = {one.split("=", 1)[1] for one in proxy["args"] if one.startswith("--addr=")}
                self.assertLessEqual(to, served)
                self.assertEqual(bool(to), bool(served))
                if value(container["args"], "--mode") == "sidecar":
                    user = proxy["securityContext"]["runAsUser"]
                    self.assertEqual(value(container["args"], "--proxy-uid"), str(user))
                if "readinessProbe" in container:
                    asked = container["readinessProbe"]["exec"]["command"][3:]
                    # The probe writes no log, and serves nothing.
                    own = ("--keep", "--log-format=json", "--keeper-metrics-addr=0.0.0.0:1990")
                    self.assertEqual(asked, [arg for arg in container["args"][2:] if arg not in own])
        self.assertGreater(redirects, 0)


def here(value):
    """The policy is where Kustomize takes it from, not where the pod has it."""
    return value.replace("/etc/gce-metadata-proxy/", f"{rendered.DEPLOY}/components/strict-policy/")


class Versions(unittest.TestCase):
    def setUp(self):
        self.version = tomllib.loads((rendered.DEPLOY.parent / "Cargo.toml").read_text())["workspace"]["package"]["version"]

    def test_images_have_the_tag_of_the_crates_version(self):
        for where, _, container in rendered.containers():
            with self.subTest(where):
                self.assertIn(container["image"].removesuffix(f":{self.version}"), IMAGES)

    def test_the_chart_has_the_crates_version(self):
        chart = yaml.safe_load((rendered.CHART / "Chart.yaml").read_text())
        self.assertEqual((chart["version"], chart["appVersion"]), (self.version, self.version))


if __name__ == "__main__":
    unittest.main()
