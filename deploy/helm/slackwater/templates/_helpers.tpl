{{- /* What its objects' names begin with: short enough that a pool's pods have names of at most 63 characters. */}}
{{- define "slackwater.fullname" -}}
{{- $own := ternary .Release.Name (printf "%s-slackwater" .Release.Name) (contains "slackwater" .Release.Name) }}
{{- .Values.fullnameOverride | default $own | replace "." "-" | trunc 26 | trimSuffix "-" }}
{{- end }}

{{- /* Labels that select pods. root, component (empty: all of the release's). */}}
{{- define "slackwater.selector" -}}
app.kubernetes.io/name: slackwater
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- /* As slackwater.selector. */}}
{{- define "slackwater.labels" -}}
{{ include "slackwater.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* root, name. */}}
{{- define "slackwater.image" -}}
{{- with .root.Values.image -}}
image: {{ with .registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $.name }}:{{ .tag | default $.root.Chart.AppVersion }}
imagePullPolicy: {{ .pullPolicy }}
{{- end }}
{{- end }}

{{- /* Of every pod. A Service's name would otherwise set variables like SLACKWATER_PORT, which are settings. */}}
{{- define "slackwater.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Where pods go. The values of a service. */}}
{{- define "slackwater.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Pods of one kind on nodes of their own, as far as there are some. root, component. */}}
{{- define "slackwater.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "slackwater.selector" . | nindent 8 }}
{{- end }}

{{- /* Of every container. */}}
{{- define "slackwater.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- /* A setting as text: lists with commas, whole numbers without an exponent. */}}
{{- define "slackwater.value" -}}
{{- if kindIs "slice" . }}{{ join "," . }}
{{- else if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}
{{- else }}{{ . }}{{ end }}
{{- end }}

{{- /* Settings by their names, as variables. */}}
{{- define "slackwater.settings" -}}
{{- range $name, $value := . }}
- name: SLACKWATER_{{ upper $name }}
  value: {{ include "slackwater.value" $value | quote }}
{{- end }}
{{- end }}

{{- /* The Service of the NATS chart, by that chart's own rule. */}}
{{- define "slackwater.bus.host" -}}
{{- $own := ternary .Release.Name (printf "%s-nats" .Release.Name) (contains "nats" .Release.Name) }}
{{- .Values.nats.fullnameOverride | default $own | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "slackwater.bus.url" -}}
{{- $own := printf "%s://%s:4222" (ternary "tls" "nats" .Values.bus.secured) (include "slackwater.bus.host" .) }}
{{- .Values.bus.url | default $own }}
{{- end }}

{{- /* How many servers NATS's own chart starts. */}}
{{- define "slackwater.bus.servers" -}}
{{- $cluster := dig "config" "cluster" dict (.Values.nats | toJson | fromJson) }}
{{- ternary $cluster.replicas 1 (default false $cluster.enabled) }}
{{- end }}

{{- /* Copies of what is stored. That chart has its servers tell clients nothing of each other (no_advertise), so a
       service cannot count them. */}}
{{- define "slackwater.bus.replicas" -}}
{{- $own := "auto" }}
{{- if .Values.nats.enabled }}
{{- $own = ternary 3 1 (ge (int (include "slackwater.bus.servers" .)) 3) }}
{{- end }}
{{- ternary $own .Values.bus.replicas (eq (toString .Values.bus.replicas) "auto") }}
{{- end }}

{{- /* What every service has. */}}
{{- define "slackwater.env" -}}
- name: HOME # what libraries cache goes to the scratch volume
  value: /tmp
- name: SLACKWATER_LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: SLACKWATER_NATS
  value: {{ include "slackwater.bus.url" . | quote }}
- name: SLACKWATER_NATS_REPLICAS
  value: {{ include "slackwater.bus.replicas" . | quote }}
{{- if .Values.bus.secured }}
- name: SLACKWATER_NATS_CREDS
  value: /etc/slackwater/bus/seed
- name: SLACKWATER_NATS_CA
  value: /etc/slackwater/bus/ca.pem
{{- end }}
{{- end }}

{{- define "slackwater.mounts" -}}
- name: scratch
  mountPath: /tmp
{{- if .Values.bus.secured }}
- name: bus
  mountPath: /etc/slackwater/bus
  readOnly: true
{{- end }}
{{- end }}

{{- /* root, component: the role whose credentials it has. */}}
{{- define "slackwater.volumes" -}}
- name: scratch
  emptyDir: {}
{{- if .root.Values.bus.secured }}
- name: bus
  secret:
    secretName: {{ .root.Values.bus.credentials.secretPrefix }}-{{ .component }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- /* Readiness over the bus. Nobody is restarted because the bus is away: there is no liveness probe beside it.
       The name that the service answers by. */}}
{{- define "slackwater.busProbe" -}}
readinessProbe:
  exec:
    command: [sh, -c, 'python -m shared.process.healthcheck "{{ . }}"']
  initialDelaySeconds: 5
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 3
{{- end }}

{{- /* The Secret with the key that may do everything, under api-key. */}}
{{- define "slackwater.apiKey" -}}
{{ .Values.gateway.apiKey.existingSecret | default (printf "%s-api-key" (include "slackwater.fullname" .)) }}
{{- end }}

{{- /* A map with what another one has in its place, key by key, 0 and false too; as JSON. base, over. */}}
{{- define "slackwater.overlay" -}}
{{- $made := deepCopy .base }}
{{- range $key, $value := .over }}
{{- $_ := set $made $key $value }}
{{- end }}
{{- toJson $made }}
{{- end }}

{{- /* A pool: executorDefaults with what it has in their place, of settings and strategy key by key; as JSON. root,
       pool. */}}
{{- define "slackwater.pool" -}}
{{- $defaults := .root.Values.executorDefaults }}
{{- $made := include "slackwater.overlay" (dict "base" $defaults "over" .pool) | fromJson }}
{{- range $table := list "settings" "strategy" }}
{{- $own := dict "base" (get $defaults $table | default dict) "over" (get $.pool $table | default dict) }}
{{- $_ := set $made $table (include "slackwater.overlay" $own | fromJson) }}
{{- end }}
{{- toJson $made }}
{{- end }}
