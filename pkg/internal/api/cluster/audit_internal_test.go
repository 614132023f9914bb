package cluster

import (
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/audit"
)

// Tags are literals. They must match constants of other packages.
func TestAuditQuery_TagsAgreeWithConstants(t *testing.T) {
	for _, c := range []struct {
		query            any
		field, tag, want string
	}{
		{auditQuery{}, "Pause", "default", strconv.Itoa(int(audit.DefaultPause / time.Second))},
	} {
		f, _ := reflect.TypeOf(c.query).FieldByName(c.field)
		if got := f.Tag.Get(c.tag); got != c.want {
			t.Errorf("%T.%s: %s is %s, want %s", c.query, c.field, c.tag, got, c.want)
		}
	}
}
