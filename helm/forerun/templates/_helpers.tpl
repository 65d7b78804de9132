{{- define "forerun.name" -}}
{{- if contains "forerun" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-forerun{{ end -}}
{{- end }}

{{- define "forerun.version" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "forerun.image" -}}
{{ .Values.image.repository }}:{{ include "forerun.version" . }}
{{- end }}

{{- define "forerun.sandboxImage" -}}
{{ .Values.sandboxImage.repository }}:{{ .Values.sandboxImage.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What pods are selected by: never changes in the life of a release. Takes [root, component]. */}}
{{- define "forerun.selector" -}}
app.kubernetes.io/name: forerun
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* The same as a label selector in one line. Takes [root, component]. */}}
{{- define "forerun.match" -}}
{{ dict "matchLabels" (include "forerun.selector" . | fromYaml) | toJson }}
{{- end }}

{{/* Takes [root, component]. */}}
{{- define "forerun.labels" -}}
{{ include "forerun.selector" . }}
app.kubernetes.io/part-of: forerun
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{- define "forerun.natsUrl" -}}
{{- if .Values.nats.enabled }}nats://{{ include "forerun.name" . }}-nats:4222{{ else }}{{ required "nats.url is needed where nats.enabled is false" .Values.nats.url }}{{ end -}}
{{- end }}

{{- define "forerun.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "forerun.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What all pods have in common. Takes [root, component]. */}}
{{- define "forerun.pod" -}}
{{- $root := index . 0 }}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext: {{ include "forerun.podSecurity" $root | nindent 2 }}
{{- end }}

{{/* Spread over nodes and zones where there are any. Takes [root, component]. */}}
{{- define "forerun.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {{ include "forerun.match" $ }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}

{{/* Waits until the broker holds what a service needs. Takes [root, user]. */}}
{{- define "forerun.waitForBroker" -}}
{{- $root := index . 0 -}}
- name: wait-for-broker
  image: {{ include "forerun.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args: [broker, wait, --server, {{ include "forerun.natsUrl" $root }}, --user, {{ index . 1 }}, --password-file, /secrets/nats/{{ index . 1 }}, --seconds, "300"]
  securityContext: {{ include "forerun.containerSecurity" $root | nindent 4 }}
  resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {memory: 256Mi}}
  volumeMounts:
    - {name: nats, mountPath: /secrets/nats, readOnly: true}
{{- end }}

{{/* The names in the services' certificate; the first is what services know each other by. */}}
{{- define "forerun.tlsNames" -}}
{{- $name := include "forerun.name" . -}}
{{- $names := list (printf "%s-services" $name) $name }}
{{- range list "" ".svc" ".svc.cluster.local" }}{{ $names = append $names (printf "%s.%s%s" $name $.Release.Namespace .) }}{{ end }}
{{- toJson (concat $names (list "localhost" "127.0.0.1") .Values.tls.names) -}}
{{- end }}

{{/* Name of the workers' Deployment, and of the pool that sizes it. */}}
{{- define "forerun.pool" -}}
{{ include "forerun.name" . }}-sandbox
{{- end }}
