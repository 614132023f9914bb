package wording

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// currentFor is the age from which a list is said to be old. A watch without events gives a sign of life about every two seconds.
	currentFor = 3 * time.Second
	// mostNamed is the maximum number of missing shards that are named.
	mostNamed = 10
)

// MissingText says what a reader must know of a list that the owners of shards have answered: which shards are missing, how
// old the list is, and whether owners still collect how runs ended. It returns "" if there is nothing to say.
func MissingText(info client.ListInfo) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }

	if n := len(info.Missing); n > 0 {
		add("%d of %d shards", info.Shards-n, info.Shards)
		add("missing %s", NamedShards(info.Missing))
	}

	if age := time.Duration(info.AgeMS) * time.Millisecond; age > currentFor {
		add("as of %s ago", task.Duration(age).Approximate())
	}

	if info.Collecting != nil {
		add("collecting %d%%", *info.Collecting)
	}

	return strings.Join(parts, "; ")
}

// NamedShards names shards: "17, 18, 40".
func NamedShards(shards []int) string {
	names := make([]string, min(len(shards), mostNamed))
	for i := range names {
		names[i] = strconv.Itoa(shards[i])
	}

	text := strings.Join(names, ", ")
	if n := len(shards) - mostNamed; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}

	return text
}
