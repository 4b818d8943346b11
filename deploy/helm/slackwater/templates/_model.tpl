{{- /* All that the stack serves, as JSON: name, source, servedModelName, generationConfig, loraModules, short (in names
       of objects), slo, strategy. */}}
{{- define "slackwater.models" -}}
{{- $first := dict "short" "default" "slo" .Values.slo "strategy" dict }}
{{- $all := list (merge $first (omit .Values.model "volume" "hubToken" "prepareResources")) }}
{{- $plain := dict "servedModelName" list "generationConfig" "auto" "loraModules" list "slo" list "strategy" dict }}
{{- range .Values.otherModels }}
{{- $all = append $all (merge (deepCopy .) $plain) }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{- /* One of them. root, name (empty: the first). */}}
{{- define "slackwater.model.named" -}}
{{- $name := .name | default .root.Values.model.name }}
{{- $found := "" }}
{{- range include "slackwater.models" .root | fromJsonArray }}
{{- if and (not $found) (eq .name $name) }}
{{- $found = toJson . }}
{{- end }}
{{- end }}
{{- if not $found }}
{{- fail (printf "executors: there is no model %s in model and otherModels" $name) }}
{{- end }}
{{- $found }}
{{- end }}

{{- /* A link beside the prepared models, made when its model is complete: a name that is known before. A model. */}}
{{- define "slackwater.model.path" -}}
/var/lib/slackwater/models/served-{{ .source | sha256sum | trunc 8 }}
{{- end }}

{{- /* A model. */}}
{{- define "slackwater.model.env" -}}
- name: SLACKWATER_MODEL_NAME
  value: {{ .name | quote }}
- name: SLACKWATER_MODEL_PATH
  value: {{ include "slackwater.model.path" . }}
{{- with .loraModules }}
- name: SLACKWATER_LORA_MODULES
  value: {{ include "slackwater.value" . | quote }}
{{- end }}
{{- end }}

{{- /* Of those who answer clients: gateways and its offline-queue. A model. */}}
{{- define "slackwater.model.served" -}}
{{- with .servedModelName }}
- name: SLACKWATER_SERVED_MODEL_NAME
  value: {{ include "slackwater.value" . | quote }}
{{- end }}
- name: SLACKWATER_GENERATION_CONFIG
  value: {{ .generationConfig }}
{{- end }}

{{- /* The setting other_models. root, model (all others are told of). */}}
{{- define "slackwater.model.others" -}}
{{- $others := list }}
{{- range include "slackwater.models" .root | fromJsonArray }}
{{- if ne .name $.model.name }}
{{- $served := include "slackwater.value" .servedModelName }}
{{- $told := dict "name" .name "path" (include "slackwater.model.path" .) "slo" (include "slackwater.value" .slo) }}
{{- with .loraModules }}
{{- $_ := set $told "lora_modules" (include "slackwater.value" .) }}
{{- end }}
{{- $others = append $others (merge $told (dict "served_model_name" $served "generation_config" .generationConfig)) }}
{{- end }}
{{- end }}
{{- if $others }}
- name: SLACKWATER_OTHER_MODELS
  value: {{ toJson $others | quote }}
{{- end }}
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

{{- /* Of the model's first pool: whether it runs the model is looked at before that is fetched. root, model. */}}
{{- define "slackwater.model.engine" -}}
{{- $found := "" }}
{{- range .root.Values.executors }}
{{- $pool := include "slackwater.pool" (dict "root" $.root "pool" .) | fromJson }}
{{- if and (not $found) (eq ($pool.model | default $.root.Values.model.name) $.model.name) }}
{{- $found = $pool.engine }}
{{- end }}
{{- end }}
{{- $found }}
{{- end }}

{{- /* Executors prepare the model, and whoever shares their claim waits for it; with a volume of its own each pod
       prepares it. root, component, image (its own), model; suffix (of the container's name); engine (an executor's). */}}
{{- define "slackwater.model.init" -}}
{{- if or (eq .component "executor") (ne .root.Values.model.volume.type "claim") }}
{{- include "slackwater.model.prepare" . }}
{{- else }}
{{- include "slackwater.model.wait" . }}
{{- end }}
{{- end }}

{{- define "slackwater.model.prepare" -}}
- name: prepare-model{{ .suffix }}
  {{- $image := ternary .image .root.Values.images.executor (eq .component "executor") }}
  {{- include "slackwater.image" (dict "root" .root "name" $image) | nindent 2 }}
  command:
    - sh
    - -ec
    - |
      trap 'exit 143' TERM # the first process gets no signal that it does not handle
      python -m services.executor.prepare_model --model "$MODEL" --engine "$ENGINE" \
        --lora-modules "${SLACKWATER_LORA_MODULES:-}" > /tmp/folder &
      wait $!
      folder=$(tail -n 1 /tmp/folder)
      test "$(readlink "$SLACKWATER_MODEL_PATH")" = "$folder" || ln -sfn "$folder" "$SLACKWATER_MODEL_PATH"
  env:
    - name: HOME
      value: /tmp
    - name: HF_HOME
      value: /var/lib/slackwater/models/huggingface
    - name: MODEL
      value: {{ .model.source | quote }}
    - name: ENGINE
      value: {{ .engine | default (include "slackwater.model.engine" .) }}
    {{- include "slackwater.model.env" .model | nindent 4 }}
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
- name: wait-for-model{{ .suffix }}
  {{- include "slackwater.image" (dict "root" .root "name" .image) | nindent 2 }}
  command:
    - sh
    - -c
    - |
      trap 'exit 143' TERM # the first process gets no signal that it does not handle
      until test -e "$SLACKWATER_MODEL_PATH/config.json"; do sleep 2; done
  env:
    {{- include "slackwater.model.env" .model | nindent 4 }}
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

{{- /* The setting other_models of the profiler, which has their SLOs to keep. */}}
{{- define "slackwater.model.slos" -}}
{{- $others := list }}
{{- range rest (include "slackwater.models" . | fromJsonArray) }}
{{- $others = append $others (dict "name" .name "slo" (include "slackwater.value" .slo)) }}
{{- end }}
{{- if $others }}{{ toJson $others }}{{ end }}
{{- end }}

{{- /* The strategy of a pool's executors: the pool's over its model's over that of all, as JSON. root, model, pool. */}}
{{- define "slackwater.strategy" -}}
{{- $ofModel := include "slackwater.overlay" (dict "base" .root.Values.strategy "over" .model.strategy) | fromJson }}
{{- include "slackwater.overlay" (dict "base" $ofModel "over" .pool.strategy) }}
{{- end }}
