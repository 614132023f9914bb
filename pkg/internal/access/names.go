package access

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// VerbNames returns the names of all verbs.
func VerbNames() []string { return slices.Clone(verbNames) }

// KindNames returns the names of all kinds of objects. Those of namespaces come first.
func KindNames() []string { return slices.Clone(kindNames[:]) }

// VerbNames returns the names of the verbs that mean something for a kind.
func (k Kind) VerbNames() []string {
	var names []string
	for rest := verbsOf[k]; rest != 0; rest &= rest - 1 {
		names = append(names, verbNames[bits.TrailingZeros16(uint16(rest))])
	}

	return names
}

// ParseNeed returns the need for one verb on one kind of objects. It refuses verbs and kinds that do not exist, and a verb
// that means nothing for the kind.
func ParseNeed(verb, kind string) (Need, error) {
	verbs, err := parseVerbs("verb", []string{verb})
	if err != nil {
		return Need{}, err
	}
	if verb == "*" {
		return Need{}, task.Invalid(task.CodeBadValue, "verb", "name one verb, not *")
	}

	k := slices.Index(kindNames[:], kind)
	switch {
	case k < 0:
		_, err := parseKinds("kind", []string{kind})
		if err == nil {
			err = task.Invalid(task.CodeBadValue, "kind", "name one kind of objects, not *")
		}
		return Need{}, err
	case verbsOf[k]&verbs == 0:
		return Need{}, task.Invalid(task.CodeBadValue, "verb", "%s does not apply to %s; the verbs for them are %s", task.Quote(verb), kind, strings.Join(Kind(k).VerbNames(), ", "))
	}

	return Need{Verb: verbs, Kind: Kind(k)}, nil
}
