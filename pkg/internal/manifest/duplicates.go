package manifest

import (
	"fmt"

	"github.com/carillonhq/carillon/pkg/task"
)

// FindDuplicates returns an error for each task that occurs in several places, because it is not known which of them is
// intended.
func FindDuplicates(objects []Object) []error {
	var faults []error
	first := make(map[string]*Object, len(objects))
	for i := range objects {
		o := &objects[i]
		if o.Spec.Name == "" {
			continue
		}

		key := o.Spec.Namespace + "/" + o.Spec.Name
		before, again := first[key]
		if !again {
			first[key] = o
			continue
		}

		faults = append(faults, o.Locate(task.Invalid(task.CodeDuplicate, "name", "%s is defined twice; also in %s", task.Quote(o.Spec.Name), before.positionOf("name"))))
	}

	return faults
}

// positionOf returns the file and line of a field of the object.
func (o *Object) positionOf(field string) string {
	_, at := o.node.findPath(field)
	return fmt.Sprintf("%s:%d", o.file, at.line)
}
