package chaos_test

import (
	"errors"
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
	return slices.Concat(nodeFaults, executorFaults, etcdFaults, networkFaults, clockFaults, loadFaults, targetFaults)
}
