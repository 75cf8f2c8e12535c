{{- define "ragboost.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ragboost.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ragboost.labels" -}}
{{ include "ragboost.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Environment variables from the secrets that are named in the values. */}}
{{- define "ragboost.secrets" -}}
{{- $secrets := dict
  "RAGBOOST_PROXY__API_KEYS" .Values.apiKeysSecret
  "RAGBOOST_BACKEND__API_KEY" .Values.backendKeySecret
  "RAGBOOST_ENGINE_HOOKS__REPORT_KEY" .Values.reportKeySecret
  "RAGBOOST_PROXY__METRICS_KEY" .Values.metricsKeySecret
  "RAGBOOST_SESSION__URL" .Values.sessionUrlSecret -}}
{{- range $name, $secret := $secrets }}
{{- if $secret }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ $name }}
{{- end }}
{{- end }}
{{- if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.passwordSecret }}
      key: REDIS_PASSWORD
- name: RAGBOOST_SESSION__URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "ragboost.redis" . }}:6379
{{- end }}
{{- if or .Values.redis.enabled .Values.sessionUrlSecret }}
- name: RAGBOOST_SESSION__STORE
  value: redis
{{- end }}
{{- end -}}

{{- define "ragboost.redis" -}}
{{- printf "%s-redis" (include "ragboost.name" . | trunc 57 | trimSuffix "-") -}}
{{- end -}}

{{- define "ragboost.redisSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-redis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
