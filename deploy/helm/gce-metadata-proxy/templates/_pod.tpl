{{/* What pods have in common. */}}

{{/* An image: the root, and the values of the image. */}}
{{- define "image" -}}
image: {{ (index . 1).repository }}:{{ (index . 1).tag | default (index . 0).Chart.AppVersion }}
imagePullPolicy: {{ (index . 0).Values.image.pullPolicy }}
{{- end }}

{{/* Where pods go. */}}
{{- define "placement" -}}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* For a container that writes the node's firewall rules. */}}
{{- define "redirect.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
# Root, because Kubernetes grants capabilities only to root.
runAsUser: 0
runAsGroup: 0
capabilities:
  drop:
    - ALL
  add:
    # This container writes the node's firewall rules.
    - NET_ADMIN
{{- end }}

{{- define "seLinux" -}}
seLinuxOptions:
  type: {{ .Values.seLinuxType }}
{{- end }}

{{- define "nodeName" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{- define "account" -}}
projected:
  sources:
    # A token of the account for one container, and for an hour. With automountServiceAccountToken all would have one, and the
    # API server by default makes such tokens valid for a year.
    - serviceAccountToken:
        path: token
        expirationSeconds: 3600
    - configMap:
        name: kube-root-ca.crt
        items:
          - key: ca.crt
            path: ca.crt
    - downwardAPI:
        items:
          - path: namespace
            fieldRef:
              fieldPath: metadata.namespace
{{- end }}

{{/* Whether extraArgs has a format of the log, which replaces the chart's in all containers. Empty if not. */}}
{{- define "logFormat.isGiven" -}}
{{- if regexMatch `(^|,)--log-format(=|,|$)` (join "," .Values.extraArgs) -}}
yes
{{- end -}}
{{- end }}

{{/* The format of the log, as the proxy has it, for containers that extraArgs does not reach. */}}
{{- define "logFormat" -}}
{{- $format := "json" -}}
{{- range .Values.extraArgs -}}
{{- if hasPrefix "--log-format=" . -}}
{{- $format = trimPrefix "--log-format=" . -}}
{{- end -}}
{{- end -}}
- --log-format={{ $format }}
{{- end }}

{{/* Not an argument, so that commands that are run in the container have it, too. */}}
{{- define "metricsAddr" -}}
{{- if ne (int .Values.metricsPort) 989 -}}
- name: METADATA_PROXY_METRICS_ADDR
  value: 127.0.0.1:{{ .Values.metricsPort }}
{{- end -}}
{{- end }}
