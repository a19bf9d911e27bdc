{{/* Workload Identity: what components/identity and the three ways to the API server add to the DaemonSet. */}}

{{/* The workload identity provider. Empty if there is none, or if that is said. */}}
{{- define "identity.provider" -}}
{{- if ne .Values.identity.workloadIdentityProvider "none" -}}
{{- .Values.identity.workloadIdentityProvider -}}
{{- end -}}
{{- end }}

{{/* The audience of pods' Kubernetes tokens. Empty if pods get no tokens of their own. */}}
{{- define "identity.audience" -}}
{{- .Values.identity.tokenAudience | default .Values.identity.workloadPool | default (include "identity.provider" .) -}}
{{- end }}

{{/* Fails with a sentence if the values contradict each other, which a schema can say only obscurely. */}}
{{- define "identity.check" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- $provider := include "identity.provider" . -}}
{{- with .Values.identity -}}
{{- if and .workloadPool .workloadIdentityProvider -}}
{{- fail "identity: workloadPool and workloadIdentityProvider are both set; set the one that Google knows this cluster by" -}}
{{- else if and .workloadPool (not .clusterUri) -}}
{{- fail "identity.workloadPool needs identity.clusterUri, such as https://container.googleapis.com/v1/projects/PROJECT/locations/LOCATION/clusters/CLUSTER" -}}
{{- else if and .clusterUri (not .workloadPool) -}}
{{- fail "identity.clusterUri needs identity.workloadPool; a workload identity provider has no cluster URI" -}}
{{- else if not (or .workloadPool $provider) -}}
{{- if .tokenAudience -}}
{{- fail "identity.tokenAudience needs identity.workloadPool or identity.workloadIdentityProvider" -}}
{{- else if eq .access "fenced" -}}
{{- fail "identity.access fenced needs identity.workloadPool or identity.workloadIdentityProvider, whose tokens the admission policy allows" -}}
{{- else if .shortTokens -}}
{{- fail "identity.shortTokens needs identity.workloadPool or identity.workloadIdentityProvider, whose tokens it bounds" -}}
{{- else if eq .prefetch "all" -}}
{{- fail "identity.prefetch=all needs identity.workloadPool or identity.workloadIdentityProvider, whose tokens it fetches" -}}
{{- else if ne .workloadIdentityProvider "none" -}}
{{- fail "identity.enabled needs what Google knows this cluster by: identity.workloadIdentityProvider, or of a GKE cluster identity.workloadPool and identity.clusterUri. Without it pods lose the node's tokens, which they have now, and get none of their own; if that is wanted, set identity.workloadIdentityProvider=none" -}}
{{- end -}}
{{- end -}}
{{- if and .shortTokens (semverCompare "<1.30.0-0" $version) -}}
{{- fail (printf "identity.shortTokens needs Kubernetes 1.30 for its admission policy, and this is %s (without a cluster, helm template needs --kube-version)" $version) -}}
{{- end -}}
{{- if and (eq .access "own-node") (semverCompare "<1.35.0-0" $version) -}}
{{- fail (printf "identity.access own-node needs Kubernetes 1.36 (or 1.35 with the feature gate ConstrainedImpersonation), and this is %s; use kubelet from 1.34 on, or before that and on a managed cluster fenced (without a cluster, helm template needs --kube-version)" $version) -}}
{{- else if and (eq .access "fenced") (semverCompare "<1.30.0-0" $version) -}}
{{- fail (printf "identity.access fenced needs Kubernetes 1.30 for its admission policy, and this is %s; before that, no access gives pods tokens by itself (docs/identity-operations.md, Rights; without a cluster, helm template needs --kube-version)" $version) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Fails with a sentence if somebody described the cluster to Google and forgot to turn Workload Identity on. */}}
{{- define "identity.off.check" -}}
{{- $idle := list -}}
{{- range $name := list "workloadPool" "clusterUri" "workloadIdentityProvider" "tokenAudience" "shortTokens" -}}
{{- if index $.Values.identity $name -}}
{{- $idle = append $idle (printf "identity.%s" $name) -}}
{{- end -}}
{{- end -}}
{{- with $idle -}}
{{- fail (printf "without identity.enabled these have no effect, and all pods get the node's tokens: %s. Set identity.enabled=true; or, if that is wanted, set these to null" (join ", " .)) -}}
{{- end -}}
{{- end }}

{{- define "identity.args" -}}
- --workload-identity
{{- end }}

{{- define "identity.env" -}}
{{- if eq .Values.identity.access "kubelet" }}
# Not an argument, so that commands that are run in the container (`identity doctor`) have it, too.
- name: METADATA_PROXY_KUBECONFIG
  value: {{ .Values.identity.kubeconfig }}
{{- else if eq .Values.identity.access "fenced" }}
# Not an argument, so that commands that are run in the container (`identity doctor`) have it, too.
- name: METADATA_PROXY_IMPERSONATE_NODE
  value: "false"
{{- end }}
{{ include "nodeName" . }}
# Empty is not set.
- name: METADATA_PROXY_WORKLOAD_POOL
  value: {{ .Values.identity.workloadPool | quote }}
- name: METADATA_PROXY_CLUSTER_URI
  value: {{ .Values.identity.clusterUri | quote }}
- name: METADATA_PROXY_WORKLOAD_IDENTITY_PROVIDER
  value: {{ .Values.identity.workloadIdentityProvider | quote }}
- name: METADATA_PROXY_TOKEN_AUDIENCE
  value: {{ include "identity.audience" . | quote }}
- name: METADATA_PROXY_PASSTHROUGH
  value: {{ join "," .Values.identity.passthrough | quote }}
{{- if include "identity.audience" . }}
# Without tokens of pods there is nothing to fetch, and the proxy refuses it.
- name: METADATA_PROXY_PREFETCH
  value: {{ .Values.identity.prefetch | quote }}
{{- end }}
# A new version takes over tokens from the pod before it, if both are pods of this DaemonSet.
- name: METADATA_PROXY_HANDOVER
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: METADATA_PROXY_STATE_DIR
  value: /var/lib/gce-metadata-proxy
{{- end }}

{{- define "identity.volumeMounts" -}}
- name: host-proc
  mountPath: /host/proc
  readOnly: true
  mountPropagation: None
  {{- if ne .Values.identity.access "kubelet" }}
  # Also what is mounted in it, where the node's container runtime can do that.
  recursiveReadOnly: IfPossible
  {{- end }}
- name: empty
  mountPath: /host/proc/sys
  readOnly: true
- name: state
  # The only place that the container can write to.
  mountPath: /var/lib/gce-metadata-proxy
{{- if eq .Values.identity.access "kubelet" }}
# Where they are on the node, because the kubeconfig and a symbolic link name the certificate by its path there.
- name: kubelet-kubeconfig
  mountPath: {{ .Values.identity.kubeconfig }}
  readOnly: true
{{- with .Values.identity.kubeletPki }}
- name: kubelet-pki
  mountPath: {{ . }}
  readOnly: true
{{- end }}
{{- else }}
- name: account
  # Where Kubernetes' clients look for it.
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}
{{- end }}

{{- define "identity.volumes" -}}
- name: host-proc
  # Which process is of which pod, and which addresses a pod's network has: the files `stat`, `cgroup`,
  # `net/fib_trie`, `net/fib_triestat` and `net/if_inet6` of each process. Everybody may read these, so neither hostPID nor a
  # capability such as SYS_PTRACE is needed. Where SELinux confines containers (OpenShift for one), the
  # container needs `seLinuxType: spc_t`; AppArmor's usual profiles allow it. A /proc that was
  # mounted with hidepid does not show them. The proxy says so at its start and does not serve.
  hostPath:
    path: /proc
    type: Directory
# Over the node's /proc/sys, because a read-only mount does not make the mounts in it read-only, and whoever can
# write to /proc/sys/fs/binfmt_misc can run programs on the node.
- name: empty
  emptyDir: {}
# Which pods are known, by UID: namespace, name and account, nothing secret. It outlives the container and a restart of
# the node, so that a proxy that starts while the API server is away knows the pods that run. It ends with the pod, so that
# a new version must reach the API server itself before it replaces the one that runs.
- name: state
  emptyDir: {}
{{- if eq .Values.identity.access "kubelet" }}
- name: kubelet-kubeconfig
  # The file alone: its directory has an administrator's credential on control-plane nodes.
  hostPath:
    path: {{ .Values.identity.kubeconfig }}
    type: File
{{- with .Values.identity.kubeletPki }}
- name: kubelet-pki
  # The directory, because the kubelet replaces its certificate there. The key of its own server is in it, too.
  hostPath:
    path: {{ . }}
    type: Directory
{{- end }}
{{- else }}
- name: account
  {{- include "account" . | nindent 2 }}
{{- end }}
{{- end }}
