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
{{- end -}}
