package logs

import (
	"reflect"
	"strconv"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// Tags are literals. They must match constants of other packages.
func TestLogsQuery_TagsAgreeWithConstants(t *testing.T) {
	for _, c := range []struct {
		query            any
		field, tag, want string
	}{
		{logsQuery{}, "Attempt", "maximum", strconv.Itoa(task.MaxAttempts)},
	} {
		f, _ := reflect.TypeOf(c.query).FieldByName(c.field)
		if got := f.Tag.Get(c.tag); got != c.want {
			t.Errorf("%T.%s: %s is %s, want %s", c.query, c.field, c.tag, got, c.want)
		}
	}
}
