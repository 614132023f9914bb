package chaos_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// fault is a kind of fault.
type fault struct {
	name  string
	group string
	what  string // for people
	// off returns why the fault is not injected, or "".
	off func(*world) string
	// inject injects the fault, and returns a function that removes it.
	inject func(*world, *injection) (heal func() error, err error)
	// hold is how long it lasts, at least and at most.
	hold [2]time.Duration
	// alone means that no other fault may be injected at the same time.
	alone bool
	// quick means that it is part of the short run.
	quick bool
}

// injection is one injected fault.
type injection struct {
	fault *fault
	rnd   *rand.Rand
	node  *node // the affected node, if there is one
	note  string

	began, healed time.Time
	recovered     time.Duration // from the removal until the cluster was settled
	ticks         int           // decided since the previous fault
	counted       bool          // there were enough ticks
	silence       time.Duration // the longest silence of a ticker in that time
}

// pick chooses a node that no fault affects at the moment.
func (w *world) pick(in *injection, others ...*node) (*node, error) {
	up := slices.DeleteFunc(w.up(), func(n *node) bool { return slices.Contains(others, n) || n.busy })
	if len(up) == 0 {
		return nil, errors.New("no node is left to be hurt")
	}

	n := up[in.rnd.IntN(len(up))]
	in.node, in.note = n, n.name
	n.busy = true

	return n, nil
}

// onNode returns a fault that affects one node, from two functions that inject and remove it.
func onNode(do func(*world, *injection, *node) error, undo func(*world, *node) error) func(*world, *injection) (func() error, error) {
	return func(w *world, in *injection) (func() error, error) {
		n, err := w.pick(in)
		if err != nil {
			return nil, err
		}
		return func() error { return undo(w, n) }, do(w, in, n)
	}
}

// about draws how long the fault lasts.
func (f *fault) about(r *rand.Rand) time.Duration {
	return f.hold[0] + time.Duration(r.Int64N(int64(f.hold[1]-f.hold[0])+1))
}

// deck draws faults. Each is drawn once before any is drawn again.
type deck struct {
	rnd  *rand.Rand
	all  []*fault
	left []*fault
}

// next returns the next fault that may accepts, or nil if there is none in the deck.
func (d *deck) next(may func(*fault) bool) *fault {
	for range 2 {
		for i, f := range d.left {
			if may(f) {
				d.left = slices.Delete(d.left, i, i+1)
				return f
			}
		}

		d.left = append(d.left, d.shuffled()...)
	}

	return nil
}

func (d *deck) shuffled() []*fault {
	all := slices.Clone(d.all)
	d.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func lasting(a, b float64) [2]time.Duration {
	return [2]time.Duration{time.Duration(a * float64(time.Second)), time.Duration(b * float64(time.Second))}
}

// allFaults returns all kinds of faults.
func allFaults() []*fault {
	return slices.Concat(nodeFaults, executorFaults, etcdFaults, networkFaults, clockFaults, loadFaults, targetFaults, alertFaults)
}

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
		n.busy, n.frozenLong = false, false
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
