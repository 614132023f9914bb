package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// Kubernetes reads the CronJobs of a YAML or JSON file, which may contain several documents, and lists of objects.
// It skips objects of other kinds, and counts them in a note. It refuses a file that cannot be parsed as a whole.
//
// A container becomes a process of the node. The job's notes name its image, its volumes and everything else that
// makes it a container. It cannot convert a container without a command, which is then in the image, or a pod with
// several containers. With Options.Shadow it can, because shadow tasks start nothing.
func Kubernetes(file, text string, o Options) Result {
	var r Result
	values, err := manifest.Values(file, []byte(text))
	if err != nil {
		at, why := locateError(file, err)
		if strings.Contains(text, "{{") {
			why += "; if this is a Helm chart, render it first with helm template"
		}

		r.addRefusal(at, "%s", why)

		return r
	}

	others := map[string]int{}

	for _, v := range values {
		r.addObject(file, v, o, others)
	}

	for _, kind := range slices.Sorted(maps.Keys(others)) {
		r.addNote(Place{File: file}, "skipped %d of kind %s: only CronJobs have a schedule", others[kind], kind)
	}

	return r
}

// locateError returns the place and the text of an error of manifest.Values.
func locateError(file string, err error) (at Place, why string) {
	var fault *manifest.Error
	if errors.As(err, &fault) {
		return Place{file, fault.Line}, fault.Err.Error()
	}
	return Place{File: file}, err.Error()
}

// typeErrorText returns the text of an error of manifest.Value.Decode. If a value has the wrong type, it names the field.
func typeErrorText(err error) string {
	var typed *json.UnmarshalTypeError
	if errors.As(err, &typed) && typed.Field != "" {
		return typed.Field + ": a " + typed.Value + " is not allowed here"
	}
	return err.Error()
}

// head is the part of an object that identifies it.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

// addObject converts an object, or the objects of a list.
func (r *Result) addObject(file string, v manifest.Value, o Options, others map[string]int) {
	at := Place{file, v.Line()}
	var h head
	if err := v.Decode(&h); err != nil || h.Kind == "" {
		r.addRefusal(at, "is not a Kubernetes object: it has no kind")
		return
	}

	switch {
	case strings.HasSuffix(h.Kind, "List"):
		for _, item := range v.Items("items") {
			r.addObject(file, item, o, others)
		}
	case h.Kind == "CronJob" && strings.HasPrefix(h.APIVersion, "batch/"):
		var job cronJob
		if err := v.Decode(&job); err != nil {
			r.addRefusal(at, "%s: %s", quoteShort(h.Metadata.Name), typeErrorText(err))
			return
		}

		r.cronJob(at, job, o)
	default:
		others[h.Kind]++
	}
}

// cronJob is the part of a CronJob that is used. Values that only appear in notes can have any type.
type cronJob struct {
	Metadata struct {
		Name      string         `json:"name"`
		Namespace string         `json:"namespace"`
		Labels    map[string]any `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Schedule                   string `json:"schedule"`
		TimeZone                   string `json:"timeZone"`
		Suspend                    bool   `json:"suspend"`
		ConcurrencyPolicy          string `json:"concurrencyPolicy"`
		StartingDeadlineSeconds    *int64 `json:"startingDeadlineSeconds"`
		SuccessfulJobsHistoryLimit *int64 `json:"successfulJobsHistoryLimit"`
		FailedJobsHistoryLimit     *int64 `json:"failedJobsHistoryLimit"`
		JobTemplate                struct {
			Spec jobSpec `json:"spec"`
		} `json:"jobTemplate"`
	} `json:"spec"`
}

// jobSpec is the specification of the job that each tick creates.
type jobSpec struct {
	BackoffLimit          *int64 `json:"backoffLimit"`
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds"`
	Parallelism           *int64 `json:"parallelism"`
	Completions           *int64 `json:"completions"`
	Template              struct {
		Spec map[string]any `json:"spec"`
	} `json:"template"`
	rest map[string]any // everything, for notes about unknown fields
}

// UnmarshalJSON also keeps unknown fields.
func (j *jobSpec) UnmarshalJSON(b []byte) error {
	type plain jobSpec
	if err := json.Unmarshal(b, (*plain)(j)); err != nil {
		return err
	}
	return json.Unmarshal(b, &j.rest)
}

// cronJob converts a CronJob to a task.
func (r *Result) cronJob(at Place, c cronJob, o Options) {
	k := &kubernetesJob{job: Job{Place: at}}
	s := o.newSpec("kubernetes", c.Metadata.Namespace)
	if o.Namespace == "" && c.Metadata.Namespace != "" {
		s.Namespace = c.Metadata.Namespace
	}

	s.Name = joinName(makeSlug(o.Prefix), c.Metadata.Name)
	k.setLabels(&s, c.Metadata.Labels)

	if err := k.setSchedule(&s, c); err != nil {
		r.addRefusal(at, "%s: schedule: %s: %v", c.Metadata.Name, quoteShort(c.Spec.Schedule), err)
		return
	}

	k.setPolicies(&s, c)
	k.setExecution(&s, c.Spec.JobTemplate.Spec)

	// A container that cannot become a process is refused, unless the task is a shadow, which starts nothing.
	process, why := k.buildProcess(c.Spec.JobTemplate.Spec.Template.Spec)
	switch {
	case why == "":
		s.Action.Process = process
	case o.Shadow:
		s.Action.Noop = &task.Noop{}
		k.addNote("%s: the shadow task has an empty action", why)
	default:
		r.addRefusal(at, "%s: %s; to record only its ticks, use --shadow", c.Metadata.Name, why)
		return
	}

	k.job.Spec = s
	r.addJob(k.job)
}

// kubernetesJob collects the job and its notes.
type kubernetesJob struct{ job Job }

func (k *kubernetesJob) addNote(format string, args ...any) {
	k.job.Notes = append(k.job.Notes, fmt.Sprintf(format, args...))
}

// setLabels copies valid labels. Labels of the import take precedence.
func (k *kubernetesJob) setLabels(s *task.Spec, labels map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := fmt.Sprint(labels[key])
		if err := task.CheckLabels("labels", map[string]string{key: value}); err != nil || len(s.Labels) == task.MaxLabels {
			k.addNote("the label %s is omitted", quoteShort(key))
			continue
		}

		if _, ours := s.Labels[key]; !ours {
			s.Labels[key] = value
		}
	}
}

// maxCatchUp is how old a missed tick may be that is still caught up.
const maxCatchUp = task.MaxTimeout

// setPolicies converts the policies for overlap, missed ticks and history.
func (k *kubernetesJob) setPolicies(s *task.Spec, c cronJob) {
	s.Paused = c.Spec.Suspend

	switch c.Spec.ConcurrencyPolicy {
	case "", "Allow":
		s.Overlap = task.OverlapAllow
	case "Forbid":
		s.Overlap = task.OverlapSkip
	case "Replace":
		s.Overlap = task.OverlapReplace
	default:
		k.addNote("unknown concurrencyPolicy %s; uses %s", quoteShort(c.Spec.ConcurrencyPolicy), s.Overlap)
	}

	// Kubernetes starts a missed job however late, or up to startingDeadlineSeconds.
	s.Missed.Window = maxCatchUp
	if n := c.Spec.StartingDeadlineSeconds; n != nil {
		s.Deadline = durationOf(max(*n, 1))
		s.Missed.Window = max(s.Missed.Grace, min(s.Deadline, maxCatchUp))
	}

	if ok, failed := c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit; ok != nil || failed != nil {
		n := int64(0)
		for i, limit := range []*int64{ok, failed} {
			if limit == nil {
				n += []int64{3, 1}[i] // the defaults of Kubernetes
			} else {
				n += *limit
			}
		}

		s.History.Keep = int(min(max(n, 1), task.MaxKeep))
	}
}

// durationOf converts seconds, up to the maximum of a timeout.
func durationOf(n int64) task.Duration {
	return task.Duration(min(n, int64(task.MaxTimeout.Std()/time.Second)) * int64(time.Second))
}

// setExecution converts the retries and the timeout. When a node is lost, Kubernetes starts the pod on another one.
func (k *kubernetesJob) setExecution(s *task.Spec, j jobSpec) {
	limit := int64(6)
	if j.BackoffLimit != nil {
		limit = *j.BackoffLimit
	}

	s.Retry.Attempts = int(min(max(limit, 0)+1, task.MaxAttempts))
	s.Retry.MaxBackoff = task.Duration(6 * time.Minute)
	s.Retry.On = []task.State{task.Failed, task.Lost}
	if j.ActiveDeadlineSeconds != nil {
		s.Timeout = durationOf(max(*j.ActiveDeadlineSeconds, 1))
		if s.Retry.Attempts > 1 {
			k.addNote("Kubernetes applies activeDeadlineSeconds to all attempts together, Carillon to each attempt")
		}
	}

	for i, n := range []*int64{j.Parallelism, j.Completions} {
		if n != nil && *n != 1 {
			k.addNote("%s %d is not supported: the task runs one process at a time", []string{"parallelism", "completions"}[i], *n)
		}
	}

	k.noteUnknown("of the job", j.rest, "backoffLimit", "activeDeadlineSeconds", "parallelism", "completions", "template")
}

// buildProcess converts a pod to a process. If that is impossible, why gives the reason.
func (k *kubernetesJob) buildProcess(pod map[string]any) (p *task.Process, why string) {
	k.noteUnknown("of the pod", pod, "containers", "restartPolicy", "terminationGracePeriodSeconds", "dnsPolicy", "schedulerName")
	list, _ := pod["containers"].([]any)
	if len(list) != 1 {
		return nil, fmt.Sprintf("the pod has %d containers; only pods with one container are supported", len(list))
	}

	c, _ := list[0].(map[string]any)
	p = &task.Process{}

	// command replaces the entry point of the image, and args are its arguments. Without command, the program is
	// known only if args begin with a shell.
	command, ok1 := asStrings(c["command"])
	args, ok2 := asStrings(c["args"])
	if len(command) == 0 && len(args) > 1 && slices.Contains(hereDocumentShells, path.Base(args[0])) {
		command, args = args, nil
		k.addNote("args is used as the command, assuming that the image has no entry point")
	}

	if len(command) == 0 || !ok1 || !ok2 {
		return nil, fmt.Sprintf("the container has no command: only the image %v defines it", c["image"])
	}

	var unresolved []string
	p.Env, unresolved = literalVariables(c["env"])
	if len(unresolved) > 0 {
		k.addNote("these variables have no value in the file: %s", strings.Join(unresolved, ", "))
	}

	for _, word := range append(command, args...) {
		p.Command = append(p.Command, expandReferences(word, p.Env))
	}

	p.Dir, _ = c["workingDir"].(string)
	k.addNote("runs as a process of the node, without the image %v", c["image"])
	k.noteUnknown("of the container", c, "name", "image", "command", "args", "env", "workingDir", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy")

	return p, ""
}

// noteUnknown adds a note about the fields that are not known.
func (k *kubernetesJob) noteUnknown(where string, of map[string]any, known ...string) {
	var rest []string
	for name, v := range of {
		if says := fmt.Sprint(v); !slices.Contains(known, name) && v != nil && says != "map[]" && says != "[]" {
			rest = append(rest, name)
		}
	}

	if slices.Sort(rest); len(rest) > 0 {
		k.addNote("fields %s that a task does not have: %s", where, strings.Join(rest, ", "))
	}
}

// asStrings converts a list of any type to strings. ok is false if v is not a list; nil is an empty list.
func asStrings(v any) (list []string, ok bool) {
	items, is := v.([]any)
	for _, item := range items {
		list = append(list, fmt.Sprint(item))
	}
	return list, is || v == nil
}

// literalVariables returns the variables that have a value in the file, and the names of the others.
func literalVariables(v any) (env map[string]string, others []string) {
	list, _ := v.([]any)
	for _, item := range list {
		pair, _ := item.(map[string]any)
		name := fmt.Sprint(pair["name"])

		if pair["valueFrom"] != nil {
			others = append(others, name)
			continue
		}

		if env == nil {
			env = map[string]string{}
		}

		value := ""
		if pair["value"] != nil {
			value = fmt.Sprint(pair["value"])
		}

		env[name] = expandReferences(value, env)
	}

	return env, others
}

var referencePattern = regexp.MustCompile(`\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)`)

// expandReferences replaces $(NAME) by values, as Kubernetes does. Unknown references remain.
func expandReferences(text string, env map[string]string) string {
	return referencePattern.ReplaceAllStringFunc(text, func(m string) string {
		if m == "$$" {
			return "$"
		}
		if v, ok := env[m[2:len(m)-1]]; ok {
			return v
		}

		return m
	})
}
