package importer_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/task"
)

// cronJobWith returns a CronJob with more fields: `"pod": {"nodeName": "x"}` for the pod, and others for other parts.
func cronJobWith(t *testing.T, fields string) string {
	t.Helper()
	container := map[string]any{"name": "c", "image": "i", "command": []any{"a"}}
	pod := map[string]any{"containers": []any{container}}
	job := map[string]any{"template": map[string]any{"spec": pod}}
	spec := map[string]any{"schedule": "0 0 * * *", "timeZone": "UTC", "jobTemplate": map[string]any{"spec": job}}
	metadata := map[string]any{"name": "a"}
	parts := map[string]map[string]any{"metadata": metadata, "spec": spec, "job": job, "pod": pod, "container": container}

	var more map[string]map[string]any
	if err := json.Unmarshal([]byte("{"+fields+"}"), &more); err != nil {
		t.Fatalf("%s: %v", fields, err)
	}
	for part, values := range more {
		for name, value := range values {
			parts[part][name] = value
		}
	}

	b, err := json.Marshal(map[string]any{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}

	return string(b)
}

// fromCronJob converts a CronJob with fields as in cronJobWith.
func fromCronJob(t *testing.T, fields string, o importer.Options) importer.Job {
	t.Helper()
	return onlyJob(t, importer.Kubernetes("f", cronJobWith(t, fields), o), fields)
}

// Each field has the value that Kubernetes gives it.
func TestKubernetes_FieldsOfPods(t *testing.T) {
	for _, c := range []struct{ fields, field, want string }{
		{``, "kill_grace", `"30s"`}, // the default of Kubernetes
		{`"pod": {"terminationGracePeriodSeconds": 45}`, "kill_grace", `"45s"`},
		{`"pod": {"terminationGracePeriodSeconds": 7200}`, "kill_grace", `"1h"`},
		{`"pod": {"activeDeadlineSeconds": 20}, "job": {"activeDeadlineSeconds": 60}`, "timeout", `"20s"`},
		// The controller starts the newest missed job as soon as the active one has ended.
		{`"spec": {"concurrencyPolicy": "Forbid"}`, "overlap", `"queue"`},
		{`"spec": {"concurrencyPolicy": "Forbid"}`, "queue", `{"limit":1,"drop":"oldest"}`},
		{`"pod": {"nodeSelector": {"disk": "ssd", "kubernetes.io/arch": "arm64"}}`, "target.selector", `"disk = ssd, arch = arm64"`},
		{`"pod": {"nodeName": "n1"}`, "target.selector", `"node = n1"`},
		{`"pod": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
			{"key": "a", "operator": "In", "values": ["b", "c"]}, {"key": "d", "operator": "NotIn", "values": ["e"]}, {"key": "f", "operator": "Exists"},
			{"key": "g", "operator": "DoesNotExist"}, {"key": "h", "operator": "Gt", "values": ["4"]}]}]}}}}`, "target.selector", `"a in (b, c), d notin (e), f, !g, h > 4"`},
		{`"container": {"resources": {"limits": {"cpu": "500m", "memory": "128Mi"}}}`, "action.process.limits", `{"memory":"128Mi","cpu":0.5}`},
		{`"container": {"resources": {"limits": {"cpu": 2, "memory": "1e9"}}}`, "action.process.limits", `{"memory":"1G","cpu":2}`},
		{`"pod": {"securityContext": {"runAsUser": 1000, "runAsGroup": 7, "supplementalGroups": [4, 5]}}`, "action.process.user", `"1000"`},
		{`"pod": {"securityContext": {"runAsUser": 1000, "runAsGroup": 7, "supplementalGroups": [4, 5]}}`, "action.process.groups", `["4","5"]`},
		{`"pod": {"securityContext": {"runAsUser": 1000}}, "container": {"securityContext": {"runAsUser": 0}}`, "action.process.user", `"0"`},
		{`"job": {"parallelism": 3, "completions": 6}`, "target.parts", `6`},
		{`"job": {"parallelism": 3}`, "target.succeed", `"any"`},
		{`"job": {"parallelism": 1, "completions": 1}`, "target.parts", ``},
		{`"container": {"envFrom": [{"prefix": "A_", "secretRef": {"name": "one"}}], "env": [{"name": "U", "valueFrom": {"secretKeyRef": {"name": "db", "key": "user"}}},
			{"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}}, {"name": "Q", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}}]}`,
			"action.process.env_from", `[{"secret":"one","prefix":"A_"},{"secret":"db","keys":{"pw":"P","user":"U"}},{"secret":"db","keys":{"pw":"Q"}}]`},
		// References to values that only the run has.
		{`"container": {"command": ["a", "--pw=$(P)", "$(NONE)", "it's"], "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}}, {"name": "URL", "value": "x://$(P)@h"}]}`,
			"action.process.shell", `"export URL=x://\"${P}\"@h\nexec a --pw=\"${P}\" '$(NONE)' 'it'\\''s'"`},
		{`"container": {"command": ["a", "$(P)"], "envFrom": [{"secretRef": {"name": "s"}}]}`, "action.process.shell", `"exec a \"${P-\\$(P)}\""`},
		{`"container": {"command": ["a", "$(P) $$(P)"], "env": [{"name": "P", "value": "v"}]}`, "action.process.command", `["a","v $(P)"]`},
		// Kubernetes reads up to the next parenthesis, so that references within a command substitution remain.
		{`"container": {"command": ["a", "$(b $$) $(b $(P)) $(P $x$$ $"], "env": [{"name": "P", "value": "v"}]}`, "action.process.command", `["a","$(b $$) $(b $(P)) $(P $x$ $"]`},
		{`"container": {"command": ["a", "$(P-1)$(P.2)"], "env": [{"name": "P-1", "value": "v"}, {"name": "P.2", "value": "w"}]}`, "action.process.command", `["a","vw"]`},
		// The last variable of a name counts.
		{`"container": {"env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}}, {"name": "U", "value": "x$(P)"}, {"name": "U", "value": "y"}], "command": ["a", "$(U)"]}`,
			"action.process.command", `["a","y"]`},
		// The programs of images are in /usr/local, too.
		{``, "action.process.env", `{"PATH":"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}`},
		{`"container": {"env": [{"name": "PATH", "value": "/opt/bin"}], "command": ["a", "$(PATH)"]}`, "action.process.command", `["a","/opt/bin"]`},
		{`"container": {"command": ["a", "$(PATH)"]}`, "action.process.command", `["a","$(PATH)"]`},
	} {
		j := fromCronJob(t, c.fields, importer.Options{})
		got := fieldOf(t, j.Spec, c.field)
		got = strings.NewReplacer(`\u003e`, ">", `\u0026`, "&").Replace(got)
		if got != c.want {
			t.Errorf("%s: %s is\n     %s\nnot  %s", c.fields, c.field, got, c.want)
		}
	}
}

func TestKubernetes_NotesOfPods(t *testing.T) {
	for fields, want := range map[string]string{
		`"spec": {"suspend": true}`:                                                                                                  "after a resume, Kubernetes at once starts the job that it missed last",
		`"job": {"parallelism": 3, "completions": 6}`:                                                                                "all 6 parts start at once; Kubernetes has at most 3 pods at a time",
		`"job": {"parallelism": 0}`:                                                                                                  "parallelism 0 starts no pod",
		`"pod": {"nodeSelector": {"disk": "ssd"}}`:                                                                                   "its nodes need the labels of target.selector: disk = ssd",
		`"pod": {"tolerations": [{"key": "a"}]}`:                                                                                     "tolerations (see target.selector)",
		`"pod": {"volumes": [{"name": "a"}]}`:                                                                                        "fields of the pod that a task does not have: volumes",
		`"container": {"lifecycle": {"preStop": {"x":1}}}`:                                                                           "fields of the container that a task does not have: lifecycle",
		`"container": {"resources": {"limits": {"nvidia.com/gpu": 1}}}`:                                                              `the limit nvidia.com/gpu = "1" of the container is not supported`,
		`"container": {"envFrom": [{"configMapRef": {"name": "cm"}}]}`:                                                               "config maps are not supported: write their values in env, or in a file for env_from: cm",
		`"container": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "tls.key"}}}]}`:                      `store the key tls.key of the secret s as tls_key`,
		`"container": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}`:                           "these variables have no value in the file: A",
		`"container": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}`:                            "it needs these secrets (carillon secret set): s",
		`"container": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}}]}`:          "these secrets are optional in Kubernetes, but without them the task fails: s/k",
		`"container": {"envFrom": [{"secretRef": {"name": "s", "optional": true}}]}`:                                                 "without them the task fails: s",
		`"container": {"securityContext": {"runAsNonRoot": true}}`:                                                                   "the task runs as the default_user of its node",
		`"container": {"securityContext": {"runAsNonRoot": true, "runAsUser": 0}}`:                                                   "the task runs as root",
		`"pod": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}, {}]}}}}`: "because it has alternatives",
	} {
		if j := fromCronJob(t, fields, importer.Options{}); !hasNote(j, want) {
			t.Errorf("%s: %q", fields, j.Notes)
		}
	}

	j := fromCronJob(t, `"pod": {"nodeSelector": {"disk": "ssd"}}`, importer.Options{Node: "n1"})
	if j.Spec.Target.Selector != "node = n1" || !hasNote(j, "the selection of nodes is replaced by node = n1: disk = ssd") {
		t.Errorf("%s %q", j.Spec.Target.Selector, j.Notes)
	}
}

// A task without the init containers would run without what they prepare.
func TestKubernetes_InitContainersAreRefused(t *testing.T) {
	const fields = `"pod": {"initContainers": [{"name": "migrate", "image": "x"}]}`
	text := cronJobWith(t, fields)

	r := importer.Kubernetes("f", text, importer.Options{})
	if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, "the init containers migrate run before the container; to import the task without them, use --without-init") {
		t.Errorf("%+v", r)
	}

	if j := fromCronJob(t, fields, importer.Options{DropInit: true}); !hasNote(j, "the init containers are not run: migrate") || j.Spec.Action.Process == nil {
		t.Errorf("%+v", j)
	}
	if j := fromCronJob(t, fields, importer.Options{Shadow: true}); j.Spec.Action.Noop == nil {
		t.Errorf("%+v", j)
	}
}

// The files of the review of cases.
func TestKubernetes_KnownFiles(t *testing.T) {
	r := importer.Kubernetes("f", `apiVersion: batch/v1
kind: CronJob
metadata: {name: ecr-cred-helper, namespace: test}
spec:
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      template:
        spec:
          serviceAccountName: ecr-cred-helper
          containers:
          - command: [/bin/sh, -c, 'kubectl delete secret $SECRET_NAME; date $(date)']
            envFrom: [{secretRef: {name: ecr-creds}}]
            image: example.invalid/kubectl
            name: ecr-cred-helper
          hostNetwork: true
          restartPolicy: Never
          terminationGracePeriodSeconds: 45
  schedule: "*/5 * * * *"
`, importer.Options{})

	j := onlyJob(t, r, "ecr")
	p := j.Spec.Action.Process
	// $(date) could be a variable of the secret. If it is not, it remains.
	if want := "exec /bin/sh -c 'kubectl delete secret $SECRET_NAME; date '\"${date-\\$(date)}\""; p.Shell != want || len(p.EnvFrom) != 1 || p.EnvFrom[0].Secret != "ecr-creds" {
		t.Errorf("%+v", p)
	}
	if j.Spec.KillGrace != 45e9 || j.Spec.Overlap != task.OverlapQueue || !hasNote(j, "serviceAccountName") {
		t.Errorf("%+v %q", j.Spec, j.Notes)
	}
}
