{{- define "murmurate.labels" -}}
app.kubernetes.io/name: murmurate
app.kubernetes.io/part-of: murmurate
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "murmurate.peers" -}}
app.kubernetes.io/name: murmurate
app.kubernetes.io/component: peer
{{- end }}

{{- define "murmurate.coordinator" -}}
app.kubernetes.io/name: murmurate
app.kubernetes.io/component: coordinator
{{- end }}

{{- define "murmurate.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end }}
{{- end }}

{{/* A table of sections as TOML: numbers, texts, lists and yes or no look the same in JSON. */}}
{{- define "murmurate.toml" -}}
{{- range $section, $keys := . }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{ end }}
{{- end }}

{{- define "murmurate.nodeToml" -}}
{{- $fixed := dict "metrics" (dict "listen" "0.0.0.0:9464") }}
{{- if .Values.coordinator.enabled }}
{{- $_ := set $fixed "train" (dict "mode" "ist") }}
{{- $_ := set $fixed "ist" (dict "coordinator" "murmurate-coordinator:7100") }}
{{- else }}
{{- $_ := set $fixed "node" (dict "listen" "0.0.0.0:7000" "peers" (list "dns:murmurate:7000") "insecure" true) }}
{{- $_ := set $fixed "checkpoint" (dict "dir" "/var/lib/murmurate/node") }}
{{- end }}
{{- include "murmurate.toml" (mergeOverwrite (deepCopy .Values.config) $fixed) }}
{{- end }}

{{- define "murmurate.coordinatorToml" -}}
{{- $it := dict "run" .Values.config.node.run "listen" "0.0.0.0:7100" "insecure" true }}
{{- $train := merge (deepCopy .Values.coordinator.train) (dict "workload" .Values.config.train.workload) }}
{{- $kept := dict "dir" "/var/lib/murmurate/coordinator" }}
{{- include "murmurate.toml" (dict "coordinator" $it "train" $train "checkpoint" $kept "metrics" (dict "listen" "0.0.0.0:9464")) }}
{{- end }}

{{- define "murmurate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "murmurate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
