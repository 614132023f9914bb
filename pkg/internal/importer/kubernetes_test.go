package importer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/task"
)

const cronJob = `apiVersion: v1
kind: ConfigMap
metadata: {name: x}
---
# a comment
apiVersion: batch/v1
kind: CronJob
metadata:
  name: orders
  namespace: shop
  labels: {team: data, "odd label!": x}
spec:
  schedule: "CRON_TZ=Asia/Tokyo 5/20 2 ? * MON"
  suspend: true
  concurrencyPolicy: Replace
  startingDeadlineSeconds: 200
  successfulJobsHistoryLimit: 5
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 600
      ttlSecondsAfterFinished: 60
      template:
        spec:
          restartPolicy: Never
          serviceAccountName: orders
          volumes: [{name: data}]
          securityContext: {}
          containers:
            - name: main
              image: example.org/orders:1
              command: [/bin/report]
              args: ["--day", $(DAY), "$(OTHER)", "$$x", 3]
              workingDir: /srv
              envFrom: [{secretRef: {name: x}}]
              resources: {limits: {cpu: 1}}
              env:
                - {name: DAY, value: "today"}
                - {name: SECRET, valueFrom: {secretKeyRef: {name: a, key: b}}}
`

func TestKubernetes_MakesATaskOfACronJob(t *testing.T) {
	r := importer.Kubernetes("f.yaml", cronJob, importer.Options{})
	if len(r.Jobs) != 1 || len(r.Refusals) > 0 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0].Why, "skipped 1 of kind ConfigMap") {
		t.Fatalf("%+v", r)
	}

	j := r.Jobs[0]
	want := task.Defaults()
	want.Name, want.Namespace, want.Paused, want.Overlap = "orders", "shop", true, task.OverlapReplace
	want.Labels = map[string]string{"team": "data", "imported": "kubernetes", "imported-from": "shop"}
	want.Schedule, want.Timezone = task.Schedules{"5/20 2 * * MON"}, "Asia/Tokyo"
	want.Deadline, want.Missed.Window, want.Timeout, want.KillGrace = 200e9, 200e9, 600e9, 30e9
	want.History.Keep = 6
	want.Retry.Attempts, want.Retry.MaxBackoff, want.Retry.On = 3, 360e9, []task.State{task.Failed, task.Lost}
	want.Action.Process = &task.Process{
		Shell:   "exec /bin/report --day today \"${OTHER-\\$(OTHER)}\" '$x' 3", // a secret may have it
		Dir:     "/srv",
		Env:     map[string]string{"DAY": "today", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		EnvFrom: []task.EnvFrom{{Secret: "x"}, {Secret: "a", Keys: map[string]string{"b": "SECRET"}}},
		Limits:  task.Limits{CPU: 1},
	}
	if d := task.Differences(want, j.Spec); len(d) > 0 || j.Line != 6 {
		t.Errorf("line %d, differs: %v", j.Line, d)
	}

	notes := strings.Join(j.Notes, "\n")

	for _, want := range []string{`"odd label!" is omitted`, "without the image example.org/orders:1", "it needs these secrets (carillon secret set): a, x", "fields without effect on a task: restartPolicy, ttlSecondsAfterFinished",
		"fields of the pod that a task does not have: serviceAccountName, volumes", "after a resume, Kubernetes at once starts", "Kubernetes applies activeDeadlineSeconds to all attempts"} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is missing in\n%s", want, notes)
		}
	}
}

func TestKubernetes_ListsAndDefaults(t *testing.T) {
	text := `{"kind": "List", "apiVersion": "v1", "items": [
 {"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": "a"}, "spec": {"schedule": "@hourly", "timeZone": "Europe/Berlin",
  "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"command": ["x"]}]}}}}}},
 {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "b"}, "spec": {"schedule": "0 0 * * *",
  "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"image": "i", "args": ["x"]}]}}}}}}
]}`
	r := importer.Kubernetes("f.json", text, importer.Options{Namespace: "here", Prefix: "k8s", Node: "n1"})
	if len(r.Jobs) != 1 || len(r.Refusals) != 1 || r.Refusals[0].Line != 4 || !strings.Contains(r.Refusals[0].Why, "b: the container has no command: only the image i defines it") {
		t.Fatalf("%+v", r)
	}

	s := r.Jobs[0].Spec
	if s.Name != "k8s-a" || s.Namespace != "here" || s.Overlap != task.OverlapAllow || s.Retry.Attempts != 7 || s.Timezone != "Europe/Berlin" || s.Target.Selector != "node = n1" || s.History.Keep != 20 {
		t.Errorf("%+v", s)
	}

	if r := importer.Kubernetes("f.json", strings.Replace(text, `"args": ["x"]`, `"args": ["/bin/sh", "-c", "x"]`, 1), importer.Options{}); len(r.Jobs) != 2 || !slices.Equal(r.Jobs[1].Spec.Action.Process.Command, []string{"/bin/sh", "-c", "x"}) {
		t.Errorf("a shell in args: %+v", r)
	}

	// A shadow task starts nothing, so it needs no command.
	r = importer.Kubernetes("f.json", text, importer.Options{Shadow: true})
	if len(r.Jobs) != 2 || r.Jobs[1].Spec.Action.Noop == nil || !r.Jobs[1].Spec.Shadow {
		t.Errorf("%+v", r)
	}
}

func TestKubernetes_RefusesWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"a: [":                               "f:1: ",
		"a: b\n---\n{{- if .Values.x }}\na:": "helm template",
		"- a":                                "f:1: is not a Kubernetes object",
		strings.Replace(strings.Replace(cronJob, "image: example.org/orders:1", "tty: true", 1), "command: [/bin/report]", "stdin: true", 1): "neither a command nor an image; if it is a patch for kustomize",
		"a: b": "f:1: is not a Kubernetes object",
		"kind: CronJob\napiVersion: batch/v1\nmetadata: {name: a}\nspec: {suspend: true}":       `f:1: "a": has no schedule; if it is a patch for kustomize, render it first with kubectl kustomize`,
		"kind: CronJob\napiVersion: batch/v1\nspec: {schedule: [1]}":                            "f:1: ",
		strings.Replace(cronJob, "5/20 2", "77 2", 1):                                           "f:6: orders: schedule:",
		strings.Replace(cronJob, "Asia/Tokyo", "Mars/X", 1):                                     "f:6: timezone:",
		strings.Replace(cronJob, "name: orders\n", "name: Orders\n", 1):                         "f:6: name:",
		strings.Replace(cronJob, "containers:", "containers:\n            - {name: second}", 1): "the pod has 2 containers",
		strings.Repeat("a: 1\n", 100_000):                                                       "too large",
	} {
		r := importer.Kubernetes("f", text, importer.Options{})
		if !slices.ContainsFunc(r.Refusals, func(x importer.Refusal) bool { return strings.Contains(x.Place.String()+": "+x.Why, want) }) {
			t.Errorf("%.60q: %v", text, r.Refusals)
		}
	}
}

// kubectl prints one document with all CronJobs of a cluster, and people use anchors. One document that package manifest
// does not read does not keep the others from being imported.
func TestKubernetes_ReadsWhatKubectlReads(t *testing.T) {
	text := `apiVersion: batch/v1
kind: CronJob
metadata: {name: first}
spec: {schedule: "@daily", jobTemplate: {spec: {template: {spec: {containers: [{image: i, command: [x]}]}}}}}
---
# a comment

apiVersion: batch/v1
kind: CronJob
metadata: &m {name: second}
spec:
  schedule: "@hourly"
  jobTemplate:
    metadata: *m
    spec: {template: {spec: {containers: [{image: i, command: [x], env: [{name: A, value: "yes"}]}]}}}
`
	r := importer.Kubernetes("f.yaml", text, importer.Options{})
	if len(r.Jobs) != 2 || len(r.Refusals) > 0 || r.Jobs[0].Line != 1 || r.Jobs[1].Line != 8 || r.Jobs[1].Spec.Action.Process.Env["A"] != "yes" {
		t.Errorf("%+v", r)
	}

	large := "apiVersion: v1\nkind: List\nitems:\n"
	for i := range 300 {
		large += fmt.Sprintf("- apiVersion: batch/v1\n  kind: CronJob\n  metadata: {name: job-%d}\n  spec: {schedule: \"@daily\", jobTemplate: {spec: {template: {spec: {containers: [{image: i, command: [x, a, b, c]}]}}}}}\n", i)
	}
	if r := importer.Kubernetes("f.yaml", large, importer.Options{}); len(r.Jobs) != 300 || len(r.Refusals) > 0 {
		t.Errorf("%d jobs, refused %+v", len(r.Jobs), r.Refusals)
	}

	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'z'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	if r := importer.Kubernetes("f.yaml", bomb, importer.Options{}); len(r.Refusals) != 1 {
		t.Errorf("%d jobs, refused %+v", len(r.Jobs), r.Refusals)
	}
}

func FuzzKubernetes(f *testing.F) {
	f.Add(cronJob)
	f.Add(`{"kind": "List", "items": [{"kind": "CronJob", "apiVersion": "batch/v1"}, null, 3]}`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, j := range importer.Kubernetes("f", text, importer.Options{Shadow: true}).Jobs {
			valid(t, j.Spec)
		}
	})
}
