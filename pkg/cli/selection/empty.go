package selection

import (
	"context"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
)

// NoTasks returns the text for an empty list of tasks. If a query has selected none, the text says so, and how many tasks
// there are: otherwise a mistyped label would look like an empty namespace.
func NoTasks(ctx context.Context, f *factory.Factory, c *client.Client, namespace, query string) string {
	if query == "" {
		return "no tasks" + InScope(f)
	}

	text := "no task matches " + output.OneLine(query)
	total, known := countTasks(ctx, f, c, namespace, "")
	switch {
	case !known:
		return text
	case total == 0 && namespace == f.Scope():
		return "no tasks" + InScope(f)
	}

	number := wording.Grouped(total) + " tasks"
	if total == 1 {
		number = "1 task"
	}
	if namespace == "" {
		return text + "; you may read " + number
	}

	return text + "; the namespace has " + number
}

// Nothing returns the text for an empty list of something that belongs to tasks, such as "no upcoming ticks". If a query has
// selected the tasks, the text tells whether any task matches.
func Nothing(ctx context.Context, f *factory.Factory, c *client.Client, what, namespace, query string) string {
	if query == "" {
		return what + InScope(f)
	}

	if matching, known := countTasks(ctx, f, c, namespace, query); known && matching == 0 {
		return NoTasks(ctx, f, c, namespace, query)
	}

	return what + " of tasks that match " + output.OneLine(query)
}

// countTasks returns how many tasks match a query. known is false if nobody could tell, or not for all shards.
func countTasks(ctx context.Context, f *factory.Factory, c *client.Client, namespace, query string) (n int, known bool) {
	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	// Only the owners of the shards count, and a list by name may come from etcd.
	var info client.ListInfo
	o := client.TaskListOptions{Namespace: namespace, Query: query, Sort: client.SortNext, Limit: 1, Brief: true, Info: info.Include}
	if _, err := c.Tasks.List(ctx, o); err != nil || info.Count == nil || len(info.Missing) > 0 || info.Collecting != nil {
		return 0, false
	}

	return *info.Count, true
}
