// Package logs implements "carillon logs". It prints the output of runs, also while they are active, of many
// runs at once, and across lost connections.
//
// A Merger has one RunOutput for each run, and never splits a line of one output by another output. The output
// of ended runs is printed in the order of the times of their lines. Followed output is held back for a moment,
// so that lines from several nodes appear in order.
package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// logFlags contains the flags of the command.
type logFlags struct {
	selection.Flags
	follow        bool
	attempt, tail int
	timestamps    bool
	step          string
	sinceWord     string
	since         time.Time
}

// Command returns "carillon logs".
func Command(f *factory.Factory) *cobra.Command {
	var o logFlags
	cmd := &cobra.Command{
		Use:   "logs RUN... | -l SELECTOR",
		Short: "Print or follow the output of runs",
		Long: "Print the output of runs; for a task, the output of its latest run. With -f, follow a run until it has ended, including\n" +
			"retries. If you name a task, -f continues with its next runs until you press Ctrl-C. The output of several tasks is\n" +
			"merged by time, and each line begins with the name of its task.\n\n" +
			"The output of a run of a workflow is that of all its steps; --step selects one of them, or one of its items.\n\n" + selection.RunHelp,
		Example: `  carillon logs nightly-backup
  carillon logs nightly-backup -f --tail 20
  carillon logs nightly-backup@02:30 --timestamps
  carillon logs 'etl-*' report -f
  carillon logs -l team=data --since 1h
  carillon logs 20261120T220500.000Z-k3f9 --attempt 1
  carillon logs orders --step load/1`,
		ValidArgsFunction: complete.Runs(f),
	}
	o.Bind(cmd, false)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "follow the output; for a task, continue with its next runs")
	cmd.Flags().IntVar(&o.attempt, "attempt", 0, "print only attempt `N` (default: the latest; with -f, also later ones)")
	cmd.Flags().IntVar(&o.tail, "tail", 0, "print only the last `N` lines (0: all; default with -f and several tasks: 10)")
	cmd.Flags().BoolVarP(&o.timestamps, "timestamps", "t", false, "begin each line with its time, or - if the time is not known")
	cmd.Flags().StringVar(&o.step, "step", "", "print only the output of this `STEP` of a workflow: NAME, or NAME/ITEM for one item of its map")
	complete.Register(cmd, "step", complete.Steps(f))
	cmd.Flags().StringVar(&o.sinceWord, "since", "", "print all runs that started since this `TIME`, or within a duration such as 1h")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := checkReading(f, cmd, &o); err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		named, err := namedLogs(cmd.Context(), f, c, words, o.Flags)
		if err != nil {
			return err
		}

		if o.step != "" {
			if named, err = stepLogs(cmd.Context(), f, c, named, o.step); err != nil {
				return err
			}
		}

		if o.follow && len(named.tasks) > 1 && !cmd.Flags().Changed("tail") && o.since.IsZero() {
			o.tail = usualTail
		}

		if o.follow {
			return followTasks(cmd.Context(), f, c, named, o)
		}

		return printLogs(cmd.Context(), f, c, named, o)
	}

	return factory.LimitFormats(cmd, output.FormatTable, output.FormatJSON, output.FormatJSONL) // JSON applies only to errors and to jsonl lines
}

// usualTail is the default number of existing lines that are printed of each of several followed tasks.
const usualTail = 10

// checkReading checks the flags and parses --since.
func checkReading(f *factory.Factory, cmd *cobra.Command, o *logFlags) error {
	switch {
	case o.attempt < 0:
		return failure.Usage("--attempt %d: must not be negative", o.attempt)
	case o.tail < 0:
		return failure.Usage("--tail %d: must not be negative", o.tail)
	case o.attempt > 0 && o.sinceWord != "":
		return failure.Usage("--attempt and --since cannot be used together")
	case o.step != "" && o.sinceWord != "":
		return failure.Usage("--step and --since cannot be used together")
	}

	if err := factory.RefuseEmpty(cmd, "since", "selector", "step"); err != nil || o.sinceWord == "" {
		return err
	}

	var err error
	o.since, err = f.ParseTime("since", o.sinceWord, f.Zone(output.ReaderZone), schedule.Past)

	return err
}

// Tasks contains the tasks and the single runs that a command line names.
type Tasks struct {
	tasks []selection.Ref
	Runs  []task.Run
	step  string // the runs are the parts of this step
}

// Refs returns all tasks concerned, each once.
func (t Tasks) Refs() []selection.Ref {
	refs := slices.Clone(t.tasks)
	for _, r := range t.Runs {
		if f := (selection.Ref{Namespace: r.Namespace, Name: r.Task}); !slices.Contains(refs, f) {
			refs = append(refs, f)
		}
	}

	return refs
}

// namedLogs resolves the words of the command line.
func namedLogs(ctx context.Context, f *factory.Factory, c *client.Client, words []string, p selection.Flags) (n Tasks, err error) {
	var names []string
	for _, word := range words {
		is, err := namesRun(word)
		if err != nil {
			return n, err
		}

		if !is || p.Selector != "" {
			names = append(names, word)
			continue
		}

		r, err := selection.FindRun(ctx, f, c, word)
		if err != nil {
			return n, err
		}

		n.Runs = append(n.Runs, r)
	}

	if len(names) == 0 && len(n.Runs) > 0 {
		return n, nil
	}

	ch, err := selection.Find(ctx, f, c, names, p)
	n.tasks = ch.Refs
	if err == nil && len(n.Refs()) == 0 {
		err = failure.NotFound("%s", selection.NoTasks(ctx, f, c, f.Scope(), client.QueryTerm("selector", p.Selector)))
	}

	return n, err
}

// stepLogs replaces the run, or the latest run of the task, by its parts that belong to a step, or to one of its items.
func stepLogs(ctx context.Context, f *factory.Factory, c *client.Client, n Tasks, step string) (Tasks, error) {
	if len(n.tasks)+len(n.Runs) != 1 {
		return n, failure.Usage("--step requires exactly one run or task")
	}

	var run task.Run
	if len(n.Runs) == 1 {
		run = n.Runs[0]
	} else {
		var err error
		if run, err = selection.FindRun(ctx, f, c, selection.Show(f, n.tasks[0])); err != nil {
			return n, err
		}
	}

	steps, err := c.Runs.Steps(ctx, run.Namespace, run.Task, run.ID, client.StepsOptions{Step: step, Items: task.MaxMapItems})
	if err != nil {
		return n, err
	}

	n = Tasks{step: step}
	for _, s := range steps.Steps {
		for _, p := range s.Parts {
			if p.Node == "" || p.Attempt == 0 {
				continue
			}

			part := run.OfPart(p.Part)
			part.Step, part.Item = s.Name, p.Item
			n.Runs = append(n.Runs, part)
		}

		if item := strings.Contains(step, "/"); len(n.Runs) == 0 && item && s.Items > 0 && len(s.Parts) == 0 {
			return n, failure.NotFound("run %s has no %s; step %s has %s", run.ID, task.Quote(step), s.Name, output.Plural(int64(s.Items), "item"))
		}
		if len(n.Runs) == 0 {
			return n, failure.NotFound("step %s of run %s has no output: %s", task.Quote(step), run.ID, wording.StepResult(s, f.Now())).
				WithHint("carillon why %s --step %s", run.ID, step)
		}
	}

	return n, nil
}

// namesRun reports whether a word names a run and not a task.
func namesRun(word string) (bool, error) {
	if selection.IsGlob(word) {
		return false, nil
	}

	w, err := selection.ParseRunWord(word)
	if err != nil {
		return false, err
	}

	_, id, slashed := strings.Cut(w.Task, "/")

	return w.ID != "" || strings.Contains(word, "@") || slashed && selection.RunIDStart.MatchString(id), nil
}

// beginOf returns when a run began, as far as is known.
func beginOf(r task.Run) time.Time {
	for _, t := range []task.Time{r.StartedAt, r.DispatchedAt, r.CreatedAt} {
		if !t.IsZero() {
			return t.Time
		}
	}

	return r.ScheduledTime.Time
}

// chooseRuns selects the runs of a task to print. runs is sorted from the newest to the oldest; the result is
// sorted from the oldest to the newest. It contains the latest run, or with --since all runs since that time.
// With -f it also contains all runs that have not ended.
func (l *logFlags) chooseRuns(runs []task.Run) []task.Run {
	var list []task.Run
	for _, r := range runs {
		if r.State == task.Skipped || r.State == task.Missed {
			continue
		}

		live := l.follow && !r.State.Final()
		if l.since.IsZero() && (len(list) == 0 || live) || !l.since.IsZero() && (live || !beginOf(r).Before(l.since)) {
			list = append(list, r)
		}
	}

	slices.SortStableFunc(list, func(a, b task.Run) int { return beginOf(a).Compare(beginOf(b)) })

	return list
}

// runsOf returns the runs of a task to print. If there is no such task, the word may be a prefix of a run's id.
func runsOf(ctx context.Context, f *factory.Factory, c *client.Client, r selection.Ref, o *logFlags) ([]task.Run, error) {
	runs, err := c.Runs.ListByTask(ctx, r.Namespace, r.Name, client.RunListOptions{})
	if err == nil {
		return o.chooseRuns(runs), nil
	}

	if errors.Is(err, task.ErrNotFound) && selection.AreDigits(r.Name) {
		if run, byID := c.Runs.Find(ctx, r.Namespace, r.Name); byID == nil {
			return []task.Run{run}, nil
		}
	}

	return nil, selection.ExplainMissing(ctx, f, c, r, err)
}

// printLogs prints the output of runs, without following them.
func printLogs(ctx context.Context, f *factory.Factory, c *client.Client, n Tasks, o logFlags) error {
	runs := n.Runs
	failed := batch.ForEach(ctx, f, n.tasks, func(r selection.Ref) error {
		list, err := runsOf(ctx, f, c, r, &o)
		switch {
		case err != nil:
			return err
		case len(list) > 0:
		case !o.since.IsZero():
			f.Note("%s has not run since then", selection.Show(f, r))
		case len(n.Refs()) > 1:
			f.Note("%s has not run yet", selection.Show(f, r))
		default:
			_, err = selection.NthRun(f, r, nil, 0)
		}

		runs = append(runs, list...)

		return err
	})

	if failed != nil && len(runs) == 0 {
		return failed
	}

	slices.SortStableFunc(runs, func(x, y task.Run) int { return cmp.Or(beginOf(x).Compare(beginOf(y)), strings.Compare(x.ID, y.ID)) })
	runs, parts, err := replaceByParts(ctx, f, c, runs)
	if err != nil {
		return err
	}

	m := NewMerger(f, n.Refs())
	m.timestamps, m.patient, m.parts = o.timestamps, true, parts || n.step != "" && len(runs) > 1
	err = f.WithPager(func(out io.Writer) error {
		m.out = out
		if (m.prefixed || m.parts) && len(runs) > 1 {
			err := m.printByTime(ctx, c, runs, client.LogOptions{Attempt: o.attempt, Tail: o.tail})
			return cmp.Or(m.writeError(), err)
		}

		err := batch.ForEach(ctx, f, runs, func(r task.Run) error {
			if m.writeError() != nil {
				return nil // nobody reads the output any more
			}

			err := m.printRun(ctx, c, r, client.LogOptions{Attempt: o.attempt, Tail: o.tail})

			if m.writeError() != nil {
				return nil
			}

			return err
		})

		return cmp.Or(m.writeError(), err)
	})

	if err == nil {
		err = failed
	}

	return err
}

// printRun prints the output of one run.
func (m *Merger) printRun(ctx context.Context, c *client.Client, r task.Run, o client.LogOptions) error {
	s, err := m.openSource(ctx, c, r, o)
	if err != nil {
		return err
	}

	defer s.closeSource()

	for {
		p, err := s.nextPiece()
		if err == io.EOF {
			return nil
		}

		if err == nil {
			err = s.output.addPiece(p)
		}

		if err != nil {
			return err
		}
	}
}

// source is the output of one run while it is read.
type source struct {
	output  *RunOutput
	body    *client.LogStream // nil: only the end of the output is available
	kept    string            // the end of the output from the record of the run
	hasRead bool              // hasRead output has been read
}

// openSource opens the output of a run. If the output is gone, the end that the record of the run contains is
// used instead.
func (m *Merger) openSource(ctx context.Context, c *client.Client, r task.Run, o client.LogOptions) (*source, error) {
	o.Times = m.wantsTimes()
	s := &source{output: m.Output(r)}
	s.output.attempt = cmp.Or(o.Attempt, max(r.Attempt, 1))
	var err error
	s.body, err = c.Logs.Open(ctx, r.Namespace, r.Task, r.ID, o)
	var e *client.Error

	gone := errors.As(err, &e) && (e.Code == client.CodeNoLogs || e.Code == client.CodeNodeAway)
	if gone && r.OutputTail != "" && (o.Attempt == 0 || o.Attempt == r.Attempt) {
		m.tellKept(r, e)
		s.body, s.kept = nil, r.OutputTail
		return s, nil
	}

	if gone && isUnkeptResponse(r, e) {
		m.tellUnkept()
		s.body = nil
		return s, nil
	}

	return s, err
}

// nextPiece returns the next piece of the output, or io.EOF at its end.
func (s *source) nextPiece() (p client.LogPiece, err error) {
	if s.body == nil {
		p.Text, s.kept = []byte(s.kept), ""
		if len(p.Text) == 0 {
			err = io.EOF
		}
	} else if p, err = s.body.Next(); err != nil && err != io.EOF {
		err = fmt.Errorf("read the output of %s: %w", s.output.run.ID, err)
	}

	s.hasRead = s.hasRead || len(p.Text) > 0
	m := s.output.m

	if err == io.EOF && !s.hasRead {
		switch {
		case m.parts:
		case m.prefixed:
			m.Tell("%s has no output", selection.Show(m.Factory, selection.Ref{Namespace: s.output.run.Namespace, Name: s.output.run.Task}))
		default:
			m.Tell("the run has no output")
		}
	}

	return p, err
}

// closeSource ends the output.
func (s *source) closeSource() {
	if s.body != nil {
		_ = s.body.Close()
	}
	s.output.endOutput()
}

// tellUnkept says why the responses to parts are not shown.
func (m *Merger) tellUnkept() {
	m.tellOnce("nodes store the responses of successful parts only with action.http.output: keep")
}

// tellKept says that the output comes from the record of the run, unless the record has all of it.
func (m *Merger) tellKept(r task.Run, why *client.Error) {
	switch {
	case int64(len(r.OutputTail)) == r.OutputBytes && !r.Truncated:
	case r.HTTPStatus > 0 && r.State == task.Succeeded:
		m.tellOnce("this is the end of the response, from the record of the run; a node stores whole responses of successful runs only with action.http.output: keep")
	default:
		m.Tell("cannot read the full output (%s); this is its end, from the record of the run", why.Message)
	}
}
