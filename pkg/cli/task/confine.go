package task

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

// limitNames returns the names of limits in the form in which --limit begins.
func limitNames() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[task.Limits]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name+"=")
	}
	return names
}

// describeConfinement adds the confinement of a process.
func describeConfinement(d *output.Details, p *task.Process) {
	d.Field("Group", "%s", p.Group)

	if p.Groups != nil {
		d.Field("Groups", "%s", cmp.Or(strings.Join(p.Groups, ", "), "none"))
	}

	d.Field("Umask", "%s", p.Umask)

	if p.Nice != 0 {
		d.Field("Nice", "%d", p.Nice)
	}

	d.Field("I/O", "%s", p.IONice)
	var words []string
	for _, is := range []struct {
		yes  bool
		word string
	}{{p.NoNewPrivs, "no new privileges"}, {p.PrivateTmp, "a /tmp of its own"}, {p.Scratch, "a scratch directory"}} {
		if is.yes {
			words = append(words, is.word)
		}
	}

	d.Field("Confined", "%s", strings.Join(words, ", "))
	d.Field("Limits", "%s", limitWords(p.Limits))

	if p.Enforce == task.EnforceReport {
		d.Field("Enforce", "%s", "what a node cannot enforce is reported")
	}
}

// limitWords returns the limits that are set, in the order of their declaration.
func limitWords(l task.Limits) string {
	var words []string
	v := reflect.ValueOf(l)

	for i, name := range limitNames() {
		f := v.Field(i)
		if f.IsZero() {
			continue
		}

		if f.Kind() == reflect.Pointer {
			f = f.Elem()
		}

		words = append(words, fmt.Sprint(strings.ReplaceAll(strings.TrimSuffix(name, "="), "_", " "), " ", f.Interface()))
	}

	return strings.Join(words, ", ")
}
