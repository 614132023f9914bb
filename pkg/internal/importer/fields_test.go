package importer_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/task"
)

// only is the reason why a field of a task has no counterpart in another system.
const only = "-: only Carillon has it"

// counterparts contains, for each field of a task, a setting of systemd and a field of a CronJob that change it. Whoever
// adds a field to a task decides here what the importers do with it.
var counterparts = map[string]struct{ systemd, kubernetes string }{
	"name":        {"-: the name of the file", `"metadata": {"name": "other"}`},
	"namespace":   {"-: the option", `"metadata": {"namespace": "other"}`},
	"description": {"Unit:Description=the dump", "-: CronJobs have no description"},
	"labels":      {"-: units have no labels", `"metadata": {"labels": {"a": "b"}}`},
	"schedule":    {"Timer:OnCalendar=*:00:00", `"spec": {"schedule": "5 * * * *"}`},
	"timezone":    {"Timer:OnCalendar=\nOnCalendar=daily Asia/Tokyo", `"spec": {"timeZone": "Asia/Tokyo"}`},
	"dst.gap":     {"Timer:OnCalendar=\nOnCalendar=daily Europe/Berlin", `"spec": {"timeZone": "Europe/Berlin"}`},
	"dst.fold":    {"-: systemd has the default of Carillon", `"spec": {"timeZone": "Europe/Berlin"}`},
	"start":       {"-: events have no beginning", "-: CronJobs have none"},
	"end":         {"-: events have no end", "-: CronJobs have none"},
	"jitter":      {"Timer:RandomizedDelaySec=5min", "-: CronJobs have none"},
	"max_runs":    {only, only},
	"ttl":         {only, only},
	"metrics":     {only, only},

	"action.process.command":             {"Service:ExecStart=\nExecStart=/bin/other", `"container": {"command": ["other"]}`},
	"action.process.shell":               {"Service:ExecStart=\nExecStart=/bin/a $A", `"container": {"command": ["a", "$(A)"], "envFrom": [{"secretRef": {"name": "a"}}]}`},
	"action.process.stdin.text":          {"Service:StandardInputText=a b", "-: a container has only an attached input"},
	"action.process.stdin.secret":        {"-: credentials are not a standard input", "-: a container has only an attached input"},
	"action.process.stdin.file":          {"Service:StandardInput=file:/etc/x", "-: a container has only an attached input"},
	"action.process.env":                 {"Service:Environment=A=b", `"container": {"env": [{"name": "A", "value": "b"}]}`},
	"action.process.env_from[].file":     {"Service:EnvironmentFile=/etc/a", "-: files are in volumes"},
	"action.process.env_from[].optional": {"Service:EnvironmentFile=-/etc/a", "-: files are in volumes"},
	"action.process.env_from[].secret":   {"-: LoadCredential= makes files", `"container": {"envFrom": [{"secretRef": {"name": "a"}}]}`},
	"action.process.env_from[].prefix":   {"-: LoadCredential= makes files", `"container": {"envFrom": [{"prefix": "A_", "secretRef": {"name": "a"}}]}`},
	"action.process.env_from[].keys":     {"-: LoadCredential= makes files", `"container": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]}`},
	"action.process.dir":                 {"Service:WorkingDirectory=/srv", `"container": {"workingDir": "/srv"}`},
	"action.process.user":                {"Service:User=ann", `"container": {"securityContext": {"runAsUser": 1000}}`},
	"action.process.group":               {"Service:Group=adm", `"container": {"securityContext": {"runAsGroup": 1000}}`},
	"action.process.groups":              {"Service:SupplementaryGroups=adm disk", `"pod": {"securityContext": {"supplementalGroups": [4]}}`},
	"action.process.umask":               {"Service:UMask=0077", "-: the image has it"},
	"action.process.nice":                {"Service:Nice=5", "-: CPU requests are shares of a node"},
	"action.process.ionice":              {"Service:IOSchedulingClass=idle", "-: Kubernetes has none"},
	"action.process.no_new_privs":        {"Service:NoNewPrivileges=yes", `"container": {"securityContext": {"allowPrivilegeEscalation": false}}`},
	"action.process.private_tmp":         {"Service:PrivateTmp=yes", "-: the image has its own"},
	"action.process.scratch":             {"-: a RuntimeDirectory= is shared", "-: an emptyDir is a volume with a path"},
	"action.process.limits.open_files":   {"Service:LimitNOFILE=1024", "-: Kubernetes has none"},
	"action.process.limits.file_size":    {"Service:LimitFSIZE=1G", "-: Kubernetes has none"},
	"action.process.limits.core":         {"Service:LimitCORE=0", "-: Kubernetes has none"},
	"action.process.limits.processes":    {"Service:LimitNPROC=100", "-: Kubernetes has none"},
	"action.process.limits.stack":        {"Service:LimitSTACK=8M", "-: Kubernetes has none"},
	"action.process.limits.address_space": {
		"Service:LimitAS=8G", "-: Kubernetes has none"},
	"action.process.limits.cpu_time": {"Service:LimitCPU=1h", "-: Kubernetes has none"},
	"action.process.limits.memory":   {"Service:MemoryMax=2G", `"container": {"resources": {"limits": {"memory": "128Mi"}}}`},
	"action.process.limits.swap":     {"Service:MemoryMax=2G\nMemorySwapMax=0", "-: the kubelet decides"},
	"action.process.limits.cpu":      {"Service:CPUQuota=50%", `"container": {"resources": {"limits": {"cpu": "500m"}}}`},
	"action.process.limits.pids":     {"Service:TasksMax=20", "-: the kubelet decides"},
	"action.process.enforce":         {only, only},
	"action.http":                    {"-: a service starts processes", "-: a pod starts processes"},
	"action.workflow":                {"-: a service has no steps", "-: a pod has no steps"},
	"action.noop":                    {only, only},

	"timeout":              {"Service:RuntimeMaxSec=1h", `"job": {"activeDeadlineSeconds": 60}`},
	"kill_grace":           {"Service:TimeoutStopSec=5", `"pod": {"terminationGracePeriodSeconds": 45}`},
	"overlap":              {"Timer:DeferReactivation=yes", `"spec": {"concurrencyPolicy": "Replace"}`},
	"queue.limit":          {"Timer:DeferReactivation=yes", `"spec": {"concurrencyPolicy": "Forbid"}`},
	"queue.drop":           {"Timer:DeferReactivation=yes", `"spec": {"concurrencyPolicy": "Forbid"}`},
	"max_active":           {only, only},
	"missed.policy":        {"Timer:Persistent=yes", "-: Kubernetes always starts the newest missed job"},
	"missed.grace":         {only, only},
	"missed.window":        {"Timer:Persistent=yes", `"spec": {"startingDeadlineSeconds": 100}`},
	"missed.limit":         {only, only},
	"start_deadline":       {"-: a started service does not wait", `"spec": {"startingDeadlineSeconds": 100}`},
	"retry.attempts":       {"Service:Restart=on-failure", `"job": {"backoffLimit": 2}`},
	"retry.backoff":        {"Service:Restart=on-failure\nRestartSec=1min", "-: Kubernetes has a fixed value, that of Carillon"},
	"retry.factor":         {"Service:Restart=on-failure", "-: Kubernetes has a fixed value, that of Carillon"},
	"retry.max_backoff":    {"Service:Restart=on-failure\nRestartSec=1min", "-: Kubernetes has a fixed value"},
	"retry.jitter":         {"Service:Restart=on-failure", "-: Kubernetes has none to choose"},
	"retry.on":             {"Service:Restart=on-abnormal", "-: Kubernetes has no choice"},
	"retry.exit_codes":     {"Service:RestartForceExitStatus=3 TEMPFAIL", "-: podFailurePolicy has a note"},
	"target.selector":      {"-: a unit belongs to its host", `"pod": {"nodeSelector": {"disk": "ssd"}}`},
	"target.strategy":      {"-: a unit belongs to its host", "-: topologySpreadConstraints have a note"},
	"target.count":         {"-: a unit belongs to its host", "-: pods are parts"},
	"target.key":           {only, only},
	"target.order":         {only, only},
	"target.parts":         {"-: a service has one run", `"job": {"parallelism": 3, "completions": 3}`},
	"target.stagger":       {"-: a service has one run", "-: pods start at once"},
	"target.succeed":       {"-: a service has one run", `"job": {"parallelism": 3}`},
	"history.keep":         {"-: the journal keeps it", `"spec": {"successfulJobsHistoryLimit": 9}`},
	"history.record":       {"-: the journal keeps it", "-: limits are numbers"},
	"history.keep_for":     {"-: the journal keeps it", "-: limits are numbers"},
	"history.ledger":       {only, only},
	"output.streams":       {"-: the journal has both", "-: logs have both"},
	"output.limit":         {"-: the journal has limits of its own", "-: the kubelet has limits of its own"},
	"output.keep":          {"-: the journal has limits of its own", "-: the kubelet has limits of its own"},
	"output.mask":          {only, only},
	"output.compress":      {only, only},
	"output.mail":          {"-: the journal keeps the output", only},
	"output.mail_when":     {only, only},
	"output.mail_from":     {"-: the journal keeps the output", only},
	"pause_after_failures": {"-: StartLimitAction= acts on the host", only},
	"shadow":               {only, only},
	"paused":               {"-: a disabled timer looks like an enabled one", `"spec": {"suspend": true}`},
	"paused_until":         {only, only},
	"pause_reason":         {only, only},
	"kill_signal":          {"Service:KillSignal=SIGINT", "-: the image has it"},
	"success.exit_codes":   {"Service:SuccessExitStatus=75", "-: a pod succeeds with 0"},
	"success.output":       {only, only},
	"success.not_output":   {only, only},
	"accept":               {only, only},
	"alerts":               {"-: OnFailure= has a note", only},
	"receiver":             {only, only},
	"after[].task":         {"-: OnSuccess= has a note", only},
	"after[].when":         {"-: OnFailure= has a note", only},
	"after[].results":      {only, only},
	"join":                 {only, only},
}

// Every field of a task that another system has, too, is converted. A note that a task does not have a setting is true.
func TestImporters_ConvertWhatATaskHas(t *testing.T) {
	local := importer.Options{Timezone: "UTC"}
	units := onlyJob(t, importer.Systemd(unitsWith(""), local), "units")
	job := onlyJob(t, importer.Kubernetes("f", cronJobWith(t, ""), local), "CronJob")
	seen := map[string]bool{}

	check := func(path, input string, base, got importer.Job) {
		t.Helper()
		inList, _, _ := strings.Cut(path, "[]")
		changed := slices.ContainsFunc(task.Compare(base.Spec, got.Spec), func(c task.FieldChange) bool {
			return c.Field == inList || strings.HasPrefix(c.Field, inList+".") || strings.HasPrefix(inList, c.Field+".")
		})
		if !changed {
			t.Errorf("%s does not change %s", input, path)
		}
		for _, note := range got.Notes {
			if strings.Contains(note, "that a task does not have") {
				t.Errorf("%s: the note is false: %s", input, note)
			}
		}
	}

	for _, f := range task.Flatten(task.SpecFields()) {
		top := slices.Contains([]string{"action.http", "action.noop", "action.workflow", "accept", "alerts", "receiver"}, f.Path)
		if len(f.Inner) > 0 && !top || strings.HasPrefix(f.Path, "action.http.") || strings.HasPrefix(f.Path, "action.workflow.") || strings.HasPrefix(f.Path, "accept.") || strings.HasPrefix(f.Path, "alerts.") || strings.HasPrefix(f.Path, "receiver.") {
			continue
		}

		c, ok := counterparts[f.Path]
		if !ok {
			t.Errorf("%s: add to counterparts how systemd and Kubernetes set it, and convert it", f.Path)
			continue
		}
		seen[f.Path] = true

		if !strings.HasPrefix(c.systemd, "-") {
			check(f.Path, c.systemd, units, onlyJob(t, importer.Systemd(unitsWith(c.systemd), local), c.systemd))
		}
		if !strings.HasPrefix(c.kubernetes, "-") {
			check(f.Path, c.kubernetes, job, onlyJob(t, importer.Kubernetes("f", cronJobWith(t, c.kubernetes), local), c.kubernetes))
		}
	}

	for path := range counterparts {
		if !seen[path] {
			t.Errorf("%s is not a field of a task", path)
		}
	}
}

// valuesOfSettings are values, other than the default, for settings that do not accept any text.
var valuesOfSettings = map[string]string{
	"Type": "idle", "User": "ann", "Group": "adm", "SupplementaryGroups": "adm", "DynamicUser": "yes\nUser=ann", "UMask": "077", "Nice": "1", "IOSchedulingClass": "idle", "IOSchedulingPriority": "3", "NoNewPrivileges": "yes",
	"PrivateTmp": "yes", "MemoryMax": "1G", "MemoryLimit": "1G", "MemorySwapMax": "1G", "CPUQuota": "10%", "TasksMax": "9", "LimitNOFILE": "99",
	"LimitFSIZE": "1G", "LimitCORE": "0", "LimitNPROC": "9", "LimitSTACK": "1M", "LimitAS": "1G", "LimitCPU": "9", "TimeoutSec": "9",
	"TimeoutStartSec": "9", "TimeoutStopSec": "9", "RuntimeMaxSec": "9", "KillSignal": "SIGINT", "KillMode": "mixed", "Restart": "on-failure",
	"RestartSec": "9", "RestartSteps": "3", "RestartMaxDelaySec": "9", "RestartForceExitStatus": "3", "RestartPreventExitStatus": "3",
	"SuccessExitStatus": "3", "RemainAfterExit": "yes", "Environment": "A=b", "EnvironmentFile": "/a", "WorkingDirectory": "/a",
	"RootDirectory": "/", "RootImage": "/", "StandardInput": "file:/a", "StandardInputData": "YQ==", "ExecStart": "\nExecStart=/bin/b",
	"OnCalendar": "hourly", "OnBootSec": "9", "OnStartupSec": "9", "OnActiveSec": "9", "OnUnitActiveSec": "9", "OnUnitInactiveSec": "9",
	"Persistent": "yes", "RandomizedDelaySec": "9", "FixedRandomDelay": "yes", "DeferReactivation": "yes", "Unit": "a.service",
}

// Every setting of a unit that the importer knows changes the task or is named in a note, and so is every one that it
// does not know.
func TestSystemd_EverySettingChangesTheTaskOrIsNamed(t *testing.T) {
	base := onlyJob(t, importer.Systemd(unitsWith(""), importer.Options{}), "units")

	for section, names := range importer.KnownSettings() {
		for _, name := range append(names, "UnheardOf") {
			value := valuesOfSettings[name]
			if value == "" {
				value = "/bin/true"
			}
			if slices.Contains([]string{"RootDirectory", "RootImage", "Unit", "Type", "OnUnitInactiveSec"}, name) {
				continue // refused, or only with this value the same
			}

			input := section + ":" + name + "=" + value
			got := onlyJob(t, importer.Systemd(unitsWith(input), importer.Options{}), input)
			named := slices.ContainsFunc(got.Notes, func(n string) bool { return strings.Contains(n, name) })
			if !named && len(task.Compare(base.Spec, got.Spec)) == 0 {
				t.Errorf("%s changes nothing and has no note: %q", input, got.Notes)
			}
		}
	}
}

// The same for CronJobs.
func TestKubernetes_EveryFieldChangesTheTaskOrIsNamed(t *testing.T) {
	base := onlyJob(t, importer.Kubernetes("f", cronJobWith(t, ""), importer.Options{}), "CronJob")

	for _, input := range []string{
		`"spec": {"schedule": "1 * * * *"}`, `"spec": {"timeZone": "Asia/Tokyo"}`, `"spec": {"suspend": true}`, `"spec": {"concurrencyPolicy": "Forbid"}`,
		`"spec": {"concurrencyPolicy": "Whatever"}`, `"spec": {"startingDeadlineSeconds": 9}`, `"spec": {"successfulJobsHistoryLimit": 9}`, `"spec": {"failedJobsHistoryLimit": 9}`,
		`"spec": {"unheardOf": 1}`, `"job": {"backoffLimit": 9}`, `"job": {"activeDeadlineSeconds": 9}`, `"job": {"parallelism": 9}`, `"job": {"completions": 9}`,
		`"job": {"completions": 9, "completionMode": "Indexed"}`, `"job": {"ttlSecondsAfterFinished": 9}`, `"job": {"podFailurePolicy": {"rules": [1]}}`, `"job": {"suspend": true}`,
		`"job": {"backoffLimitPerIndex": 1}`, `"job": {"unheardOf": 1}`, `"pod": {"nodeSelector": {"a": "b"}}`, `"pod": {"nodeName": "x"}`, `"pod": {"terminationGracePeriodSeconds": 45}`,
		`"pod": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}]}}}}`,
		`"pod": {"affinity": {"podAffinity": {"x": 1}}}`, `"pod": {"tolerations": [{"key": "a"}]}`, `"pod": {"dnsPolicy": "Default"}`, `"pod": {"schedulerName": "x"}`, `"pod": {"restartPolicy": "Never"}`,
		`"pod": {"activeDeadlineSeconds": 9}`, `"pod": {"securityContext": {"fsGroup": 1}}`, `"pod": {"securityContext": {"runAsUser": 1}}`, `"pod": {"volumes": [{"name": "a"}]}`,
		`"pod": {"hostNetwork": true}`, `"pod": {"serviceAccountName": "x"}`, `"pod": {"unheardOf": 1}`, `"container": {"args": ["b"]}`, `"container": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}`,
		`"container": {"envFrom": [{"configMapRef": {"name": "cm"}}]}`, `"container": {"workingDir": "/a"}`, `"container": {"resources": {"limits": {"cpu": "2"}}}`,
		`"container": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}`, `"container": {"resources": {"requests": {"cpu": "2"}}}`, `"container": {"securityContext": {"privileged": true}}`,
		`"container": {"securityContext": {"allowPrivilegeEscalation": true}}`, `"container": {"imagePullPolicy": "Always"}`, `"container": {"terminationMessagePath": "/x"}`, `"container": {"livenessProbe": {"x": 1}}`,
		`"container": {"lifecycle": {"preStop": {"x": 1}}}`, `"container": {"stdin": true}`, `"container": {"image": "other"}`, `"container": {"unheardOf": 1}`,
	} {
		got := onlyJob(t, importer.Kubernetes("f", cronJobWith(t, input), importer.Options{}), input)
		more := slices.ContainsFunc(got.Notes, func(n string) bool { return !slices.Contains(base.Notes, n) })
		if !more && len(task.Compare(base.Spec, got.Spec)) == 0 {
			t.Errorf("%s changes nothing and has no note", input)
		}
	}
}

// The same for jobs of Dkron. Only what they say about their past is dropped.
func TestDkron_EveryFieldChangesTheTaskOrIsNamed(t *testing.T) {
	from := func(fields string) importer.Job {
		job := map[string]any{"name": "a", "schedule": "@daily", "executor": "shell", "executor_config": map[string]any{"command": "x"}}
		if err := json.Unmarshal([]byte("{"+fields+"}"), &job); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(job)
		if err != nil {
			t.Fatal(err)
		}

		r := importer.Dkron("f", string(text), importer.Options{})
		r.NoteChains()

		return onlyJob(t, r, fields)
	}
	base := from("")

	for _, fields := range []string{
		`"displayname": "A"`, `"timezone": "Asia/Tokyo"`, `"schedule": "@hourly"`, `"owner": "ann"`, `"owner_email": "a@b"`, `"disabled": true`, `"tags": {"a": "b"}`,
		`"metadata": {"a": "b"}`, `"metadata": {"a b": "c"}`, `"retries": 2`, `"dependent_jobs": ["b"]`, `"processors": {"log": {}}`, `"concurrency": "forbid"`, `"ephemeral": true`,
		`"starts_at": "2030-01-01T00:00:00Z"`, `"expires_at": "2030-01-01T00:00:00Z"`, `"unheard_of": 1`, `"parent_job": "b"`,
		`"executor_config": {"command": "y"}`, `"executor_config": {"command": "x", "shell": "true"}`, `"executor_config": {"command": "x", "env": "A=b"}`,
		`"executor_config": {"command": "x", "cwd": "/a"}`, `"executor_config": {"command": "x", "timeout": "9s"}`, `"executor_config": {"command": "x", "mem_limit": "9MB"}`,
		`"executor_config": {"command": "x", "su": "ann"}`, `"executor_config": {"command": "x", "payload": "YQ=="}`, `"executor_config": {"command": "x", "unheard_of": "1"}`,
	} {
		got := from(fields)
		more := slices.ContainsFunc(got.Notes, func(n string) bool { return !slices.Contains(base.Notes, n) })
		if !more && len(task.Compare(base.Spec, got.Spec)) == 0 {
			t.Errorf("%s changes nothing and has no note", fields)
		}
	}
}
