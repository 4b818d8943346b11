{{- /* A link beside the prepared models, made when its model is complete: a name that is known before. */}}
{{- define "slackwater.model.path" -}}
/var/lib/slackwater/models/served-{{ .Values.model.source | sha256sum | trunc 8 }}
{{- end }}

{{- define "slackwater.model.env" -}}
- name: SLACKWATER_MODEL_NAME
  value: {{ .Values.model.name | quote }}
- name: SLACKWATER_MODEL_PATH
  value: {{ include "slackwater.model.path" . }}
{{- end }}

{{- define "slackwater.model.mount" -}}
- name: model
  mountPath: /var/lib/slackwater/models
  readOnly: true
{{- end }}

{{- define "slackwater.model.volume" -}}
- name: model
{{- with .Values.model.volume }}
{{- if eq .type "claim" }}
  persistentVolumeClaim:
    claimName: {{ .claim.existing | default (printf "%s-model" (include "slackwater.fullname" $)) }}
{{- else if eq .type "hostPath" }}
  hostPath:
    path: {{ .hostPath }}
    type: Directory
{{- else }}
  emptyDir: {}
{{- end }}
{{- end }}
{{- end }}

{{- /* Of the first pool: whether it runs the model is looked at before that is fetched. */}}
{{- define "slackwater.model.engine" -}}
{{- (first .Values.executors).engine | default .Values.executorDefaults.engine }}
{{- end }}

{{- /* Executors prepare the model, and whoever shares their claim waits for it; with a volume of its own each pod
       prepares it. root, component, image (its own); engine (an executor's). */}}
{{- define "slackwater.model.init" -}}
{{- if or (eq .component "executor") (ne .root.Values.model.volume.type "claim") }}
{{- include "slackwater.model.prepare" . }}
{{- else }}
{{- include "slackwater.model.wait" . }}
{{- end }}
{{- end }}

{{- define "slackwater.model.prepare" -}}
- name: prepare-model
  {{- $image := ternary .image .root.Values.images.executor (eq .component "executor") }}
  {{- include "slackwater.image" (dict "root" .root "name" $image) | nindent 2 }}
  command:
    - sh
    - -ec
    - |
      python -m services.executor.prepare_model --model "$MODEL" --engine "$ENGINE" > /tmp/folder
      folder=$(tail -n 1 /tmp/folder)
      test "$(readlink "$SLACKWATER_MODEL_PATH")" = "$folder" || ln -sfn "$folder" "$SLACKWATER_MODEL_PATH"
  env:
    - name: HOME
      value: /tmp
    - name: HF_HOME
      value: /var/lib/slackwater/models/huggingface
    - name: MODEL
      value: {{ .root.Values.model.source | quote }}
    - name: ENGINE
      value: {{ .engine | default (include "slackwater.model.engine" .root) }}
    {{- include "slackwater.model.env" .root | nindent 4 }}
    {{- with .root.Values.model.hubToken }}
    {{- if .secret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ .secret }}
          key: {{ .key }}
    {{- end }}
    {{- end }}
  volumeMounts:
    - name: scratch
      mountPath: /tmp
    - name: model
      mountPath: /var/lib/slackwater/models
  resources:
    {{- toYaml .root.Values.model.prepareResources | nindent 4 }}
  {{- include "slackwater.container" .root | nindent 2 }}
{{- end }}

{{- define "slackwater.model.wait" -}}
- name: wait-for-model
  {{- include "slackwater.image" (dict "root" .root "name" .image) | nindent 2 }}
  command: [sh, -c, 'until test -e "$SLACKWATER_MODEL_PATH/config.json"; do sleep 2; done']
  env:
    {{- include "slackwater.model.env" .root | nindent 4 }}
  volumeMounts:
    {{- include "slackwater.model.mount" .root | nindent 4 }}
  resources:
    requests:
      cpu: 10m
      memory: 16Mi
    limits:
      cpu: 100m
      memory: 64Mi
  {{- include "slackwater.container" .root | nindent 2 }}
{{- end }}
