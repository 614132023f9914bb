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
	"github.com/carillonhq/carillon/pkg/internal/test/pasttick"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// judgeAnswers asks the API about the past of each task, and returns the answers that are wrong: about single ticks, about all
// ticks at once, and since when its ledger is complete. An answer is correct if it says what happened, or what is not on record.
func (w *world) judgeAnswers(seed uint64) (wrong []string) {
	r := rand.New(rand.NewPCG(seed, 4))
	c := w.clientOf(w.nodes[w.names[0]])
	past := pasttick.Read(w.admin.Keys(), checkEvents(w.store.Events()), w.edits.wereUncompared)

	for _, ref := range slices.SortedFunc(maps.Keys(past.Counts), func(a, b record.Ref) int { return strings.Compare(a.String(), b.String()) }) {
		wrong = slices.Concat(wrong, w.judgeTicks(c, ref, past.Ticks[ref], r), w.judgeRange(c, ref, past), w.judgeLedger(c, ref, past))
	}

	return wrong
}

// ask asks the API something about a task. It returns false if there is no answer.
func ask[T any](w *world, what string, ref record.Ref, ask func(context.Context) (T, error)) (T, bool) {
	ctx, cancel := context.WithTimeout(w.life, 10*time.Second)
	defer cancel()

	a, err := ask(ctx)
	if err != nil {
		w.logLine("> %s of %s: %v", what, ref, err)
	}

	return a, err == nil
}

// judgeTicks asks about some ticks of a task.
func (w *world) judgeTicks(c *client.Client, ref record.Ref, ticks []pasttick.Tick, r *rand.Rand) (wrong []string) {
	const most = 24
	ticks = slices.Clone(ticks)
	r.Shuffle(len(ticks), func(i, j int) { ticks[i], ticks[j] = ticks[j], ticks[i] })

	for _, t := range ticks[:min(len(ticks), most)] {
		a, ok := ask(w, "why "+t.At.String(), ref, func(ctx context.Context) (task.Answer, error) {
			return c.Tasks.Why(ctx, ref.Namespace, ref.Name, t.Question())
		})
		if !ok {
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

// judgeRange asks about all ticks of a task at once.
func (w *world) judgeRange(c *client.Client, ref record.Ref, past pasttick.Past) (wrong []string) {
	if w.skewed > 0 {
		return nil // for the reason above
	}

	a, ok := ask(w, "why all", ref, func(ctx context.Context) (task.Answer, error) {
		return c.Tasks.Why(ctx, ref.Namespace, ref.Name, pasttick.RangeQuestion(w.began, time.Now()))
	})
	if !ok {
		return nil
	}

	w.countReached("why: a range")
	for _, what := range past.RangeContradictions(ref, a) {
		wrong = append(wrong, fmt.Sprintf("why %s in the whole range: %s: %s", ref, what, a.Sentence))
	}

	return wrong
}

// judgeLedger asks since when the ledger of a task is complete. A full etcd deletes records without a ledger.
func (w *world) judgeLedger(c *client.Client, ref record.Ref, past pasttick.Past) (wrong []string) {
	if w.full {
		return nil
	}

	l, ok := ask(w, "ledger", ref, func(ctx context.Context) (client.TaskLedger, error) {
		return c.Tasks.Ledger(ctx, ref.Namespace, ref.Name, client.LedgerOptions{})
	})
	if !ok {
		return nil
	}

	if !l.CompleteSince.IsZero() {
		w.countReached("ledger that is complete since a time")
	}

	if what := past.LedgerContradiction(ref, l); what != "" {
		wrong = append(wrong, fmt.Sprintf("ledger of %s (it remembers %s): %s", ref, l.Remembers, what))
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
