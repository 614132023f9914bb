package apply

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestSort_AppliesSourcesFirstAndDeletesThemLast(t *testing.T) {
	spec := func(name string, after ...string) task.Spec {
		s := task.Spec{Namespace: "default", Name: name}
		for _, source := range after {
			s.After = append(s.After, task.Source{Task: source})
		}
		return s
	}
	specs := []task.Spec{spec("mail", "report"), spec("other"), spec("report", "etl", "elsewhere"), spec("etl"), spec("a", "b"), spec("b", "a")}
	specs[5].Namespace = "team" // so that there is no cycle

	var objects []manifest.Object
	var tasks []client.Task
	for _, s := range specs {
		objects = append(objects, manifest.Made("f", 1, s))
		tasks = append(tasks, client.Task{Task: task.Task{Spec: s}})
	}

	sortSourcesFirst(objects)
	sortDependentsFirst(tasks)

	var applied, deleted []string
	for i := range objects {
		applied, deleted = append(applied, objects[i].Spec.Name), append(deleted, tasks[i].Name)
	}
	if got := strings.Join(applied, " "); got != "other etl report a b mail" {
		t.Errorf("applied in the order %s", got)
	}
	if got := strings.Join(deleted, " "); got != "mail report a b other etl" {
		t.Errorf("deleted in the order %s", got)
	}
}
