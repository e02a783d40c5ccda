{{/* The release's name, with the chart's where the release does not say it. */}}
{{- define "specserve.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "specserve.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "specserve.labels" -}}
{{ include "specserve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "specserve.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "specserve.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "specserve.name" .) }}
{{- end -}}

{{- define "specserve.priorityClass" -}}
{{ .Values.profiling.priorityClass.name | default (printf "%s-profiling" (include "specserve.name" .)) }}
{{- end -}}
