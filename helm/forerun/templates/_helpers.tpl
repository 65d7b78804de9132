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
{{- if .Values.nats.enabled }}{{ .Values.tls.enabled | ternary "tls" "nats" }}://{{ include "forerun.name" . }}-nats:4222{{ else }}{{ required "nats.url is needed where nats.enabled is false" .Values.nats.url }}{{ end -}}
{{- end }}

{{/* The Secret with the authority of the broker's certificate; empty where it is none of ours and none was named. */}}
{{- define "forerun.natsAuthority" -}}
{{- if not .Values.nats.enabled }}{{ .Values.nats.caSecret }}{{ else if .Values.tls.enabled }}{{ include "forerun.name" . }}-tls{{ end -}}
{{- end }}

{{/* That authority as a volume. */}}
{{- define "forerun.natsAuthorityVolume" -}}
{{- with include "forerun.natsAuthority" . }}
- name: nats-authority
  secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end }}

{{/* Where it is mounted. */}}
{{- define "forerun.natsAuthorityMount" -}}
{{- if include "forerun.natsAuthority" . }}
- {name: nats-authority, mountPath: /secrets/nats-authority, readOnly: true}
{{- end }}
{{- end }}

{{/* Further arguments of a command that connects to the broker. */}}
{{- define "forerun.natsArguments" -}}
{{- if include "forerun.natsAuthority" . }}, --ca-file, /secrets/nats-authority/ca.crt{{ end }}
{{- end }}

{{/* Says something where the predictor's small model is none of those that are served here. */}}
{{- define "forerun.smallModelElsewhere" -}}
{{- with .Values.predictor.settings.small_model }}
{{- $url := dig "url" "" (kindIs "string" . | ternary (fromJson (toString .)) .) }}
{{- if not (and $.Values.serving.enabled (eq $url (printf "kserve://%s-serving:8001" (include "forerun.name" $)))) }}elsewhere{{ end }}
{{- end }}
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

{{/* The names in the certificate of services and broker; the first is what services know each other by. */}}
{{- define "forerun.tlsNames" -}}
{{- $name := include "forerun.name" . -}}
{{- $names := list (printf "%s-services" $name) $name }}
{{- range list "" ".svc" ".svc.cluster.local" }}{{ $names = append $names (printf "%s.%s%s" $name $.Release.Namespace .) }}{{ end }}
{{- if .Values.nats.enabled }}
{{- $names = append $names (printf "%s-nats" $name) }}
{{- if gt (int .Values.nats.replicas) 1 }}{{ range $number := until (int .Values.nats.replicas) }}{{ $names = append $names (printf "%s-nats-%d.%s-nats-peers" $name $number $name) }}{{ end }}{{ end }}
{{- end }}
{{- toJson (concat $names (list "localhost" "127.0.0.1") .Values.tls.names) -}}
{{- end }}

{{/* Name of the workers' Deployment, and of the pool that sizes it. */}}
{{- define "forerun.pool" -}}
{{ include "forerun.name" . }}-sandbox
{{- end }}
