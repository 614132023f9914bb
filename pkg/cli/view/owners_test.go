package view_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
)

func TestOwnersText(t *testing.T) {
	t.Parallel()

	n := func(v int) *int { return &v }
	for _, c := range []struct {
		info   client.ListInfo
		listed int
		people bool
		want   string
	}{
		{client.ListInfo{}, 3, true, ""},
		{client.ListInfo{Count: n(3), Shards: 256, AgeMS: 900}, 3, true, ""},
		{client.ListInfo{Count: n(12345), Shards: 256, AgeMS: 4000}, 20, true, "12,345 tasks; as of 4s ago"},
		{client.ListInfo{Count: n(1234567), Shards: 256}, 20, true, "1,234,567 tasks"},
		{client.ListInfo{Count: n(123), Shards: 256}, 20, false, ""},
		{client.ListInfo{Count: n(3), Shards: 256, Missing: []int{17, 18, 40}}, 3, true, "253 of 256 shards; missing 17, 18, 40"},
		{client.ListInfo{Shards: 256, Missing: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}, 3, false, "244 of 256 shards; missing 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"},
		{client.ListInfo{Count: n(0), Shards: 256, Collecting: n(62)}, 0, false, "collecting 62%"},
	} {
		if got := view.OwnersText(c.info, c.listed, c.people); got != c.want {
			t.Errorf("%+v: %q, want %q", c.info, got, c.want)
		}
	}
}
