package settings

import (
	"reflect"
	"strings"
)

// FieldNames returns the names of a context's fields in their order.
func FieldNames() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Context]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}

	return names
}
