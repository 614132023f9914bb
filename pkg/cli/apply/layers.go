package apply

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// layersOf returns the layer of each task among specs: a task is in a later layer than its sources.
func layersOf(specs []task.Spec) map[selection.Ref]int {
	graphs := map[string]*depgraph.Graph{} // by namespace
	for _, s := range specs {
		if graphs[s.Namespace] == nil {
			graphs[s.Namespace] = depgraph.New()
		}
		for _, l := range depgraph.LinksOf(s.Name, s.After) {
			graphs[s.Namespace].Add(l)
		}
	}

	layers := map[selection.Ref]int{}
	for namespace, g := range graphs {
		for i, names := range g.Layers() {
			for _, name := range names {
				layers[selection.Ref{Namespace: namespace, Name: name}] = i
			}
		}
	}

	return layers
}

// sortSourcesFirst sorts tasks so that each comes after its sources, because the server refuses a task whose source does not exist.
// Otherwise their order stays.
func sortSourcesFirst(objects []manifest.Object) {
	specs := make([]task.Spec, len(objects))
	for i, o := range objects {
		specs[i] = o.Spec
	}

	layers := layersOf(specs)
	slices.SortStableFunc(objects, func(a, b manifest.Object) int {
		return layers[selection.Ref{Namespace: a.Spec.Namespace, Name: a.Spec.Name}] - layers[selection.Ref{Namespace: b.Spec.Namespace, Name: b.Spec.Name}]
	})
}

// sortDependentsFirst sorts tasks for their deletion: the server refuses to delete a source that has dependents.
func sortDependentsFirst(tasks []client.Task) {
	specs := make([]task.Spec, len(tasks))
	for i, t := range tasks {
		specs[i] = t.Spec
	}

	layers := layersOf(specs)
	slices.SortStableFunc(tasks, func(a, b client.Task) int {
		return layers[selection.Ref{Namespace: b.Namespace, Name: b.Name}] - layers[selection.Ref{Namespace: a.Namespace, Name: a.Name}]
	})
}
