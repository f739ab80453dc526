{{- /* Prefix of all names. Kubernetes limits those of a StatefulSet's pods to 63 characters, and appends to them. */}}
{{- define "hopline.name" -}}
{{- if contains "hopline" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-hopline" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Labels that find the pods of one program. Arguments: root, program. */}}
{{- define "hopline.selector" -}}
app.kubernetes.io/name: hopline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .program }}
{{- end }}

{{- /* Labels of an object that belongs to no program. */}}
{{- define "hopline.labels" -}}
app.kubernetes.io/name: hopline
app.kubernetes.io/instance: {{ .Release.Name }}
{{ include "hopline.release" . }}
{{- end }}

{{- /* Labels that change with the release. */}}
{{- define "hopline.release" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The ports of each program, and the engines that it connects to. A program gets no secret that it does not use. */}}
{{- define "hopline.programs" -}}
ingest: {operations: 9101, public: 8081, engines: [kafka]}
processor: {operations: 9102, engines: [kafka, clickhouse]}
api: {operations: 9103, public: 8080, engines: [kafka, postgres, clickhouse]}
dispatcher: {operations: 9104, engines: [kafka, postgres]}
migrate: {engines: [kafka, postgres, clickhouse]}
{{- end }}

{{- /* An engine's values for one program, as YAML. Arguments: root, program, engine. */}}
{{- define "hopline.engine" -}}
{{- $own := dig .engine (dict) (index .root.Values .program) }}
{{- mustMergeOverwrite (deepCopy (index .root.Values .engine)) $own | toYaml }}
{{- end }}

{{- /* A variable from a Secret. Arguments: name, secret, key. */}}
{{- define "hopline.secretVariable" -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}}
{{ end }}

{{- /* A URL whose password is in a Secret. Kubernetes replaces $(…) by a variable that is defined before.
       Arguments: variable, password (the variable's name), value (url and password), path (for an error). */}}
{{- define "hopline.url" -}}
{{- if contains (printf "$(%s)" .password) .value.url }}
{{- include "hopline.secretVariable" (dict "name" .password "secret" (required (printf "%s.password.secret is required, because %s.url contains $(%s)" .path .path .password) .value.password.secret) "key" .value.password.key) }}
{{- end -}}
- name: {{ .variable }}
  value: {{ required (printf "%s.url is required" .path) .value.url | quote }}
{{ end }}

{{- /* The variables of a program. Arguments: root, program. */}}
{{- define "hopline.env" -}}
{{- $values := .root.Values }}
{{- $program := index (include "hopline.programs" .root | fromYaml) .program }}
{{- range $name, $value := $values.settings -}}
- name: {{ $name }}
  value: {{ $value | quote }}
{{ end -}}
- name: HOPLINE_DRAIN_SECONDS
  value: {{ $values.drainSeconds | quote }}
{{ with $program.operations -}}
- name: HOPLINE_{{ upper $.program }}_OPERATIONS_LISTEN
  value: 0.0.0.0:{{ . }}
{{ end -}}
{{- $kafka := include "hopline.engine" (merge (dict "engine" "kafka") .) | fromYaml -}}
- name: KAFKA_BROKERS
  value: {{ required "kafka.brokers is required" $kafka.brokers | quote }}
{{ range $property, $value := $kafka.config -}}
- name: KAFKA_CONFIG_{{ $property | upper | replace "." "_" }}
  value: {{ $value | quote }}
{{ end -}}
{{ with $kafka.password.secret -}}
{{ include "hopline.secretVariable" (dict "name" "KAFKA_CONFIG_SASL_PASSWORD" "secret" . "key" $kafka.password.key) }}
{{- end }}
{{- if $kafka.ca.secret -}}
- name: KAFKA_CONFIG_SSL_CA_LOCATION
  value: /etc/hopline/kafka/ca.crt
{{ end }}
{{- if has "postgres" $program.engines }}
{{- $postgres := include "hopline.engine" (merge (dict "engine" "postgres") .) | fromYaml }}
{{- include "hopline.url" (dict "variable" "DATABASE_URL" "password" "DATABASE_PASSWORD" "value" $postgres "path" "postgres") }}
{{- end }}
{{- if has "clickhouse" $program.engines }}
{{- $clickhouse := include "hopline.engine" (merge (dict "engine" "clickhouse") .) | fromYaml }}
{{- include "hopline.url" (dict "variable" "CLICKHOUSE_URL" "password" "CLICKHOUSE_PASSWORD" "value" $clickhouse "path" "clickhouse") }}
{{- if $clickhouse.cluster -}}
- name: HOPLINE_CLICKHOUSE_CLUSTER
  value: {{ $clickhouse.cluster | quote }}
{{ end }}
{{- if $clickhouse.ca.secret -}}
- name: HOPLINE_CLICKHOUSE_CA_FILE
  value: /etc/hopline/clickhouse/ca.crt
{{ end }}
{{- end }}
{{- if has .program (list "api" "dispatcher" "migrate") -}}
- name: HOPLINE_PUBLIC_URL
  value: {{ required "publicUrl is required" $values.publicUrl | quote }}
{{ end }}
{{- if and $values.dashboardUrl (eq .program "api") -}}
- name: HOPLINE_DASHBOARD_URL
  value: {{ $values.dashboardUrl | quote }}
{{ end }}
{{- if eq .program "ingest" -}}
- name: HOPLINE_SPOOL_MAX_BYTES
  value: {{ $values.ingest.spool.maxBytes | quote }}
{{ if $values.ingest.lookup.url }}
{{- include "hopline.url" (dict "variable" "HOPLINE_LOOKUP_DATABASE_URL" "password" "LOOKUP_DATABASE_PASSWORD" "value" $values.ingest.lookup "path" "ingest.lookup") }}
{{- end }}
{{- include "hopline.secretVariable" (dict "name" "HOPLINE_VISITOR_KEY" "secret" $values.keysSecret "key" "visitor-key") }}
{{- end }}
{{- if has .program (list "ingest" "api" "migrate") }}
{{- include "hopline.secretVariable" (dict "name" "HOPLINE_CLICK_ID_KEYS" "secret" $values.keysSecret "key" "click-id-keys") }}
{{- end }}
{{- if has .program (list "api" "dispatcher" "migrate") }}
{{- include "hopline.secretVariable" (dict "name" "HOPLINE_SECRET_KEYS" "secret" $values.keysSecret "key" "secret-keys") }}
{{- end }}
{{- end }}

{{- /* The authorities' certificates that a program needs, as a list of engine and ca. Arguments: root, program. */}}
{{- define "hopline.authorities" -}}
{{- $program := index (include "hopline.programs" .root | fromYaml) .program }}
{{- $engines := $program.engines }}
{{- if and (eq .program "ingest") .root.Values.ingest.lookup.url }}{{ $engines = append $engines "postgres" }}{{ end }}
{{- range $engines }}
{{- $value := include "hopline.engine" (merge (dict "engine" .) $) | fromYaml }}
{{- if $value.ca.secret }}
- {engine: {{ . }}, secret: {{ $value.ca.secret }}, key: {{ $value.ca.key }}}
{{- end }}
{{- end }}
{{- end }}

{{- /* The specification of a program's pods. Arguments: root, program. */}}
{{- define "hopline.pod" -}}
{{- $values := .root.Values }}
{{- $own := index $values .program }}
{{- $program := index (include "hopline.programs" .root | fromYaml) .program }}
{{- $migrates := eq .program "migrate" }}
{{- $authorities := include "hopline.authorities" . | fromYamlArray }}
automountServiceAccountToken: false
# Kubernetes would set HOPLINE_…_SERVICE_HOST, and the programs reject unknown variables of that prefix.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add $values.drainSeconds 15 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  {{- if eq .program "ingest" }}
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $migrates }}
restartPolicy: Never
{{- else }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "hopline.selector" . | nindent 8 }}
{{- end }}
containers:
  - name: {{ .program }}
    image: "{{ $values.image.repository }}:{{ $values.image.tag | default .root.Chart.AppVersion }}"
    imagePullPolicy: {{ $values.image.pullPolicy }}
    args: {{ if $migrates }}[api, migrate]{{ else }}[{{ .program }}]{{ end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    env: {{- include "hopline.env" . | trim | nindent 6 }}
    resources: {{- toYaml ($migrates | ternary $values.api $own).resources | nindent 6 }}
    {{- if not $migrates }}
    ports:
      {{- with $program.public }}
      - {name: http, containerPort: {{ . }}}
      {{- end }}
      - {name: operations, containerPort: {{ $program.operations }}}
    livenessProbe:
      httpGet: {path: /healthz, port: operations}
      timeoutSeconds: 3
    {{- if $program.public }}
    # /readyz may fail on every pod at once: on edges whose spools are full, which still redirect, and on APIs without Postgres. So it
    # decides when a pod begins to serve, and not whether it continues to.
    startupProbe:
      httpGet: {path: /readyz, port: operations}
      periodSeconds: 2
      timeoutSeconds: 3
      failureThreshold: 300
    readinessProbe:
      httpGet: {path: /healthz, port: operations}
      timeoutSeconds: 3
    # A program closes its listener at SIGTERM: by then no new connection may be on its way to this pod.
    lifecycle:
      preStop: {sleep: {seconds: 5}}
    {{- else }}
    readinessProbe:
      httpGet: {path: /readyz, port: operations}
      timeoutSeconds: 3
    {{- end }}
    {{- end }}
    {{- if or $authorities (eq .program "ingest") }}
    volumeMounts:
      {{- if eq .program "ingest" }}
      # The spool is a directory of it: a file system's own directories are not in the spool's way.
      - {name: spool, mountPath: /var/lib/hopline}
      {{- end }}
      {{- range $authorities }}
      - {name: {{ .engine }}-ca, mountPath: /etc/hopline/{{ .engine }}, readOnly: true}
      {{- end }}
    {{- end }}
{{- with $authorities }}
volumes:
  {{- range . }}
  - name: {{ .engine }}-ca
    secret:
      secretName: {{ .secret }}
      items: [{key: {{ .key }}, path: ca.crt}]
  {{- end }}
{{- end }}
{{- end }}

{{- /* The metadata of a pod template. Arguments: root, program. */}}
{{- define "hopline.podMetadata" -}}
labels:
  {{- include "hopline.selector" . | nindent 2 }}
  {{- include "hopline.release" .root | nindent 2 }}
{{- end }}

{{- /* The metadata of a program's object. Arguments: root, program. */}}
{{- define "hopline.metadata" -}}
name: {{ include "hopline.name" .root }}-{{ .program }}
{{ include "hopline.podMetadata" . }}
{{- end }}
