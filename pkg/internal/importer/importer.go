// Package importer reads the schedules of other systems, crontabs, CronJobs of
// Kubernetes and timers of systemd, and says what tasks they come to.
//
// It guarantees that what it takes is a valid task with the same ticks, and that
// nothing gets lost unseen: what it cannot take is refused with its place, and what
// has no counterpart is noted at its job. The same text makes the same tasks, whose
// names follow from the place and the command, never from a line number or a
// schedule: to import again after an edit changes tasks instead of making others.
//
// It is pure: it reads no files and no clock, and knows of the host what Options say.
package importer

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxFile is how many bytes a file may have.
const MaxFile = 4 << 20

// Options are what the text does not say.
type Options struct {
	Namespace string // of the tasks; "" is the default one, or what a CronJob says
	Prefix    string // of the tasks' names
	Timezone  string // of schedules that do not say; "" is UTC
	Node      string // name of the node on which the tasks are to run; "" is any, or one of Host
	Host      string // label "host" of the nodes on which the tasks are to run, without Node; "" is any
	Shadow    bool   // the tasks only record their ticks
	Keep      int    // how many ended runs to remember; 0: the default
}

// The labels of what was imported.
const (
	LabelKind = "imported"      // crontab, kubernetes or systemd
	LabelFrom = "imported-from" // the file, or what stands for it
	LabelNode = "imported-node" // the node, or the host, that it is for
)

// Place is a line of a file, counted from 1; 0 is the file as a whole.
type Place struct {
	File string
	Line int
}

func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Job is one job of another system, as a task.
type Job struct {
	Place
	Spec  task.Spec
	Notes []string // what of the job has no counterpart
}

// Refusal is something that was not taken, and why.
type Refusal struct {
	Place
	Why string
}

// Result is what was found.
type Result struct {
	Jobs     []Job
	Refusals []Refusal
	Notes    []Refusal // what is to be said of a line that is no job
}

func (r *Result) addRefusal(at Place, format string, args ...any) {
	r.Refusals = append(r.Refusals, Refusal{at, fmt.Sprintf(format, args...)})
}

func (r *Result) addNote(at Place, format string, args ...any) {
	r.Notes = append(r.Notes, Refusal{at, fmt.Sprintf(format, args...)})
}

// Join adds what another text came to. A job whose name is taken is refused.
func (r *Result) Join(other Result) {
	taken := map[string]Place{}
	for _, j := range r.Jobs {
		taken[j.Spec.Namespace+"/"+j.Spec.Name] = j.Place
	}

	r.Refusals = append(r.Refusals, other.Refusals...)
	r.Notes = append(r.Notes, other.Notes...)
	for _, j := range other.Jobs {
		if at, is := taken[j.Spec.Namespace+"/"+j.Spec.Name]; is {
			r.addRefusal(j.Place, "the name %s is that of %s, too; --prefix tells them apart", j.Spec.Name, at)
			continue
		}
		r.Jobs = append(r.Jobs, j)
	}
}

// addJob adds a job, if its spec is valid.
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

// newSpec is a task of a kind, from a place, with what the options say.
func (o Options) newSpec(kind, from string) task.Spec {
	s := task.Defaults()
	if o.Namespace != "" {
		s.Namespace = o.Namespace
	}

	if o.Timezone != "" {
		s.Timezone = o.Timezone
	}

	s.Shadow = o.Shadow
	if o.Keep > 0 {
		s.History.Keep = o.Keep
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

// makeDescription makes a description of what people wrote: no control characters, and not
// more than a task may have.
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
