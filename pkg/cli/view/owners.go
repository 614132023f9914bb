package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// NoteOwners prints what a reader must know of a list that the owners of shards have answered, below the list: how many
// tasks match if not all are listed, which shards are missing, how old the list is, and whether owners still collect how
// runs ended.
func NoteOwners(f *factory.Factory, info client.ListInfo, listed int) {
	if text := OwnersText(info, listed, f.ForPeople()); text != "" {
		f.Note("%s", text)
	}
}

const (
	// currentFor is the age from which a list is said to be old. A watch without events gives a sign of life about every two seconds.
	currentFor = 3 * time.Second
	// mostNamed is the maximum number of missing shards that are named.
	mostNamed = 10
)

// OwnersText is the text of NoteOwners; "" if there is nothing to say. Programs read how many tasks match elsewhere.
func OwnersText(info client.ListInfo, listed int, people bool) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }

	if n := info.Count; people && n != nil && *n > listed {
		add("%s tasks", grouped(*n))
	}

	if n := len(info.Missing); n > 0 {
		add("%d of %d shards", info.Shards-n, info.Shards)
		add("missing %s", namedShards(info.Missing))
	}

	if age := time.Duration(info.AgeMS) * time.Millisecond; age > currentFor {
		add("as of %s ago", task.Duration(age).Approximate())
	}

	if info.Collecting != nil {
		add("collecting %d%%", *info.Collecting)
	}

	return strings.Join(parts, "; ")
}

// namedShards names shards: "17, 18, 40".
func namedShards(shards []int) string {
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

// grouped formats a number with commas: 12,345.
func grouped(n int) string {
	digits := []byte(strconv.Itoa(n))
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = slices.Insert(digits, at, ',')
	}

	return string(digits)
}
