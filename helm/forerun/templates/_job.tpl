{{/*
A Job whose name follows from what it does: the template of a Job cannot be changed, so a changed one is another Job.
Takes [root, component, pod template as text].
*/}}
{{- define "forerun.job" -}}
{{- $root := index . 0 -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "forerun.name" $root }}-{{ index . 1 }}-{{ sha256sum (index . 2) | trunc 8 }}
  labels: {{ include "forerun.labels" (list $root (index . 1)) | nindent 4 }}
spec:
  backoffLimit: 10
  template: {{ index . 2 | nindent 4 }}
{{- end }}

{{- define "forerun.setupPod" -}}
{{- $name := include "forerun.name" . -}}
metadata:
  labels: {{ include "forerun.selector" (list . "setup") | nindent 4 }}
spec:
  {{- include "forerun.pod" (list . "setup") | nindent 2 }}
  restartPolicy: OnFailure
  serviceAccountName: {{ $name }}
  automountServiceAccountToken: false
  initContainers:
    - name: broker
      image: {{ include "forerun.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [broker, setup, --server, {{ include "forerun.natsUrl" . }}, --passwords, /secrets/nats, --replicas, {{ gt (int .Values.nats.replicas) 1 | ternary 3 1 | quote }}, --seconds, "300"{{ include "forerun.natsArguments" . }}]
      securityContext: {{ include "forerun.containerSecurity" . | nindent 8 }}
      resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 256Mi}}
      volumeMounts:
        - {name: passwords, mountPath: /secrets/nats, readOnly: true}
        {{- include "forerun.natsAuthorityMount" . | nindent 8 }}
    {{- if .Values.demo.enabled }}
    - name: demo-policy
      image: {{ include "forerun.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [python, -m, forerun.cli.demo.tools.deployed, policy, --desk-url, "http://{{ $name }}-demo:8080", --project, {{ include "forerun.demoProject" . }}, --seed, {{ .Values.demo.seed | quote }}, --scale, {{ .Values.demo.scale | quote }}, --output, /made/policy.yaml]
      securityContext: {{ include "forerun.containerSecurity" . | nindent 8 }}
      resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 256Mi}}
      volumeMounts:
        - {name: made, mountPath: /made}
    {{- end }}
  containers:
    {{- range $policy, $file := dict "values" "/policy/policy.yaml" "demo" (.Values.demo.enabled | ternary "/made/policy.yaml" "/policy/none.yaml") }}
    - name: publish-{{ $policy }}
      image: {{ include "forerun.image" $ }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      args: [policy, publish, {{ $file }}, --name, {{ $policy }}, --server, {{ include "forerun.natsUrl" $ }}, --password-file, /secrets/nats/operator{{ include "forerun.natsArguments" $ }}]
      securityContext: {{ include "forerun.containerSecurity" $ | nindent 8 }}
      resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 256Mi}}
      volumeMounts:
        - {name: passwords, mountPath: /secrets/nats, readOnly: true}
        - {name: policy, mountPath: /policy, readOnly: true}
        - {name: made, mountPath: /made, readOnly: true}
        {{- include "forerun.natsAuthorityMount" $ | nindent 8 }}
    {{- end }}
  volumes:
    - name: passwords
      secret: {secretName: {{ $name }}-nats, defaultMode: 0440, items: [{key: admin, path: admin}, {key: operator, path: operator}]}
    {{- include "forerun.natsAuthorityVolume" . | nindent 4 }}
    - {name: made, emptyDir: {sizeLimit: 1Mi}}
    - name: policy
      configMap: {name: {{ $name }}-policy-{{ include "forerun.policy" . | sha256sum | trunc 8 }}}
{{- end }}

{{/* Policies and tool servers of the values. JSON is YAML. */}}
{{- define "forerun.policy" -}}
{{ toJson .Values.policy }}
{{- end }}

{{/* Where the demo's project lies on a worker. */}}
{{- define "forerun.demoProject" -}}
/var/lib/forerun-demo/project
{{- end }}
