package chaos_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// fault is a kind of damage.
type fault struct {
	name  string
	group string
	what  string // for people
	// off says why it is not injected; "" if it is.
	off func(*world) string
	// inject does the damage, and returns what mends it.
	inject func(*world, *injection) (heal func() error, err error)
	// hold is how long it lasts, at least and at most.
	hold [2]time.Duration
	// alone: no other fault goes with it.
	alone bool
	// quick: it is one of those of the short run.
	quick bool
}

// injection is one fault that takes place.
type injection struct {
	fault *fault
	rnd   *rand.Rand
	node  *node // the one concerned, if one is
	note  string

	began, healed time.Time
	recovered     time.Duration // from healed until the cluster was settled
	ticks         int           // decided since the fault before
	counted       bool          // there were ticks enough
	silence       time.Duration // the longest of a ticker meanwhile
}

// pick chooses a node that no fault concerns at present.
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

// onNode is a fault that concerns one node, which does and undoes it.
func onNode(do func(*world, *injection, *node) error, undo func(*world, *node) error) func(*world, *injection) (func() error, error) {
	return func(w *world, in *injection) (func() error, error) {
		n, err := w.pick(in)
		if err != nil {
			return nil, err
		}
		return func() error { return undo(w, n) }, do(w, in, n)
	}
}

// about is a time around the hold of a fault.
func (f *fault) about(r *rand.Rand) time.Duration {
	return f.hold[0] + time.Duration(r.Int64N(int64(f.hold[1]-f.hold[0])+1))
}

// deck deals the faults: each once before any comes again.
type deck struct {
	rnd  *rand.Rand
	all  []*fault
	left []*fault
}

// next is the next fault that may; nil if there is none in the whole deck.
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

// allFaults is every kind there is.
func allFaults() []*fault {
	return slices.Concat(nodeFaults, executorFaults, etcdFaults, networkFaults, clockFaults, loadFaults)
}
