package task

import (
	"slices"
	"strings"
	"time"
)

// Freeze stops the firing of a namespace or of the whole cluster. While it is in force, ticks are skipped,
// queued runs keep waiting, and nothing starts.
type Freeze struct {
	Namespace string `json:"namespace,omitempty" doc:"Empty: the whole cluster."`
	Since     Time   `json:"since" doc:"When it began."`
	By        *Actor `json:"by,omitempty" doc:"Who began it."`
	Reason    string `json:"reason,omitempty" doc:"Why, as its author wrote it."`
	Ended     Time   `json:"ended,omitzero" doc:"When it ended."`
	EndedBy   *Actor `json:"ended_by,omitempty" doc:"Who ended it."`
}

// Freezes is the cluster's record of freezes: those in force, at most one for each namespace and one for the
// cluster, and the ones that ended last, the newest first.
type Freezes struct {
	Holding []Freeze `json:"holding" doc:"The freezes in effect."`
	Past    []Freeze `json:"past,omitempty" doc:"Freezes that have ended."`
}

// keepFreezes is the number of ended freezes that are kept.
const keepFreezes = 50

// Of returns the freeze in force for a namespace, or nil. The freeze of the cluster takes precedence.
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

// At returns a freeze that was in force for a namespace at an instant, or nil if none is on record.
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

// HeldUp returns the latest freeze of a namespace that ended between two instants, or nil if none is on record.
// A run that existed at from and started at until has waited for the end of that freeze.
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

// Lasted returns for how long a namespace was frozen between two instants, as far as that is on record.
func (f *Freezes) Lasted(namespace string, from, until time.Time) (sum time.Duration) {
	if f == nil {
		return 0
	}

	var all []Freeze
	for _, z := range slices.Concat(f.Holding, f.Past) {
		if z.Namespace == "" || z.Namespace == namespace {
			all = append(all, z)
		}
	}
	slices.SortFunc(all, func(a, b Freeze) int { return a.Since.Compare(b.Since.Time) })

	// A freeze of the cluster and one of the namespace may overlap. Each moment counts once.
	for _, z := range all {
		begin, end := z.Since.Time, z.Ended.Time
		if begin.Before(from) {
			begin = from
		}
		if end.IsZero() || end.After(until) {
			end = until
		}
		if end.After(begin) {
			sum += end.Sub(begin)
			from = end
		}
	}

	return sum
}

// Freeze returns f with z added. If a freeze of exactly this namespace, or of the cluster, is already in force,
// it returns f unchanged and false.
func (f Freezes) Freeze(z Freeze) (Freezes, bool) {
	if f.indexOf(z.Namespace) >= 0 {
		return f, false
	}
	return Freezes{Holding: append(slices.Clone(f.Holding), z), Past: f.Past}, true
}

// Unfreeze returns f without the freeze of exactly this namespace, or of the cluster (""). The ended freeze
// becomes the first one in Past. It returns false if there is no such freeze.
func (f Freezes) Unfreeze(namespace string, at Time, by *Actor) (Freezes, Freeze, bool) {
	i := f.indexOf(namespace)
	if i < 0 {
		return f, Freeze{}, false
	}

	z := f.Holding[i]
	z.Ended, z.EndedBy = at, by
	past := append([]Freeze{z}, f.Past...)

	return Freezes{Holding: slices.Delete(slices.Clone(f.Holding), i, i+1), Past: past[:min(len(past), keepFreezes)]}, z, true
}

// indexOf returns the index in Holding of the freeze of exactly this namespace, or -1.
func (f Freezes) indexOf(namespace string) int {
	return slices.IndexFunc(f.Holding, func(z Freeze) bool { return z.Namespace == namespace })
}

// CheckReason checks the reason of a freeze. It is required, because users need to know why nothing runs.
func CheckReason(field, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return Invalid(CodeRequired, field, "is required; users see it when they ask why nothing runs")
	}
	return checkText(field, reason, MaxReason)
}
