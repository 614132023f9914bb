package chaos_test

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/pasttick"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// questions is how many past ticks judgeAnswers asks about.
const questions = 300

// judgeAnswers asks the API about past ticks of the load. Most of their records are in ledgers by then. No answer may say
// anything else than what the recorder has seen (G31).
func (w *world) judgeAnswers() {
	if len(w.up()) == 0 {
		return // quiet has reported it
	}

	if err := w.recorder.CatchUp(w.ctx); err != nil {
		w.fail("recording", "it proves nothing: %v", err)
		return
	}

	past := pasttick.Read(w.keys, w.recorder.Events(), nil).Ticks
	refs := slices.SortedFunc(maps.Keys(past), func(a, b record.Ref) int { return cmp.Compare(a.String(), b.String()) })
	refs = slices.DeleteFunc(refs, func(r record.Ref) bool { return r.Namespace != loadSpace })
	if len(refs) == 0 {
		return
	}

	r := rand.New(rand.NewPCG(uint64(w.seed), 7))
	from := map[string]int{}

	for range questions {
		ref := refs[r.IntN(len(refs))]
		t := past[ref][r.IntN(len(past[ref]))]

		ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
		a, err := w.up()[0].client.Tasks.Why(ctx, ref.Namespace, ref.Name, t.Question())
		cancel()

		switch what := t.Contradiction(a); {
		case err != nil:
			from["failed"]++
		case what != "":
			w.fail("G31", "why %s at %s: %s: the answer is %s: %s", ref, t.At, what, a.Verdict, a.Sentence)
		case a.Ledger != nil:
			from["the ledger"]++
		case a.Verdict == task.VerdictForgotten:
			from["not on record"]++
		default:
			from["the history"]++
		}
	}

	w.say("answers about past ticks came from: %v", from)
}
