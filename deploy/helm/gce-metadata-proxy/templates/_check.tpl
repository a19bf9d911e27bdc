{{/* Fails with a sentence if the values contradict each other, or leave out a step. A schema says such things obscurely. */}}
{{- define "values.check" -}}
{{- if .Values.identity.enabled -}}
{{- include "identity.check" . -}}
{{- else -}}
{{- include "identity.off.check" . -}}
{{- end -}}
{{- if .Values.redirect.startupTaint -}}
{{- include "startupTaint.check" . -}}
{{- end -}}
{{- if .Values.redirect.remove -}}
{{- include "redirect.remove.check" . -}}
{{- end -}}
{{- include "settings.check" . -}}
{{- include "addresses.check" . -}}
{{- if and .Values.podMonitor.enabled (hasPrefix "127." .Values.redirect.metricsAddr) -}}
{{- fail (printf "redirect.metricsAddr=%s is on loopback, where Prometheus cannot scrape it, and podMonitor.enabled tells it to: set it to 0.0.0.0 and a port, or leave it empty" .Values.redirect.metricsAddr) -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.prometheusRule.enabled (not (regexMatch "^(([1-9]|[1-5][0-9]|60)s|1m|[0-9]{1,4}ms|[1-5][0-9]{4}ms|60000ms)?$" (.Values.podMonitor.interval | default ""))) -}}
{{- fail (printf "podMonitor.interval=%s is more than 1m, and the alerts of prometheusRule.enabled look back 2 to 5 minutes: some would never fire, others without a reason; set 60s or less" .Values.podMonitor.interval) -}}
{{- end -}}
{{- if hasSuffix (printf ":%d" (int .Values.metricsPort)) .Values.redirect.metricsAddr -}}
{{- fail (printf "redirect.metricsAddr=%s has the port of metricsPort, where the proxy serves its own pages on the same network" .Values.redirect.metricsAddr) -}}
{{- end -}}
{{- $metricsHost := regexReplaceAll ":[0-9]*$" .Values.redirect.metricsAddr "" -}}
{{- if and $metricsHost (not (hasPrefix "[" $metricsHost)) (not (include "isIPv4" $metricsHost)) -}}
{{- fail (printf "redirect.metricsAddr=%s has no address before its port; take one such as 0.0.0.0:1990" .Values.redirect.metricsAddr) -}}
{{- end -}}
{{- if and .Values.canary.enabled (lt (int .Values.canary.metricsPort) 1024) -}}
{{- fail (printf "canary.metricsPort=%d is below 1024, where the canary, which has no privilege, can listen on some nodes only" (int .Values.canary.metricsPort)) -}}
{{- end -}}
{{- if eq (int .Values.port) (int .Values.metricsPort) -}}
{{- fail "port and metricsPort are the same; pods must not reach the pages for operators" -}}
{{- end -}}
{{- end }}

{{/* Settings that other parts of the manifests must know, or set. By themselves they would lead probes or pods astray; a flag that is
given twice is an error at the start. */}}
{{- define "settings.check" -}}
{{- $values := dict
  "addr" "port and redirect.addresses, which the redirect must know"
  "metrics-addr" "metricsPort, which the probes must know, and podMonitor.enabled to open it to Prometheus"
  "redirect" "redirect.enabled, which has a container of its own for it"
  "redirect-allow" "redirect.allow, which the canary must know, too"
  "redirect-drop-spoofed" "redirect.dropSpoofed, for the container that has the redirect"
  "redirect-max-new-connections" "redirect.maxNewConnections, for the container that has the redirect"
  "reuse-port" "nothing: the chart always has it, for updates without a gap"
  "workload-identity" "identity.enabled, which brings the mounts and rights for it"
  "workload-pool" "identity.workloadPool, which the rights and the doctor must know, too"
  "cluster-uri" "identity.clusterUri, which the doctor must know, too"
  "workload-identity-provider" "identity.workloadIdentityProvider, which the rights and the doctor must know, too"
  "token-audience" "identity.tokenAudience, which the rights and the doctor must know, too"
  "passthrough" "identity.passthrough, whose list it would replace"
  "prefetch" "identity.prefetch"
  "kubeconfig" "identity.access and identity.kubeconfig, which bring the mounts for it"
  "impersonate-node" "identity.access, which brings the rights for it"
  "handover" "nothing: the chart has it with identity.enabled"
  "state-dir" "nothing: the chart has it with identity.enabled"
-}}
{{- if .Values.policy.document -}}
{{- $values = set $values "policy" "policy.document alone, whose `extends` may name a built-in policy; or leave policy.document empty" -}}
{{- end -}}
{{- range $flag, $value := $values -}}
{{- $variable := printf "METADATA_PROXY_%s" ($flag | replace "-" "_" | upper) -}}
{{- range $.Values.extraArgs -}}
{{- if eq (regexReplaceAll "=.*" . "") (printf "--%s" $flag) -}}
{{- fail (printf "extraArgs: instead of %s set %s" . $value) -}}
{{- end -}}
{{- end -}}
{{- range $.Values.env -}}
{{- if eq .name $variable -}}
{{- fail (printf "env: instead of %s set %s" $variable $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $flag := list "google-ca" "sts-endpoint" "iam-endpoint" -}}
{{- range $.Values.extraArgs -}}
{{- if eq (regexReplaceAll "=.*" . "") (printf "--%s" $flag) -}}
{{- fail (printf "extraArgs: instead of %s set METADATA_PROXY_%s in env, which the doctor has, too" . ($flag | replace "-" "_" | upper)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* Variables of the container `redirect`, which `env` does not reach. */}}
{{- $redirects := dict
  "METADATA_PROXY_REDIRECT_TO" "redirect.addresses and port"
  "METADATA_PROXY_REDIRECT_TOOL" "redirect.tool"
  "METADATA_PROXY_REDIRECT_UPLINK" "redirect.uplinks"
  "METADATA_PROXY_STARTUP_TAINT" "redirect.startupTaint"
-}}
{{- range .Values.env -}}
{{- if not (or (kindIs "string" .value) (kindIs "invalid" .value)) -}}
{{- fail (printf "env: the value of %s is not a text, and Kubernetes refuses it: put it in quotes (with --set, take --set-string)" .name) -}}
{{- end -}}
{{- if hasKey $redirects .name -}}
{{- fail (printf "env: instead of %s set %s, for the container that has the redirect" .name (get $redirects .name)) -}}
{{- end -}}
{{- if eq .name "METADATA_PROXY_LOG_FORMAT" -}}
{{- fail "env: instead of METADATA_PROXY_LOG_FORMAT set --log-format in extraArgs, which replaces the chart's flag; a variable does not" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether a text that has the form of an IPv4 address is one. Empty if not. */}}
{{- define "isIPv4" -}}
{{- if regexMatch `^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.|$)){4}$` . -}}
yes
{{- end -}}
{{- end }}

{{/* The redirect refuses these at its start. */}}
{{- define "addresses.check" -}}
{{- $versions := list -}}
{{- range .Values.redirect.addresses -}}
{{- if regexMatch `^(169\.254\.169\.254|fd20:0{0,2}ce(:0{0,4})*:0?254)$` . -}}
{{- fail (printf "redirect.addresses: %s is the metadata server's, and the proxy needs an address of its own: take link-local ones, or of fd20:ce::/64" .) -}}
{{- else if and (not (contains ":" .)) (not (include "isIPv4" .)) -}}
{{- fail (printf "redirect.addresses: %s is no address; the numbers of one are 255 at most" .) -}}
{{- end -}}
{{- if or (hasPrefix "127." .) (has . (list "::1" "0.0.0.0" "::")) -}}
{{- fail (printf "redirect.addresses: %s is no address that pods can be sent to: take link-local ones, or of fd20:ce::/64" .) -}}
{{- end -}}
{{- $versions = append $versions (contains ":" .) -}}
{{- end -}}
{{- if ne (len $versions) (len (uniq $versions)) -}}
{{- fail (printf "redirect.addresses: %s are of one IP version; there is at most one of each" (join " and " .Values.redirect.addresses)) -}}
{{- end -}}
{{- end }}

{{/* Old pods put the rules back while new ones remove them. */}}
{{- define "redirect.remove.check" -}}
{{- if or .Values.redirect.enabled .Values.redirect.startupTaint .Values.canary.enabled -}}
{{- fail (printf "redirect.remove=true is the second of two steps, and nobody may keep the rules, or watch over them, any more. First upgrade with redirect.enabled=false,redirect.startupTaint=,canary.enabled=false, without redirect.remove, and wait: kubectl -n %s rollout status daemonset/gce-metadata-proxy. Then upgrade with redirect.remove=true as well" .Release.Namespace) -}}
{{- end -}}
{{- $running := lookup "apps/v1" "DaemonSet" .Release.Namespace "gce-metadata-proxy" -}}
{{- range (dig "spec" "template" "spec" "containers" list $running) -}}
{{- if eq .name "redirect" -}}
{{- fail (printf "redirect.remove=true is the second of two steps, and the pods that run still keep the rules. First upgrade without redirect.remove, and wait: kubectl -n %s rollout status daemonset/gce-metadata-proxy" $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- /* The template above is of the first step as soon as that is accepted; the status says how far it is. `updatedNumberScheduled`
judges each node by its oldest pod. On a machine that is gone, that is the old one until the Node object is deleted. Availability is not
asked for: a new pod keeps no rules, ready or not. */}}
{{- $isBegun := false -}}
{{- range (dig "spec" "template" "spec" "initContainers" list $running) -}}
{{- $isBegun = or $isBegun (eq .name "redirect-remove") -}}
{{- end -}}
{{- if and $running (not $isBegun) -}}
{{- $updated := int (dig "status" "updatedNumberScheduled" 0 $running) -}}
{{- $wanted := int (dig "status" "desiredNumberScheduled" 0 $running) -}}
{{- if or (lt $updated $wanted) (lt (int (dig "status" "observedGeneration" 0 $running)) (int $running.metadata.generation)) -}}
{{- fail (printf "redirect.remove=true is the second of two steps, and pods of before the first may still keep the rules: %d of %d nodes have a new one. Wait: kubectl -n %s rollout status daemonset/gce-metadata-proxy. A machine that is gone counts until its node is deleted: kubectl delete node NAME" $updated $wanted .Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Fails if nobody would remove the startup taint. */}}
{{- define "startupTaint.check" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if not .Values.redirect.enabled -}}
{{- fail "redirect.startupTaint needs redirect.enabled, whose container removes the taint; without it new nodes would never take pods" -}}
{{- else if semverCompare "<1.30.0-0" $version -}}
{{- fail (printf "redirect.startupTaint needs Kubernetes 1.30 for its admission policy, and this is %s (without a cluster, helm template needs --kube-version)" $version) -}}
{{- end -}}
{{- $taint := .Values.redirect.startupTaint -}}
{{- $isTolerated := false -}}
{{- range .Values.tolerations -}}
{{- $key := dig "key" "" . -}}
{{- $isOfIt := or (eq $key $taint) (and (not $key) (eq (dig "operator" "" .) "Exists")) -}}
{{- $isTolerated = or $isTolerated (and $isOfIt (has (dig "effect" "" .) (list "" "NoSchedule"))) -}}
{{- end -}}
{{- if not $isTolerated -}}
{{- fail (printf "redirect.startupTaint=%s: tolerations does not tolerate it, so the proxy would never run on a new node, nobody would remove the taint, and no pod could be scheduled there; add {key: %s, operator: Exists}" $taint $taint) -}}
{{- end -}}
{{- end }}
