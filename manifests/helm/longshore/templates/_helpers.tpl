{{- /* As charts name their objects: the release's name, with the chart's where that is not in it. */}}
{{- define "longshore.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Of objects in no namespace: installs in other namespaces have others. */}}
{{- define "longshore.clusterName" -}}
{{ include "longshore.fullname" . }}-node-agent.{{ .Release.Namespace }}
{{- end -}}

{{- define "longshore.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create -}}
{{ include "longshore.fullname" . }}-node-agent
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- define "longshore.dataMoverAccount" -}}
{{- if .Values.dataMover.serviceAccount.name -}}
{{ .Values.dataMover.serviceAccount.name }}
{{- else if .Values.dataMover.serviceAccount.create -}}
{{ include "longshore.fullname" . }}-data-mover
{{- else -}}
{{ include "longshore.serviceAccount" . }}
{{- end -}}
{{- end -}}

{{- /* "true" where the cluster has policies, and the agents an account of their own. `helm template` knows no cluster, and has them. */}}
{{- define "longshore.hasAdmissionPolicy" -}}
{{- if .Values.serviceAccount.create -}}
{{- include "longshore.servesPolicies" . -}}
{{- end -}}
{{- end -}}

{{- define "longshore.servesPolicies" -}}
{{- $versions := .Capabilities.APIVersions -}}
{{- $isServed := or ($versions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (not ($versions.Has "apps/v1/DaemonSet")) -}}
{{- if and .Values.admissionPolicy.enabled $isServed -}}
true
{{- end -}}
{{- end -}}

{{- define "longshore.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "longshore.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Who reaches the metrics. Probes of the kubelet come from the node, which network policies let through. */}}
{{- define "longshore.metricsIngress" -}}
- {{ with .Values.networkPolicy.metricsFrom }}from: {{- toYaml . | nindent 4 }}
  {{ end }}ports:
    - port: metrics
{{- end }}

{{/* The Secrets that the server, data movers, maintenance and verification may read. */}}
{{- define "longshore.secretNames" -}}
{{- $names := list "velero-repo-credentials" -}}
{{- with .Values.credentials.secretName }}{{ $names = append $names . }}{{ end -}}
{{- concat $names .Values.credentials.locationSecrets | uniq | toYaml -}}
{{- end }}
