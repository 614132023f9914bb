package ui

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

func TestLeftRows(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	key := func(text string) string { return text }
	show := func(rows []leftRow[string]) string {
		text := ""
		for _, row := range rows {
			text += fmt.Sprintf("%s-%s ", row.item, now.Sub(row.since))
		}
		return text
	}
	old := []leftRow[string]{{item: "back", since: now.Add(-time.Second)}, {item: "recent", since: now.Add(-time.Minute)}, {item: "long", since: now.Add(-leftKept)}}

	if got, want := show(leftRows(now, []string{"stays", "goes"}, old, []string{"stays", "back", "new"}, key)), "goes-0s recent-1m0s "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	var many []string
	for i := range mostLeft + 10 {
		many = append(many, strconv.Itoa(i))
	}
	if n := len(leftRows(now, many, old, nil, key)); n != mostLeft {
		t.Errorf("%d rows are kept, want %d", n, mostLeft)
	}
}
