// Package importer converts the schedules of other systems to tasks: crontabs, CronJobs of Kubernetes, timers of
// systemd, and jobs of Dkron.
//
// Whatever it accepts is a valid task with the same ticks. Nothing is lost without notice: it refuses what it
// cannot convert, with its place, and adds a note to the job for what has no counterpart. The same text yields the
// same tasks. Their names are derived from the place and the command, never from a line number or a schedule, so
// that another import after an edit changes the tasks instead of creating others.
//
// The package is pure: it reads no files and no clock, and knows only those facts about the host that Options
// contain.
package importer

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxFile is how many bytes a file may have.
const MaxFile = 4 << 20

// Options contain what the text does not state.
type Options struct {
	Namespace string // of the tasks; "": the default namespace, or that of a CronJob
	Prefix    string // of the tasks' names
	Tree      string // the value of LabelTree for the tasks of a tree of hosts
	Timezone  string // of schedules without a time zone; "": UTC
	Node      string // the node on which the tasks run; "": any node, or one of Host
	Host      string // the label "host" of the nodes on which the tasks run, if Node is ""; "": any
	Shadow    bool   // the tasks only record their ticks
	Keep      int    // how many ended runs to keep; 0: the default
	AnyNode   bool   // each run is on one node, any of them, whatever the job says
	Hostname  string // the name of the host that Host stands for; "": not known
	DropInit  bool   // CronJobs lose their init containers; otherwise they are refused
	User      string // the user whose units of systemd the files are; "": their paths say it
	MailOwner bool   // the output of jobs of crontabs without MAILTO is mailed to their user, as cron does
	Debian    bool   // crontabs are those of Debian's cron, which ignores a file with an error as a whole

	// Now is when the import takes place. Zero: nothing has expired.
	Now time.Time

	// Home returns the home directory of a user of this host, or "". nil: no user is known.
	Home func(user string) string
}

// The labels of imported tasks.
const (
	LabelKind = "imported"      // crontab, kubernetes, systemd or dkron
	LabelFrom = "imported-from" // the file, or what identifies it
	LabelNode = "imported-node" // the node, or the host, that it is for
	LabelTree = "imported-tree" // for tasks of a tree of hosts: Options.Tree
)

// Place is a line of a file, counted from 1; line 0 is the whole file.
type Place struct {
	File   string
	Line   int
	Others int // the number of other hosts that have the same line
}

func (p Place) String() string {
	text := p.File
	if p.Line > 0 {
		text = fmt.Sprintf("%s:%d", p.File, p.Line)
	}

	switch p.Others {
	case 0:
		return text
	case 1:
		return text + " (and on another host)"
	}

	return fmt.Sprintf("%s (and on %d other hosts)", text, p.Others)
}

// Job is one job of another system, as a task.
type Job struct {
	Place
	Spec  task.Spec
	Notes []string // properties of the job that have no counterpart

	// what and tag are the parts of the name that follow the prefix, for jobs of crontabs.
	what, tag string

	dependents []string // the jobs that Dkron starts after this one, by their names in Dkron
	prefix     string   // of the names of tasks, for dependents
}

// Refusal is something that was not converted, with the reason.
type Refusal struct {
	Place
	Why string
}

// Result is the result of an import.
type Result struct {
	Jobs     []Job
	Refusals []Refusal
	Notes    []Refusal // about lines that are not jobs
}

func (r *Result) addRefusal(at Place, format string, args ...any) {
	r.Refusals = append(r.Refusals, Refusal{at, fmt.Sprintf(format, args...)})
}

func (r *Result) addNote(at Place, format string, args ...any) {
	r.Notes = append(r.Notes, Refusal{at, fmt.Sprintf(format, args...)})
}

// Join adds the result of another text. It refuses a job whose name is already in use.
func (r *Result) Join(other Result) {
	taken := map[string]Place{}
	for _, j := range r.Jobs {
		taken[j.Spec.Namespace+"/"+j.Spec.Name] = j.Place
	}

	r.Refusals = append(r.Refusals, other.Refusals...)
	r.Notes = append(r.Notes, other.Notes...)
	for _, j := range other.Jobs {
		if at, ok := taken[j.Spec.Namespace+"/"+j.Spec.Name]; ok {
			r.addRefusal(j.Place, "the name %s is already used by %s; use --prefix to distinguish them", j.Spec.Name, at)
			continue
		}
		taken[j.Spec.Namespace+"/"+j.Spec.Name] = j.Place
		r.Jobs = append(r.Jobs, j)
	}
}

// addJob adds a job if its spec is valid, and refuses it otherwise.
func (r *Result) addJob(j Job) {
	err := j.Spec.Validate()
	if err == nil {
		err = schedule.Check(j.Spec.Timing())
	}

	if err != nil {
		r.addRefusal(j.Place, "%v", err)
		return
	}

	r.Jobs = append(r.Jobs, j)
}

// shadowHistory is for how long a shadow keeps the record of each tick, so that a day or two can be compared with the log of
// the system that still runs the job. The ledger only counts frequent ticks.
const shadowHistory = task.Duration(48 * time.Hour)

// newSpec returns a task with the options and the labels for its kind and origin.
func (o Options) newSpec(kind, from string) task.Spec {
	s := task.Defaults()
	if o.Namespace != "" {
		s.Namespace = o.Namespace
	}

	if o.Timezone != "" {
		s.Timezone = o.Timezone
	}

	s.Shadow = o.Shadow
	switch {
	case o.Keep > 0:
		s.History.Keep = o.Keep
	case o.Shadow:
		s.History.KeepFor = shadowHistory
	}

	s.Labels = map[string]string{LabelKind: kind}
	if v := clipSlug(from, task.MaxLabel); v != "" {
		s.Labels[LabelFrom] = v
	}

	switch {
	case o.Node != "":
		s.Target.Selector = "node = " + o.Node
		s.Labels[LabelNode] = clipSlug(o.Node, task.MaxLabel)
	case o.Host != "":
		s.Target.Selector = "host = " + o.Host
		s.Labels[LabelNode] = clipSlug(o.Host, task.MaxLabel)
	}

	return s
}

// makeDescription makes a valid description of user text: without control characters, and not longer than allowed.
func makeDescription(text string) string {
	text = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, text), "")

	for len(text) > task.MaxDescription {
		text = strings.ToValidUTF8(text[:task.MaxDescription], "")
	}

	return strings.TrimSpace(text)
}

var (
	notInName   = regexp.MustCompile(`[^a-z0-9._-]+`)
	dotsPattern = regexp.MustCompile(`\.\.+`)
)

// makeSlug converts a text to what a name may contain; "" if nothing remains.
func makeSlug(text string) string {
	text = notInName.ReplaceAllString(strings.ToLower(text), "-")
	return strings.Trim(dotsPattern.ReplaceAllString(text, "."), "-._")
}

// clipSlug is makeSlug with a limit of bytes.
func clipSlug(text string, most int) string {
	if text = makeSlug(text); len(text) > most {
		text = strings.Trim(text[:most], "-._")
	}
	return text
}

// joinName joins the parts of a name that are not empty.
func joinName(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	return strings.Join(parts, "-")
}

// hashTag returns four letters that are derived from a text, so that similar commands have different names.
func hashTag(text string) string {
	sum := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:4])
}
