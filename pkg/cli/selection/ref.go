package selection

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Ref names a task.
type Ref struct{ Namespace, Name string }

func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Show is a task's name as messages use it: with its namespace only where that
// is not the one at hand.
func Show(f *factory.Factory, r Ref) string {
	if r.Namespace == f.Namespace() && !f.AllNamespaces {
		return r.Name
	}
	return r.String()
}

// ParseRef reads NAME or NAMESPACE/NAME, and checks it before anything is sent.
func ParseRef(f *factory.Factory, word string) (Ref, error) {
	r := Ref{f.Namespace(), word}
	if ns, name, ok := strings.Cut(word, "/"); ok {
		r = Ref{ns, name}
	}

	if err := task.CheckName("namespace", r.Namespace); err != nil {
		return r, err
	}

	return r, task.CheckName("name", r.Name)
}

// TaskName is a task's name as -o name prints it, such that it can be typed again.
func TaskName(f *factory.Factory, t client.Task) string { return Name(f, t.Namespace, t.Name) }

// Name is a task's name as -o name prints it, such that it can be typed again.
func Name(f *factory.Factory, namespace, name string) string { return Show(f, Ref{namespace, name}) }

// InScope ends a sentence about a list with its namespace; "" if it is of all.
func InScope(f *factory.Factory) string {
	if f.AllNamespaces {
		return ""
	}
	return " in namespace " + f.Namespace()
}

// PrintWarnings prints the server's warnings about tasks that were written. Other outputs than for people
// have them in the task itself.
func PrintWarnings(f *factory.Factory, tasks ...client.Task) {
	if !f.ForPeople() {
		return
	}

	for _, t := range tasks {
		for _, text := range t.Warnings {
			f.Note("warning: %s: %s", TaskName(f, t), output.Sanitize(text))
		}
	}
}
