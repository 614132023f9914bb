{{- define "carillon.name" -}}
{{- if contains "carillon" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-carillon" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "carillon.peers" -}}
{{ include "carillon.name" . }}-peers
{{- end }}

{{- define "carillon.selector" -}}
app.kubernetes.io/name: carillon
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "carillon.meta" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "carillon.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "carillon.embedded" -}}
{{- if eq .Values.workload "StatefulSet" }}yes{{ end }}
{{- end }}

{{- /* The settings of the agents. Those of the user override the others. Go listens for IPv4 and IPv6 at 0.0.0.0, and unlike :: it works
on hosts whose kernel has no IPv6. */}}
{{- define "carillon.settings" -}}
{{- $name := include "carillon.name" . }}
{{- $domain := printf "%s.%s.svc" (include "carillon.peers" .) .Release.Namespace }}
{{- $s := dict "data_dir" "/var/lib/carillon/node" "listen" "0.0.0.0:7070" "metrics_listen" "0.0.0.0:7071" "cgroup" "off" }}
{{- $_ := set $s "drain_timeout" (printf "%ds" (int .Values.drainTimeoutSeconds)) }}
{{- $_ := merge $s (dict "tls_cert" "/etc/carillon/tls/tls.crt" "tls_key" "/etc/carillon/tls/tls.key" "tls_ca" "/etc/carillon/tls/ca.crt") }}
{{- if include "carillon.embedded" . }}
{{- $members := dict }}
{{- range $i := until (int .Values.replicas) }}
{{- $_ := set $members (printf "%s-%d" $name $i) (printf "https://%s-%d.%s:2380" $name $i $domain) }}
{{- end }}
{{- $_ := merge $s (dict "embedded" true "initial_cluster" $members "etcd_listen_peer" "https://0.0.0.0:2380") }}
{{- $_ := merge $s (dict "etcd_peer_cert" "/etc/carillon/peer-tls/tls.crt" "etcd_peer_key" "/etc/carillon/peer-tls/tls.key" "etcd_peer_ca" "/etc/carillon/peer-tls/ca.crt") }}
{{- else }}
{{- if not .Values.etcd.endpoints }}
{{- fail "etcd.endpoints is required for this workload: only a StatefulSet has an etcd of its own" }}
{{- end }}
{{- $_ := set $s "etcd_endpoints" .Values.etcd.endpoints }}
{{- if .Values.etcd.secret }}
{{- $_ := merge $s (dict "etcd_ca" "/etc/carillon/etcd/ca.crt" "etcd_cert" "/etc/carillon/etcd/tls.crt" "etcd_key" "/etc/carillon/etcd/tls.key") }}
{{- end }}
{{- if .Values.etcd.user }}
{{- $_ := required "etcd.secret is required with etcd.user: it contains the password" .Values.etcd.secret }}
{{- $_ := merge $s (dict "etcd_user" .Values.etcd.user "etcd_password_file" "/etc/carillon/etcd/password") }}
{{- end }}
{{- end }}
{{- if eq (toString .Values.settings.tls_client_auth) "require" }}
{{- fail "settings.tls_client_auth: require does not work with probes, which have no certificate: use optional" }}
{{- end }}
{{- if hasKey .Values.settings "drain_timeout" }}
{{- fail "settings.drain_timeout does not change how long Kubernetes waits for a pod to stop: use drainTimeoutSeconds" }}
{{- end }}
{{- toYaml (mergeOverwrite $s (deepCopy .Values.settings)) }}
{{- end }}
