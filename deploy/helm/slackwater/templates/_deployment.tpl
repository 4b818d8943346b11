{{- /* A service that speaks on the bus alone. root, component, image, values (its own), strategy; settings (more of
       them); model (that it is for); claim (of its cache folder). */}}
{{- define "slackwater.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "slackwater.fullname" .root }}-{{ .component }}{{ with .model }}{{ if ne .short "default" }}-{{ .short }}{{ end }}{{ end }}
  labels:
    {{- include "slackwater.labels" . | nindent 4 }}
spec:
  replicas: {{ ternary .values.replicas 1 (hasKey .values "replicas") }}
  strategy:
    type: {{ .strategy }}
  selector:
    matchLabels:
      {{- include "slackwater.selector" . | nindent 6 }}
      {{- with .model }}
      model: {{ .short }}
      {{- end }}
  template:
    metadata:
      labels:
        {{- include "slackwater.labels" . | nindent 8 }}
        {{- with .model }}
        model: {{ .short }}
        {{- end }}
    spec:
      {{- include "slackwater.pod" .root | nindent 6 }}
      {{- include "slackwater.placement" .values | nindent 6 }}
      {{- include "slackwater.spread" . | nindent 6 }}
      terminationGracePeriodSeconds: 30
      {{- if .model }}
      initContainers:
        {{- include "slackwater.model.init" . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          {{- include "slackwater.image" (dict "root" .root "name" .image) | nindent 10 }}
          env:
            {{- include "slackwater.env" .root | nindent 12 }}
            {{- if .model }}
            {{- include "slackwater.model.env" .model | nindent 12 }}
            {{- include "slackwater.model.served" .model | nindent 12 }}
            {{- include "slackwater.model.others" . | nindent 12 }}
            {{- end }}
            {{- include "slackwater.settings" .settings | nindent 12 }}
            {{- include "slackwater.settings" .values.settings | nindent 12 }}
          {{- include "slackwater.busProbe" .component | nindent 10 }}
          volumeMounts:
            {{- include "slackwater.mounts" .root | nindent 12 }}
            {{- if .model }}
            {{- include "slackwater.model.mount" .root | nindent 12 }}
            {{- end }}
            {{- if .claim }}
            - name: cache
              mountPath: /var/lib/slackwater
            {{- end }}
          resources:
            {{- toYaml .values.resources | nindent 12 }}
          {{- include "slackwater.container" .root | nindent 10 }}
      volumes:
        {{- include "slackwater.volumes" . | nindent 8 }}
        {{- if .model }}
        {{- include "slackwater.model.volume" .root | nindent 8 }}
        {{- end }}
        {{- with .claim }}
        - name: cache
          persistentVolumeClaim:
            claimName: {{ . }}
        {{- end }}
{{- end }}
