package tasks

import (
	"reflect"
	"strconv"
	"testing"
)

// Tags are literals. They must match constants of other packages.
func TestTasksQuery_TagsAgreeWithConstants(t *testing.T) {
	for _, c := range []struct {
		query            any
		field, tag, want string
	}{
		{dryRunQuery{}, "Ticks", "maximum", strconv.Itoa(2 * maxTicks)},
		{nextQuery{}, "Count", "default", strconv.Itoa(DefaultCount)},
		{nextQuery{}, "Count", "maximum", strconv.Itoa(MaxCount)},
	} {
		f, _ := reflect.TypeOf(c.query).FieldByName(c.field)
		if got := f.Tag.Get(c.tag); got != c.want {
			t.Errorf("%T.%s: %s is %s, want %s", c.query, c.field, c.tag, got, c.want)
		}
	}
}
