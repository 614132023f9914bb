package run

import (
	"context"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

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
		case p.PausedBy != "" && p.State == task.Dispatched: // or it has just started
			s.held++
		case p.PausedBy != "":
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
