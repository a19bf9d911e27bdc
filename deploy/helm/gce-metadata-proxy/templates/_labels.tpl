{{/* What every object carries: the root, and the name. The first line is what selects, and never changes. */}}
{{- define "labels.of" -}}
{{- with index . 0 -}}
app.kubernetes.io/name: {{ index $ 1 }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}
{{- end }}

{{- define "labels" -}}
{{- include "labels.of" (list . "gce-metadata-proxy") -}}
{{- end }}

{{- define "canary.labels" -}}
{{- include "labels.of" (list . "gce-metadata-proxy-canary") -}}
{{- end }}

{{/* The Job `identity doctor` is not selected as the proxy is. */}}
{{- define "identity.doctor.labels" -}}
{{- include "labels.of" (list . "gce-metadata-proxy-doctor") }}
app.kubernetes.io/component: doctor
{{- end }}

{{/* What `helm uninstall` leaves as long as the redirect's rules are kept: without its proxy, all pods of a node are cut off, and
without the right to remove the startup taint new nodes take none. An upgrade leaves these too, when it has them no more. */}}
{{- define "keep" -}}
{{- if .Values.redirect.enabled -}}
helm.sh/resource-policy: keep
{{- end -}}
{{- end }}
