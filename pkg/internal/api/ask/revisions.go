package ask

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Revisions are revisions by shard, as a query parameter: "3:1204,17:1210".
type Revisions map[int]int64

// String formats revisions as UnmarshalText parses them.
func (r Revisions) String() string {
	var list []string
	for _, shard := range slices.Sorted(maps.Keys(r)) {
		list = append(list, fmt.Sprintf("%d:%d", shard, r[shard]))
	}

	return strings.Join(list, ",")
}

// UnmarshalText parses revisions.
func (r *Revisions) UnmarshalText(text []byte) error {
	*r = nil
	if len(text) == 0 {
		return nil
	}

	parsed := Revisions{}
	for word := range strings.SplitSeq(string(text), ",") {
		shard, revision, _ := strings.Cut(word, ":")
		s, err := strconv.Atoi(shard)
		n, err2 := strconv.ParseInt(revision, 10, 64)
		if err != nil || err2 != nil || s < 0 || n < 0 {
			return task.Invalid(task.CodeBadValue, "", "%s is not a shard and a revision", task.Quote(word))
		}
		parsed[s] = n
	}

	*r = parsed

	return nil
}

// With returns the larger of the revisions and others, for each shard. It changes neither.
func (r Revisions) With(others Revisions) Revisions {
	if len(others) == 0 {
		return r
	}

	all := Revisions{}
	maps.Copy(all, r)
	for shard, revision := range others {
		all[shard] = max(all[shard], revision)
	}

	return all
}

// cover reports whether an answer that contains r contains others as well.
func (r Revisions) cover(others Revisions) bool {
	for shard, revision := range others {
		if r[shard] < revision {
			return false
		}
	}

	return true
}
