package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	enoughTicks = 60          // decided since the previous fault, so that the next one counts
	maxFailures = 5           // a run with this many failures ends
	patience    = time.Minute // for ticks
)

// run injects faults by the world's seed until the time is over, or the given ones once each. It returns the
// injections.
func (w *world) run(faults []*fault, length time.Duration) (done []*injection, off map[string]string) {
	r := rand.New(rand.NewPCG(w.seed, 0))
	off = map[string]string{}
	on := slices.DeleteFunc(slices.Clone(faults), func(f *fault) bool {
		if f.off == nil {
			return false
		}

		if why := f.off(w); why != "" {
			off[f.name] = why
		}

		return off[f.name] != ""
	})

	d := &deck{rnd: r, all: on}

	if _, err := w.converge(); err != nil {
		w.fail("G16", "before any fault: %v", err)
		return nil, off
	}

	end := time.Now().Add(length)

	for i := 0; len(w.failures) < maxFailures; i++ {
		if length > 0 && time.Now().After(end) || length == 0 && i == len(on) {
			break
		}

		ticks := w.awaitTicks()
		first := d.next(func(*fault) bool { return true })
		done = append(done, w.strike(r, d, first, ticks, length > 0)...)
	}

	return done, off
}

// awaitTicks waits until enough ticks are decided since its last call.
func (w *world) awaitTicks() int {
	before := w.ticksBefore
	deadline := time.Now().Add(patience)
	for w.countDecided()-before < enoughTicks && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}

	w.ticksBefore = w.countDecided()

	return w.ticksBefore - before
}

// strike injects a fault, sometimes with a second one at the same time, removes both, and waits until the cluster
// has recovered.
func (w *world) strike(r *rand.Rand, d *deck, f *fault, ticks int, pairs bool) (done []*injection) {
	var heals []func() error
	inject := func(f *fault) {
		in := &injection{fault: f, rnd: rand.New(rand.NewPCG(r.Uint64(), r.Uint64())), began: time.Now(), ticks: ticks, counted: ticks >= enoughTicks}
		heal, err := f.inject(w, in)
		w.say("%-24s %s", f.name, in.note)
		if err != nil {
			w.say("%-24s does not count: %v", f.name, err)
			in.counted = false
		}

		if heal != nil {
			heals = append(heals, heal)
		}

		done = append(done, in)
	}

	hold := f.about(r)
	if !pairs { // a short run
		hold = f.hold[0]
	}

	inject(f)

	if pairs && !f.alone && r.IntN(4) == 0 {
		if second := d.next(func(g *fault) bool { return !g.alone && g.group != f.group }); second != nil {
			time.Sleep(hold / 3)
			hold = max(hold*2/3, second.about(r))
			inject(second)
		}
	}

	time.Sleep(hold)

	for _, heal := range slices.Backward(heals) {
		if err := heal(); err != nil {
			w.fail("harness", "%s is not mended: %v", f.name, err)
		}
	}

	healed := time.Now()
	took, err := w.converge()
	if err != nil {
		w.fail("G16", "%s and what went with it are over for %s, and: %v", f.name, time.Since(healed).Round(time.Millisecond), err)
	}

	for _, in := range done {
		in.healed, in.recovered = healed, took
	}

	for _, n := range w.nodes {
		n.busy = false
		if !n.exits {
			w.must(w.startNode(n)) // it has ended by itself, which is reported
		}
		w.scrape(n)
	}

	w.countDecided()
	w.ticksBefore = w.decided

	return done
}

func (in *injection) String() string {
	return fmt.Sprintf("%s %s %s", in.began.UTC().Format("15:04:05.000"), in.fault.name, in.note)
}
