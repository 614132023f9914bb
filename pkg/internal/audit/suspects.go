package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// suspect is a finding that the second read must confirm.
type suspect struct {
	task.Finding
	// facts are keys whose mod revisions must not have changed; 0 means absent.
	facts []store.Seen
	// recheck, if set, decides after all facts have been confirmed.
	recheck recheck
}

// recheck decides in the second read whether a suspect is still true, where this does not follow from the revisions
// of keys.
type recheck interface {
	stillHolds(ctx context.Context) (bool, error)
}

// suspects collects what the judges suspect in the first read.
type suspects struct {
	*notes
	list   []suspect      // at most maxPerKind of each kind
	counts map[string]int // by kind, including those that are not in the list
}

func newSuspects(notes *notes) *suspects { return &suspects{notes: notes, counts: map[string]int{}} }

// addSuspect adds a finding that is true as long as the facts have not changed. The first fact is the finding's own
// key, unless that is a prefix.
func (s *suspects) addSuspect(f task.Finding, facts ...store.Seen) { s.suspectWith(f, nil, facts...) }

// suspectWith adds a finding that is true as long as the facts have not changed and recheck confirms it.
func (s *suspects) suspectWith(f task.Finding, recheck recheck, facts ...store.Seen) {
	if len(facts) > 0 && len(f.Keys) > 0 && facts[0].Key == f.Keys[0] {
		f.Revision = facts[0].Mod
	}

	s.counts[f.Kind]++
	if s.counts[f.Kind] <= maxPerKind {
		s.list = append(s.list, suspect{Finding: f, facts: facts, recheck: recheck})
	}
}

// confirmAll reads the facts of all suspects again, at one revision, and returns the suspects that are confirmed.
func (s *suspects) confirmAll(ctx context.Context, r *reader) ([]task.Finding, error) {
	var keys []string
	for _, suspect := range s.list {
		for _, fact := range suspect.facts {
			keys = append(keys, fact.Key)
		}
	}

	now, err := r.modRevisions(ctx, keys)
	if err != nil {
		return nil, err
	}

	// A suspect is confirmed only if none of its facts has changed and its recheck agrees.
	found := []task.Finding{}
	for _, suspect := range s.list {
		if slices.ContainsFunc(suspect.facts, func(fact store.Seen) bool { return now[fact.Key] != fact.Mod }) {
			continue
		}

		if suspect.recheck != nil {
			holds, err := suspect.recheck.stillHolds(ctx)
			if err != nil {
				return nil, err
			}
			if !holds {
				continue
			}
		}

		found = append(found, suspect.Finding)
	}

	return found, nil
}

// noteDropped adds a note for each kind with more suspects than the list holds.
func (s *suspects) noteDropped() {
	for _, kind := range slices.Sorted(maps.Keys(s.counts)) {
		if more := s.counts[kind] - maxPerKind; more > 0 {
			s.addNote("%d more suspected problems of kind %s were not checked a second time", more, kind)
		}
	}
}

// notes holds remarks about the audit itself, each once.
type notes struct{ texts []string }

func (n *notes) addNote(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(n.texts, text) && len(n.texts) < maxPerKind {
		n.texts = append(n.texts, text)
	}
}
