package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// Dkron reads the jobs of Dkron in JSON or YAML: a list of jobs, as its API returns them and its backups contain them, or
// single jobs. It refuses a file that cannot be parsed as a whole.
//
// It converts jobs with the executors shell and http, and refuses other jobs. With Options.Shadow, the action does not matter,
// because shadow tasks start nothing. A job that runs after another job (parent_job) becomes a task with after.
func Dkron(file, text string, o Options) Result {
	var r Result
	values, err := manifest.Values(file, []byte(text))
	if err != nil {
		at, why := locateError(file, err)
		r.addRefusal(at, "%s", why)

		return r
	}

	for _, v := range values {
		if list, ok := v.Elements(); ok {
			for _, item := range list {
				r.addDkronJob(file, item, o)
			}
			continue
		}

		r.addDkronJob(file, v, o)
	}

	return r
}

// dkronJob is the part of a job that is used. Values that Dkron has as text can have any type here.
type dkronJob struct {
	Name           string         `json:"name"`
	DisplayName    string         `json:"displayname"`
	Timezone       string         `json:"timezone"`
	Schedule       string         `json:"schedule"`
	Owner          string         `json:"owner"`
	OwnerEmail     string         `json:"owner_email"`
	Disabled       bool           `json:"disabled"`
	Tags           map[string]any `json:"tags"`
	Metadata       map[string]any `json:"metadata"`
	Retries        int64          `json:"retries"`
	DependentJobs  []string       `json:"dependent_jobs"`
	ParentJob      string         `json:"parent_job"`
	Processors     map[string]any `json:"processors"`
	Concurrency    string         `json:"concurrency"`
	Executor       string         `json:"executor"`
	ExecutorConfig map[string]any `json:"executor_config"`
	Ephemeral      bool           `json:"ephemeral"`
	StartsAt       string         `json:"starts_at"`
	ExpiresAt      string         `json:"expires_at"`

	rest map[string]any // everything, for notes about unknown fields
}

// UnmarshalJSON also keeps unknown fields, and numbers as they are written.
func (j *dkronJob) UnmarshalJSON(b []byte) error {
	type plain dkronJob
	for _, into := range []any{(*plain)(j), &j.rest} {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if err := d.Decode(into); err != nil {
			return err
		}
	}

	return nil
}

// dkronFields are the fields of a job that are converted, and those that only describe its past.
var dkronFields = strings.Fields("name displayname timezone schedule owner owner_email disabled tags metadata retries dependent_jobs " +
	"parent_job processors concurrency executor executor_config ephemeral starts_at expires_at " +
	"id success_count error_count last_success last_error status next")

// dkronConversion converts one job, and collects notes.
type dkronConversion struct {
	dkronJob
	options Options
	notes   []string
}

// addNote adds a note about a property that is lost or changed.
func (d *dkronConversion) addNote(format string, args ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, args...))
}

// addDkronJob converts a job.
func (r *Result) addDkronJob(file string, v manifest.Value, o Options) {
	at := Place{File: file, Line: v.Line()}
	d := &dkronConversion{options: o}
	if err := v.Decode(&d.dkronJob); err != nil {
		r.addRefusal(at, "is not a Dkron job: %s", typeErrorText(err))
		return
	}

	if d.Name == "" {
		r.addRefusal(at, "is not a Dkron job: it has no name")
		return
	}

	s, err := d.convert()
	if err != nil {
		r.addRefusal(at, "%s: %v", d.Name, err)
		return
	}

	r.addJob(Job{Place: at, Spec: s, Notes: d.notes, dependents: d.DependentJobs, prefix: o.Prefix})
}

// convert returns the task. An error says why there is none.
func (d *dkronConversion) convert() (task.Spec, error) {
	s := d.options.newSpec("dkron", "")
	s.Name = joinName(makeSlug(d.options.Prefix), d.Name)
	s.Description = d.description()
	d.setLabels(&s)

	if d.ParentJob != "" {
		s.Schedule = task.Schedules{task.ManualSchedule}
	} else if err := d.setSchedule(&s); err != nil {
		return s, fmt.Errorf("schedule: %s: %w", quoteShort(d.Schedule), err)
	}
	if err := d.setBounds(&s); err != nil {
		return s, err
	}
	if err := d.setPolicies(&s); err != nil {
		return s, err
	}
	if d.ParentJob != "" {
		d.setParent(&s)
	}
	if err := d.setTarget(&s); err != nil {
		return s, err
	}

	if err := d.setAction(&s); err != nil {
		if !d.options.Shadow {
			return s, fmt.Errorf("%w; to record only its ticks, use --shadow", err)
		}

		s.Action = task.Action{Noop: &task.Noop{}}
		d.addNote("%v: the shadow task has an empty action", err)
	}

	d.noteRest()

	return s, nil
}

// description returns what the job says about itself.
func (d *dkronConversion) description() string {
	owner := d.Owner
	if d.OwnerEmail != "" {
		owner = strings.TrimSpace(owner + " <" + d.OwnerEmail + ">")
	}

	text := d.DisplayName
	if owner != "" {
		text += "\nOwner: " + owner
	}

	return makeDescription(text)
}

// setLabels copies the metadata. Labels of the import take precedence.
func (d *dkronConversion) setLabels(s *task.Spec) {
	for _, key := range slices.Sorted(maps.Keys(d.Metadata)) {
		value := fmt.Sprint(d.Metadata[key])
		_, ours := s.Labels[key]
		err := task.CheckLabels("labels", map[string]string{key: value})

		if ours || err != nil || len(s.Labels) == task.MaxLabels {
			d.addNote("the metadata %s is omitted, because it cannot be a label", quoteShort(key))
			continue
		}
		s.Labels[key] = value
	}
}

// setBounds converts the times before and after which the job does not run.
func (d *dkronConversion) setBounds(s *task.Spec) error {
	for _, b := range []struct {
		field, text string
		to          *task.Time
	}{{"starts_at", d.StartsAt, &s.Start}, {"expires_at", d.ExpiresAt, &s.End}} {
		if b.text == "" {
			continue
		}

		at, err := time.Parse(time.RFC3339, b.text)
		if err != nil {
			// The form of its Web UI. Dkron takes it as UTC.
			at, err = time.Parse("2006-01-02T15:04", b.text)
		}

		switch {
		case err != nil:
			return fmt.Errorf("%s: %s is not a time", b.field, quoteShort(b.text))
		case at.Year() > 1: // the year 1 means that there is none
			*b.to = task.At(at)
		}
	}

	return nil
}

// setPolicies converts what happens with concurrent, failed and missed executions, and at the end.
func (d *dkronConversion) setPolicies(s *task.Spec) error {
	s.Paused = d.Disabled

	switch d.Concurrency {
	case "", "allow":
		s.Overlap = task.OverlapAllow
	case "forbid":
		s.Overlap = task.OverlapSkip
	default:
		return fmt.Errorf("concurrency: Dkron rejects %s", quoteShort(d.Concurrency))
	}

	// Dkron does not catch up, and repeats at once what has failed.
	s.Missed.Policy = task.MissedSkip
	if d.Retries < 0 {
		return fmt.Errorf("retries: Dkron rejects %d", d.Retries)
	}

	s.Retry.Attempts = int(min(d.Retries, task.MaxAttempts-1)) + 1
	if d.Retries >= task.MaxAttempts {
		d.addNote("retries: %d is reduced to %d", d.Retries, task.MaxAttempts-1)
	}
	if d.Retries > 0 {
		s.Retry.Backoff = 0
	}

	switch once := strings.HasPrefix(s.Schedule[0], "@at "); {
	case d.Ephemeral && once:
		s.TTL = task.Duration(ephemeralTTL)
		d.addNote("ephemeral: the task is deleted %s after its run, even if that has failed", s.TTL)
	case d.Ephemeral:
		d.addNote("ephemeral is not supported: the task is not deleted after its first success; max_runs and ttl are similar")
	}

	return nil
}

// setParent makes the task run after that of the parent job. Dkron starts a job with a parent each time the parent has succeeded,
// and never by its own schedule.
func (d *dkronConversion) setParent(s *task.Spec) {
	s.After = task.Sources{{Task: joinName(makeSlug(d.options.Prefix), d.ParentJob)}}

	if d.Schedule != "" && d.Schedule != "@manually" && !strings.HasPrefix(d.Schedule, "@parent") {
		d.addNote("its schedule %s is omitted: Dkron ignores the schedule of a job with a parent_job", quoteShort(d.Schedule))
	}

	// What concerns ticks has no effect on runs that another task starts.
	s.Missed = task.Defaults().Missed
	if !s.Start.IsZero() {
		d.addNote("starts_at is omitted: it limits ticks, and the task runs only after %s", s.After[0].Task)
	}

	// A job that has expired in Dkron must not run again, and its task has no end of its own.
	switch end := s.End.UTC().Format(time.RFC3339); {
	case s.End.IsZero():
	case s.End.Before(d.options.Now):
		d.addNote("the task is paused, because the job expired on %s", end)
		s.Paused, s.PauseReason = true, "expired in Dkron on "+end
	default:
		d.addNote("expires_at is omitted: Dkron would no longer run the job after %s, but the task runs on after %s", end, s.After[0].Task)
	}
	s.Start, s.End = task.Time{}, task.Time{}
}

// ephemeralTTL is how long the task of an ephemeral job is kept after its run, so that the result can be seen.
const ephemeralTTL = 24 * time.Hour

// setTarget converts the tags. Dkron runs a job on all nodes that have its tags, unless a tag limits their number.
func (d *dkronConversion) setTarget(s *task.Spec) error {
	if d.options.Node != "" || d.options.Host != "" || d.options.AnyNode {
		if len(d.Tags) > 0 {
			d.addNote("the tags are ignored: %s", strings.Join(slices.Sorted(maps.Keys(d.Tags)), ", "))
		}
		d.noteRetryNode(s)
		return nil
	}

	labels, count, err := d.readTags()
	if err != nil {
		return err
	}

	if err := task.CheckLabels("tags", labels); err != nil {
		return fmt.Errorf("the tags cannot be labels of nodes: %w", err)
	}

	var terms []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		terms = append(terms, key+" = "+labels[key])
	}

	s.Target.Selector, s.Target.Count = strings.Join(terms, ", "), count
	if len(terms) > 0 {
		d.addNote("its nodes need the labels %s", s.Target.Selector)
	}

	switch {
	case count == task.All && len(terms) == 0:
		d.addNote("it has no tags, so it runs on all nodes, as in Dkron; to run it on one, use --any-node or set target.count: 1")
	case count > 1:
		d.addNote("each run waits until %d nodes match; Dkron runs the job on fewer if there are not as many", count)
	}

	d.noteRetryNode(s)

	return nil
}

// noteRetryNode adds a note if retries may run on other nodes than in Dkron.
func (d *dkronConversion) noteRetryNode(s *task.Spec) {
	if d.Retries > 0 && s.Target.Count == 1 && d.options.Node == "" {
		d.addNote("a retry prefers another node; Dkron repeats on the same one")
	}
}

// readTags returns the tags without the numbers, and the number of nodes: the lowest one, or all.
func (d *dkronConversion) readTags() (labels map[string]string, count task.Count, err error) {
	labels, count = map[string]string{}, task.All

	for _, key := range slices.Sorted(maps.Keys(d.Tags)) {
		tag := fmt.Sprint(d.Tags[key])
		// With more than one colon, Dkron ignores what follows the first.
		value, number, limited := strings.Cut(tag, ":")
		labels[key] = value
		if !limited || strings.Contains(number, ":") {
			continue
		}

		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return nil, 0, fmt.Errorf("tags: with %s, Dkron runs it on no node", quoteShort(key+": "+tag))
		}
		if count == task.All || n < int(count) {
			count = task.Count(n)
		}
	}

	if count > task.MaxParts {
		count = task.All
	}

	return labels, count, nil
}

// setAction converts the executor.
func (d *dkronConversion) setAction(s *task.Spec) error {
	switch d.Executor {
	case "shell":
		return d.setShell(s)
	case "http":
		return d.setHTTP(s)
	case "":
		return errors.New("has no executor")
	}

	return fmt.Errorf("the executor %s is not supported, only shell and http", quoteShort(d.Executor))
}

// config returns a value of the executor's configuration as text, as Dkron has it.
func (d *dkronConversion) config(key string) string {
	if v := d.ExecutorConfig[key]; v != nil {
		return fmt.Sprint(v)
	}
	return ""
}

// noteConfig adds a note about the values of the executor's configuration that are not known.
func (d *dkronConversion) noteConfig(known ...string) {
	var rest []string
	for key := range d.ExecutorConfig {
		if !slices.Contains(known, key) && d.config(key) != "" {
			rest = append(rest, key)
		}
	}

	if slices.Sort(rest); len(rest) > 0 {
		d.addNote("values of executor_config without a counterpart: %s", strings.Join(rest, ", "))
	}
}

// noteRest adds notes about what only Dkron has.
func (d *dkronConversion) noteRest() {
	if len(d.Processors) > 0 {
		d.addNote("processors are not supported: %s; to read the output, use carillon logs", strings.Join(slices.Sorted(maps.Keys(d.Processors)), ", "))
	}

	var rest []string
	for key, v := range d.rest {
		if says := fmt.Sprint(v); !slices.Contains(dkronFields, key) && v != nil && says != "" && says != "map[]" && says != "[]" && says != "false" {
			rest = append(rest, key)
		}
	}

	if slices.Sort(rest); len(rest) > 0 {
		d.addNote("fields of the job without a counterpart: %s", strings.Join(rest, ", "))
	}
}
