package task

import (
	"slices"
	"strings"
	"time"
)

// Freeze is a switch that stops firing, of a namespace or of the whole cluster:
// while it holds, ticks are skipped, what waits waits on, and nothing starts.
type Freeze struct {
	Namespace string `json:"namespace,omitempty" doc:"Empty: the whole cluster."`
	Since     Time   `json:"since"`
	By        string `json:"by,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Ended     Time   `json:"ended,omitzero"`
	EndedBy   string `json:"ended_by,omitempty"`
}

// Freezes is the cluster's record of them: those that hold, at most one for each
// namespace and one for the cluster, and the latest that ended, the newest first.
type Freezes struct {
	Holding []Freeze `json:"holding"`
	Past    []Freeze `json:"past,omitempty"`
}

// keepFreezes is how many that ended are remembered.
const keepFreezes = 50

// Of is the freeze that holds for a namespace, the cluster's first; nil if none does.
func (f *Freezes) Of(namespace string) *Freeze {
	if f == nil {
		return nil
	}

	for i := range f.Holding {
		if f.Holding[i].Namespace == "" {
			return &f.Holding[i]
		}
	}

	for i := range f.Holding {
		if f.Holding[i].Namespace == namespace {
			return &f.Holding[i]
		}
	}

	return nil
}

// At is a freeze that held for a namespace at an instant, as far as is remembered.
func (f *Freezes) At(namespace string, at time.Time) *Freeze {
	if f == nil {
		return nil
	}

	for _, list := range [][]Freeze{f.Holding, f.Past} {
		for i := range list {
			z := &list[i]
			if (z.Namespace == "" || z.Namespace == namespace) && !at.Before(z.Since.Time) && (z.Ended.IsZero() || at.Before(z.Ended.Time)) {
				return z
			}
		}
	}

	return nil
}

// HeldUp is the latest freeze of a namespace that ended between two instants, as far
// as is remembered: what was there at the first, and started at the second, waited
// for its end.
func (f *Freezes) HeldUp(namespace string, from, until time.Time) *Freeze {
	if f == nil {
		return nil
	}

	for i := range f.Past {
		z := &f.Past[i]
		if (z.Namespace == "" || z.Namespace == namespace) && z.Ended.After(from) && !z.Ended.After(until) {
			return z
		}
	}

	return nil
}

// Freeze is f and z besides; f itself, and false, if one holds for that very
// namespace, or for the cluster, already.
func (f Freezes) Freeze(z Freeze) (Freezes, bool) {
	if f.indexOf(z.Namespace) >= 0 {
		return f, false
	}
	return Freezes{Holding: append(slices.Clone(f.Holding), z), Past: f.Past}, true
}

// Unfreeze is f without the freeze of that very namespace, or of the cluster (""),
// which is the first of the past ones then; false if there is none.
func (f Freezes) Unfreeze(namespace string, at Time, by string) (Freezes, Freeze, bool) {
	i := f.indexOf(namespace)
	if i < 0 {
		return f, Freeze{}, false
	}

	z := f.Holding[i]
	z.Ended, z.EndedBy = at, by
	past := append([]Freeze{z}, f.Past...)

	return Freezes{Holding: slices.Delete(slices.Clone(f.Holding), i, i+1), Past: past[:min(len(past), keepFreezes)]}, z, true
}

func (f Freezes) indexOf(namespace string) int {
	return slices.IndexFunc(f.Holding, func(z Freeze) bool { return z.Namespace == namespace })
}

// CheckReason checks why somebody freezes: for whoever wonders why nothing runs.
func CheckReason(field, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return Invalid(CodeRequired, field, "is required: it is shown to people who ask why nothing runs")
	}
	return checkText(field, reason, MaxReason)
}
