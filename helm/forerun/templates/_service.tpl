{{/*
The pod template of one service. Takes a dict: root, name (of the service), values (its part of the values), port,
image, environment (further settings), volumes, mounts, inits (containers that run before), account (of one that asks the API server).
*/}}
{{- define "forerun.servicePod" -}}
{{- $root := .root -}}
{{- $prefix := printf "FORERUN_%s" (upper .name) -}}
metadata:
  labels: {{ include "forerun.labels" (list $root .name) | nindent 4 }}
spec:
  {{- include "forerun.pod" (list $root .name) | nindent 2 }}
  {{- include "forerun.spread" (list $root .name) | nindent 2 }}
  automountServiceAccountToken: {{ not (empty .account) }}
  serviceAccountName: {{ .account | default (include "forerun.name" $root) }}
  # The drain, the service's own bound of 20 s, its forced steps of 10 s, and a margin.
  terminationGracePeriodSeconds: {{ add 35 $root.Values.drainSeconds }}
  {{- with .runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- if .shareProcesses }}
  # The pod's first process takes what commands leave behind, as an init does.
  shareProcessNamespace: true
  {{- end }}
  {{- with .inits }}
  initContainers:
    {{- range . }}
    - name: {{ .name }}
      image: {{ $.image }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: {{ toJson .command }}
      securityContext: {{ include "forerun.containerSecurity" $root | nindent 8 }}
      resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {memory: 256Mi}}
      volumeMounts: {{ toJson .volumeMounts }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .name }}
      image: {{ .image }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: [{{ .name }}]
      securityContext: {{ include "forerun.containerSecurity" $root | nindent 8 }}
      ports:
        - {name: grpc, containerPort: {{ .port }}}
        - {name: metrics, containerPort: 9400}
        - {name: health, containerPort: 9401}
      env:
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: {{ $prefix }}_LISTEN_ADDRESS, value: "0.0.0.0:{{ .port }}"}
        - {name: {{ $prefix }}_METRICS_ADDRESS, value: "0.0.0.0:9400"}
        - {name: {{ $prefix }}_NATS_URL, value: {{ include "forerun.natsUrl" $root | quote }}}
        {{- if include "forerun.natsAuthority" $root }}
        - {name: {{ $prefix }}_NATS_CA_FILE, value: /secrets/nats-authority/ca.crt}
        {{- end }}
        # Less than the startup probe allows: whoever waits for the broker is not begun again meanwhile.
        - {name: {{ $prefix }}_NATS_CONNECT_SECONDS, value: "240"}
        - {name: {{ $prefix }}_NATS_PASSWORD_FILE, value: /secrets/nats/{{ .name }}}
        - {name: {{ $prefix }}_INTERNAL_TOKEN_FILE, value: /secrets/internal/token}
        - {name: {{ $prefix }}_HEALTH_ADDRESS, value: "0.0.0.0:9401"}
        {{- if $root.Values.tls.enabled }}
        - {name: {{ $prefix }}_TLS_CERTIFICATE_FILE, value: /secrets/tls/tls.crt}
        - {name: {{ $prefix }}_TLS_KEY_FILE, value: /secrets/tls/tls.key}
        - {name: {{ $prefix }}_TLS_CA_FILE, value: /secrets/tls/ca.crt}
        - {name: {{ $prefix }}_TLS_SERVER_NAME, value: {{ include "forerun.name" $root }}-services}
        {{- if eq .name "orchestrator" }}
        # Agents prove who they are with tokens.
        - {name: {{ $prefix }}_TLS_ASK_CLIENTS, value: "false"}
        {{- end }}
        {{- end }}
        - {name: {{ $prefix }}_DRAIN_SECONDS, value: {{ $root.Values.drainSeconds | quote }}}
        {{- range $key, $value := .environment }}
        - {name: {{ $prefix }}_{{ upper $key }}, value: {{ $value | quote }}}
        {{- end }}
        {{- range $key, $value := .values.settings }}
        - {name: {{ $prefix }}_{{ upper $key }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}}
        {{- end }}
      # Only whether the event loop answers: a broker that is away is no reason to restart everything else.
      livenessProbe: {grpc: {port: 9401, service: liveness}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
      readinessProbe: {grpc: {port: 9401}, periodSeconds: 2, timeoutSeconds: 2}
      startupProbe: {grpc: {port: 9401, service: liveness}, periodSeconds: 1, timeoutSeconds: 2, failureThreshold: 300}
      resources: {{ toYaml .values.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: nats, mountPath: /secrets/nats, readOnly: true}
        {{- include "forerun.natsAuthorityMount" $root | nindent 8 }}
        - {name: internal, mountPath: /secrets/internal, readOnly: true}
        {{- if $root.Values.tls.enabled }}
        - {name: tls, mountPath: /secrets/tls, readOnly: true}
        {{- end }}
        {{- range .mounts }}
        - {{ toYaml . | nindent 10 }}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {sizeLimit: 256Mi}}
    - name: nats
      secret: {secretName: {{ include "forerun.name" $root }}-nats, defaultMode: 0440, items: [{key: {{ .name }}, path: {{ .name }}}]}
    {{- include "forerun.natsAuthorityVolume" $root | nindent 4 }}
    - name: internal
      secret: {secretName: {{ include "forerun.name" $root }}-internal, defaultMode: 0440}
    {{- if $root.Values.tls.enabled }}
    - name: tls
      secret: {secretName: {{ include "forerun.name" $root }}-tls, defaultMode: 0440}
    {{- end }}
    {{- range .volumes }}
    - {{ toYaml . | nindent 6 }}
    {{- end }}
{{- end }}

{{/*
A Deployment of one service, and where it has several pods its PodDisruptionBudget. Takes the same dict, and where somebody
else decides on the number of pods: scaled (true), most (pods at most).
*/}}
{{- define "forerun.serviceDeployment" -}}
{{- $root := .root -}}
{{- $replicas := int (.values.replicas | default 1) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "forerun.name" $root }}-{{ .name }}
  labels: {{ include "forerun.labels" (list $root .name) | nindent 4 }}
spec:
  {{- if not .scaled }}
  replicas: {{ $replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  # A new pod serves before an old one goes; where one owns its data the old one goes first.
  {{- if .single }}
  strategy: {type: Recreate}
  {{- else }}
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  {{- end }}
  selector: {{ include "forerun.match" (list $root .name) }}
  template: {{ include "forerun.servicePod" . | nindent 4 }}
{{- if and $root.Values.podDisruptionBudgets.enabled (gt (ternary (int .most) $replicas (eq .scaled true)) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "forerun.name" $root }}-{{ .name }}
  labels: {{ include "forerun.labels" (list $root .name) | nindent 4 }}
spec:
  maxUnavailable: 1
  selector: {{ include "forerun.match" (list $root .name) }}
{{- end }}
{{- end }}

{{/* A headless Service, so that clients see every pod. Takes [root, name, port]. */}}
{{- define "forerun.headless" -}}
{{- $root := index . 0 -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "forerun.name" $root }}-{{ index . 1 }}
  labels: {{ include "forerun.labels" (list $root (index . 1)) | nindent 4 }}
spec:
  clusterIP: None
  selector: {{ include "forerun.selector" (list $root (index . 1)) | nindent 4 }}
  ports:
    - {name: grpc, port: {{ index . 2 }}, targetPort: grpc, appProtocol: grpc}
{{- end }}
