{{/* Fails with a sentence if nobody would remove the startup taint. */}}
{{- define "startupTaint.check" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if not .Values.redirect.enabled -}}
{{- fail "redirect.startupTaint needs redirect.enabled, whose container removes the taint; without it new nodes would never take pods" -}}
{{- else if semverCompare "<1.30.0-0" $version -}}
{{- fail (printf "redirect.startupTaint needs Kubernetes 1.30 for its admission policy, and this is %s (without a cluster, helm template needs --kube-version)" $version) -}}
{{- end -}}
{{- end }}
