package run

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// pauseCommand returns "carillon run pause".
func pauseCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Suspend the processes of runs",
		Long: "Suspend the processes of runs on any node, until you run carillon run resume. A paused run is still active: it keeps its\n" +
			"slot, it counts for the overlap policy of its task, and you can cancel it. Time in a pause does not count towards the\n" +
			"timeout. If a node has received a run but not started it, the run does not start.\n\n" +
			"To stop the schedule of a task instead, use carillon task pause. For a run in parts, the command pauses only the parts\n" +
			"that nodes have received; later parts still start. A glob selects the runs that nodes have received, of all tasks whose\n" +
			"names match.\n\n" + selection.RunHelp,
		Example: `  carillon run pause nightly-backup
  carillon run pause 20261120T220500.000Z-k3f9
  carillon run pause 'sync-*' --dry-run
  carillon run pause -l team=data --yes`,
	}
	return runsCommand(f, cmd, &bulkFlags{of: []task.State{task.Dispatched, task.Running}}, "paused",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			r, err := c.Runs.Pause(ctx, r.Namespace, r.Task, r.ID)
			if err != nil {
				return r, "", err
			}
			if r.Fan != nil {
				return partsPaused(ctx, f, c, r)
			}

			r = awaitState(ctx, f, c, r, func(r task.Run) bool { return r.State == task.Paused || r.PausedBy == nil })
			switch {
			case r.State == task.Paused:
				return r, "paused " + r.ID, nil
			case r.State.Final(), !r.State.Active():
				return r, fmt.Sprintf("%s had ended before it could be paused: %s", r.ID, r.State), nil
			case r.PausedBy == nil:
				return r, "", fmt.Errorf("run %s: %s", r.ID, cmp.Or(r.Message, "another user has resumed it"))
			}

			return r, fmt.Sprintf("requested a pause of %s; to check it: %s", r.ID, "carillon run get "+r.ID), nil
		}, selection.RunName)
}

// resumeCommand returns "carillon run resume".
func resumeCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Resume paused runs",
		Long: "Resume runs that carillon run pause has paused. A run in parts is resumed with all of its parts. A glob selects the\n" +
			"paused runs and paused parts of all tasks whose names match.\n\n" +
			selection.RunHelp,
		Example: `  carillon run resume nightly-backup
  carillon run resume 20261120T220500.000Z-k3f9
  carillon run resume 'sync-*' --dry-run
  carillon run resume --all --yes`,
	}
	p := &bulkFlags{of: []task.State{task.Dispatched, task.Running, task.Paused}, parts: true, only: func(r task.Run) bool { return r.PausedBy != nil }}
	return runsCommand(f, cmd, p, "resumed",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			r, err := c.Runs.Resume(ctx, r.Namespace, r.Task, r.ID)
			if err != nil {
				return r, "", err
			}
			if r.Fan != nil {
				return partsResumed(ctx, f, c, r)
			}

			r = awaitState(ctx, f, c, r, func(r task.Run) bool { return r.State != task.Paused })
			said := "resumed " + r.ID
			if r.State == task.Paused {
				said = fmt.Sprintf("requested the resumption of %s; to check it: %s", r.ID, "carillon run get "+r.ID)
			}

			return r, said, nil
		}, selection.RunName)
}

// awaitState reads a run until is returns true or the time is up, and returns it as read last.
func awaitState(ctx context.Context, f *factory.Factory, c *client.Client, r task.Run, is func(task.Run) bool) task.Run {
	ctx, cancel := context.WithTimeout(ctx, f.NodeTimeout)
	defer cancel()

	for wait := 20 * time.Millisecond; !is(r) && r.State.Active(); wait = min(2*wait, 250*time.Millisecond) {
		if !clock.Sleep(ctx, wait) {
			return r
		}

		if now, err := c.Runs.Get(ctx, r.Namespace, r.Task, r.ID); err == nil {
			r = now
		}
	}

	return r
}

// partPauseCounts counts the parts of a run by their reaction to a pause.
type partPauseCounts struct {
	paused, asked, held, waiting, ended int
	going                               []task.Part // on a node, without a request to pause
}

// countPartPauses counts the parts of a run.
func countPartPauses(r task.Run) (s partPauseCounts) {
	for _, p := range r.Fan.Parts {
		switch {
		case p.State.Final():
			s.ended++
		case p.State == task.Queued:
			s.waiting++
		case p.State == task.Paused:
			s.paused++
		case p.PausedBy != nil && p.State == task.Dispatched: // or it has just started
			s.held++
		case p.PausedBy != nil:
			s.asked++
		default:
			s.going = append(s.going, p)
		}
	}

	return s
}

// partsPaused waits until the parts that received the request are paused, and describes the result.
func partsPaused(ctx context.Context, f *factory.Factory, c *client.Client, r task.Run) (task.Run, string, error) {
	r = awaitState(ctx, f, c, r, func(r task.Run) bool { s := countPartPauses(r); return s.asked+s.held == 0 })
	s := countPartPauses(r)

	if r.State.Final() {
		return r, fmt.Sprintf("%s had ended before it could be paused: %s", r.ID, r.State), nil
	}

	words := []string{fmt.Sprintf("paused %d of %d parts of %s", s.paused, len(r.Fan.Parts), r.ID)}
	add := func(n int, what string) {
		if n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, what))
		}
	}

	add(s.asked, "not paused yet (to check: carillon run get "+r.ID+")")
	add(s.held, "held before their start")
	add(s.ended, "ended")

	pronoun := "they"
	if s.waiting == 1 {
		pronoun = "it"
	}
	add(s.waiting, "not on a node yet; "+pronoun+" will still start")

	if len(s.going) == 0 {
		return r, strings.Join(words, ", "), nil
	}

	add(len(s.going), "not paused: "+goingWords(s.going))

	return r, "", fmt.Errorf("%s", strings.Join(words, ", "))
}

// goingWords names some parts that continue, with the reason if it is known.
func goingWords(parts []task.Part) string {
	const most = 3
	var words []string
	for _, p := range parts[:min(len(parts), most)] {
		word := fmt.Sprintf("part %d", p.Index)
		if p.Node != "" {
			word += " on " + p.Node
		}

		if p.Message != "" {
			word += fmt.Sprintf(" (%s)", output.OneLine(p.Message))
		}

		words = append(words, word)
	}

	if len(parts) > most {
		words = append(words, "…")
	}

	return strings.Join(words, ", ")
}

// partsResumed waits until the paused parts of a run continue.
func partsResumed(ctx context.Context, f *factory.Factory, c *client.Client, r task.Run) (task.Run, string, error) {
	r = awaitState(ctx, f, c, r, func(r task.Run) bool { return countPartPauses(r).paused == 0 })
	if n := countPartPauses(r).paused; n > 0 {
		return r, fmt.Sprintf("requested the resumption of %s; %d of its parts are still paused; to check them: carillon run get %s", r.ID, n, r.ID), nil
	}
	return r, "resumed " + r.ID, nil
}
