package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	values, err := readObjects(file, text)
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

	var skipped []string
	for _, kind := range slices.Sorted(maps.Keys(others)) {
		skipped = append(skipped, fmt.Sprintf("%d of kind %s", others[kind], kind))
	}
	if len(skipped) > 0 {
		r.addNote(Place{File: file}, "skipped %s: only CronJobs have a schedule", strings.Join(skipped, ", "))
	}

	return r
}

// locateError returns the place and the text of an error of manifest.Values.
func locateError(file string, err error) (at Place, why string) {
	var fault *manifest.Error
	if errors.As(err, &fault) {
		return Place{File: file, Line: fault.Line}, fault.Err.Error()
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
	at := Place{File: file, Line: v.Line()}
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

// kustomizeHint is the way out for an object that lacks what every complete one has.
const kustomizeHint = "if it is a patch for kustomize, render it first with kubectl kustomize"

// cronJob converts a CronJob to a task.
func (r *Result) cronJob(at Place, c cronJob, o Options) {
	k := &kubernetesJob{job: Job{Place: at}}
	s := o.newSpec("kubernetes", c.Metadata.Namespace)
	if o.Namespace == "" && c.Metadata.Namespace != "" {
		s.Namespace = c.Metadata.Namespace
	}

	s.Name = joinName(makeSlug(o.Prefix), c.Metadata.Name)
	k.setLabels(&s, c.Metadata.Labels)

	if c.Spec.Schedule == "" {
		r.addRefusal(at, "%s: has no schedule; %s", quoteShort(c.Metadata.Name), kustomizeHint)
		return
	}
	if err := k.setSchedule(&s, c); err != nil {
		r.addRefusal(at, "%s: schedule: %s: %v", c.Metadata.Name, quoteShort(c.Spec.Schedule), err)
		return
	}

	k.setPolicies(&s, c)
	k.setExecution(&s, c.Spec.JobTemplate.Spec)

	// A container that cannot become a process is refused, unless the task is a shadow, which starts nothing.
	process, why := k.buildProcess(&s, c.Spec.JobTemplate.Spec.Template.Spec, o)
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

	k.noteRest("of the CronJob", c.Spec.rest)
	if len(k.ignored) > 0 {
		slices.Sort(k.ignored)
		k.addNote("fields without effect on a task: %s", strings.Join(slices.Compact(k.ignored), ", "))
	}

	k.job.Spec = s
	r.addJob(k.job)
}

// kubernetesJob collects the job and its notes.
type kubernetesJob struct {
	job     Job
	ignored []string // fields without effect on a task
}

func (k *kubernetesJob) addNote(format string, args ...any) {
	k.job.Notes = append(k.job.Notes, fmt.Sprintf(format, args...))
}

// setLabels copies valid labels. Labels of the import take precedence.
func (k *kubernetesJob) setLabels(s *task.Spec, labels map[string]kubeText) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := string(labels[key])
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
	if s.Paused {
		k.addNote("suspend: after a resume, Kubernetes at once starts the job that it missed last; the task waits for its next tick")
	}

	switch c.Spec.ConcurrencyPolicy {
	case "", "Allow":
		s.Overlap = task.OverlapAllow
	case "Forbid":
		// While a job is active, the controller looks again and again at what it has missed. So it starts the newest missed
		// job as soon as the active one has ended.
		s.Overlap, s.Queue = task.OverlapQueue, task.QueuePolicy{Limit: 1, Drop: task.DropOldest}
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

	k.setParts(s, j)
	k.noteRest("of the job", j.rest)
}

// setParts converts the number of pods to that of parts.
func (k *kubernetesJob) setParts(s *task.Spec, j jobSpec) {
	at, count := int64(1), int64(1)
	if j.Parallelism != nil {
		at = *j.Parallelism
		count = at
	}
	if j.Completions != nil {
		count = *j.Completions
	}

	if j.Parallelism != nil && at == 0 {
		s.Paused = true
		k.addNote("parallelism 0 starts no pod: the task is paused")
	}
	if count <= 1 {
		return
	}

	s.Target.Parts = int(min(count, task.MaxParts+1)) // too many are refused
	switch {
	case j.Completions == nil:
		s.Target.Succeed = "any"
		k.addNote("parallelism %d without completions: the run has %d parts, and succeeds if any of them does", at, count)
	case at < count:
		k.addNote("completions %d, parallelism %d: all %d parts start at once; Kubernetes has at most %d pods at a time", count, at, count, at)
	}
	if j.CompletionMode == "Indexed" {
		k.addNote("completionMode Indexed: use CARILLON_PART_INDEX instead of JOB_COMPLETION_INDEX")
	}
}
