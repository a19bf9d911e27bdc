{{/* Lists of the DaemonSet `gce-metadata-proxy`, of which each may be empty. */}}

{{- define "proxy.env" -}}
{{- if .Values.policy.document }}
# Not an argument, so that `explain`, which is run in the container, judges by it, too.
- name: METADATA_PROXY_POLICY
  value: /etc/gce-metadata-proxy/policy.yaml
{{- end }}
{{ include "common.env" . }}
{{- end }}

{{/* How many seconds a pod may take to end, after which the kubelet kills it. A value without a unit is refused by the proxy. */}}
{{- define "gracePeriod" -}}
{{- $drain := "" -}}
{{- range .Values.env -}}
{{- if eq .name "METADATA_PROXY_DRAIN_TIMEOUT" -}}
{{- $drain = .value | default "" -}}
{{- end -}}
{{- end -}}
{{- /* A flag goes before a variable. */}}
{{- range .Values.extraArgs -}}
{{- if hasPrefix "--drain-timeout=" . -}}
{{- $drain = trimPrefix "--drain-timeout=" . -}}
{{- end -}}
{{- end -}}
{{- $seconds := regexFind "^[0-9]+" $drain | int -}}
{{- if hasSuffix "ms" $drain -}}
{{- $seconds = div $seconds 1000 -}}
{{- else if hasSuffix "m" $drain -}}
{{- $seconds = mul $seconds 60 -}}
{{- end -}}
{{- max 30 (add $seconds 5) -}}
{{- end }}

{{/* What the doctor has, too. */}}
{{- define "common.env" -}}
{{- if .Values.identity.enabled }}
{{- include "identity.env" . }}
{{- end }}
{{ include "metricsAddr" . }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "proxy.volumeMounts" -}}
{{- if .Values.policy.document }}
- name: policy
  mountPath: /etc/gce-metadata-proxy
  readOnly: true
{{- end }}
{{- if .Values.identity.enabled }}
{{ include "identity.volumeMounts" . }}
{{- end }}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where pods are redirected to, if that is not the default: a list of HOST:PORT. */}}
{{- define "addresses" -}}
{{- if or .Values.redirect.addresses (ne (int .Values.port) 988) }}
{{- range .Values.redirect.addresses | default (list "169.254.169.252" "fd20:ce::252") }}
- {{ printf (ternary "[%s]:%d" "%s:%d" (contains ":" .)) . (int $.Values.port) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "redirect.env" -}}
{{- with include "addresses" . | fromYamlArray }}
- name: METADATA_PROXY_REDIRECT_TO
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.redirect }}
{{- with .startupTaint }}
{{ include "nodeName" $ }}
- name: METADATA_PROXY_STARTUP_TAINT
  value: {{ . }}
{{ include "metricsAddr" $ }}
{{- end }}
{{- with .allow }}
- name: METADATA_PROXY_REDIRECT_ALLOW
  value: {{ join "," . | quote }}
{{- end }}
{{- if ne (toString .dropSpoofed) "auto" }}
- name: METADATA_PROXY_REDIRECT_DROP_SPOOFED
  value: {{ .dropSpoofed | quote }}
{{- end }}
{{- if ne (int .maxNewConnections) 500 }}
- name: METADATA_PROXY_REDIRECT_MAX_NEW_CONNECTIONS
  value: {{ int .maxNewConnections | quote }}
{{- end }}
{{- with .tool }}
- name: METADATA_PROXY_REDIRECT_TOOL
  value: {{ . }}
{{- end }}
{{- with .uplinks }}
- name: METADATA_PROXY_REDIRECT_UPLINK
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "volumes" -}}
{{- if .Values.policy.document }}
- name: policy
  configMap:
    name: gce-metadata-proxy-policy
{{- end }}
{{- if .Values.identity.enabled }}
{{ include "identity.volumes" . }}
{{- end }}
{{- if .Values.redirect.startupTaint }}
- name: redirect-account
  {{- include "account" . | nindent 2 }}
{{- end }}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
