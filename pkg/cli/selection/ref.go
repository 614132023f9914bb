package selection

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Ref is the name of a task.
type Ref struct{ Namespace, Name string }

// String returns NAMESPACE/NAME.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Show returns a task's name for messages, without the namespace if that is the current one.
func Show(f *factory.Factory, r Ref) string {
	if r.Namespace == f.Namespace() && !f.AllNamespaces {
		return r.Name
	}
	return r.String()
}

// ParseRef parses and checks NAME or NAMESPACE/NAME.
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

// TaskName returns a task's name as -o name prints it, so that it can be typed again.
func TaskName(f *factory.Factory, t client.Task) string { return Name(f, t.Namespace, t.Name) }

// Name returns a task's name as -o name prints it, so that it can be typed again.
func Name(f *factory.Factory, namespace, name string) string { return Show(f, Ref{namespace, name}) }

// InScope returns the end of a sentence about a list, with its namespace, or "" for all namespaces.
func InScope(f *factory.Factory) string {
	if f.AllNamespaces {
		return ""
	}
	return " in namespace " + f.Namespace()
}

// PrintWarnings prints the server's warnings about tasks that were written. Formats for programs contain the
// warnings in the tasks.
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
