package sim

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/testkit/pasttick"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// judgeAnswers asks the API about past ticks of each task, and returns the answers that are wrong. An answer may say what is not
// on record, but nothing else than what happened.
func (w *world) judgeAnswers(seed uint64) (wrong []string) {
	r := rand.New(rand.NewPCG(seed, 4))
	c := w.clientOf(w.nodes[w.names[0]])
	past := pasttick.Read(w.admin.Keys(), checkEvents(w.store.Events()), w.edits.wereUncompared)

	for _, ref := range slices.SortedFunc(maps.Keys(past.Ticks), func(a, b record.Ref) int { return strings.Compare(a.String(), b.String()) }) {
		wrong = append(wrong, w.judgeTicks(c, ref, past.Ticks[ref], r)...)
	}

	return wrong
}

// judgeTicks asks about some ticks of a task.
func (w *world) judgeTicks(c *client.Client, ref record.Ref, ticks []pasttick.Tick, r *rand.Rand) (wrong []string) {
	const most = 24
	ticks = slices.Clone(ticks)
	r.Shuffle(len(ticks), func(i, j int) { ticks[i], ticks[j] = ticks[j], ticks[i] })

	for _, t := range ticks[:min(len(ticks), most)] {
		ctx, cancel := context.WithTimeout(w.life, 10*time.Second)
		a, err := c.Tasks.Why(ctx, ref.Namespace, ref.Name, t.Question())
		cancel()

		if err != nil {
			w.logLine("> why %s %s: %v", ref, t.At, err)
			continue
		}

		w.countAnswer(a)
		// why compares times of several nodes to find out whether a record may have been deleted.
		if w.skewed > 0 && !task.State(a.Verdict).Final() {
			continue
		}

		if what := t.Contradiction(a); what != "" {
			wrong = append(wrong, fmt.Sprintf("why %s at %s: %s: the answer is %s: %s", ref, t.At, what, a.Verdict, a.Sentence))
		}
	}

	return wrong
}

// countAnswer counts where an answer came from.
func (w *world) countAnswer(a task.Answer) {
	switch {
	case a.Verdict == task.VerdictForgotten:
		w.countReached("why: not on record")
	case a.Ledger != nil:
		w.countReached("why: from the ledger as " + string(a.Ledger.Kind))
	default:
		w.countReached("why: from the history")
	}
}
