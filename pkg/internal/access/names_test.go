package access_test

import (
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/access"
)

func TestParseNeed(t *testing.T) {
	for _, verb := range access.VerbNames() {
		for i, kind := range access.KindNames() {
			need, err := access.ParseNeed(verb, kind)
			if applies := slices.Contains(access.Kind(i).VerbNames(), verb); applies != (err == nil) {
				t.Errorf("%s %s: %v", verb, kind, err)
			} else if applies && (need.Verb.String() != verb || need.Kind.String() != kind) {
				t.Errorf("%s %s: %v", verb, kind, need)
			}
		}
	}

	for _, words := range [][2]string{{"*", "tasks"}, {"read", "*"}, {"look", "tasks"}, {"read", "task"}, {"", ""}} {
		if _, err := access.ParseNeed(words[0], words[1]); err == nil {
			t.Errorf("%v: accepted", words)
		}
	}
}
