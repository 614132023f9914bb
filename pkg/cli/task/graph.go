package task

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/task"
)

// formatMermaid is an output format that only task graph has.
const formatMermaid = "mermaid"

// graphCommand returns "carillon task graph".
func graphCommand(f *factory.Factory) *cobra.Command {
	var levels int
	cmd := &cobra.Command{
		Use:   "graph [TASK]",
		Short: "Show which tasks run after which",
		Long: "Show which tasks run after which others: all of a namespace, or those that lead to a task and those to which it leads.\n\n" +
			"A task is below its source. One with several sources is shown once; AFTER names all of them. -o mermaid prints a\n" +
			"diagram, which GitHub, GitLab and many editors display.",
		Example: `  carillon task graph
  carillon task graph report --levels 1
  carillon task graph report -o mermaid`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.Tasks(f),
	}
	cmd.Flags().IntVar(&levels, "levels", 0, "with TASK: show tasks that are up to `N` levels away (default: all)")
	_ = cmd.RegisterFlagCompletionFunc("levels", cobra.NoFileCompletions)
	factory.LimitFormats(cmd, append(slices.Clone(output.Formats), formatMermaid)...)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		r := selection.Ref{Namespace: f.Namespace()}
		if f.AllNamespaces {
			return failure.Usage("a graph is of one namespace; use -n NAMESPACE instead of -A")
		}
		if cmd.Flags().Changed("levels") && (levels < 1 || len(words) == 0) {
			return failure.Usage("--levels requires a positive number and a task")
		}

		if len(words) > 0 {
			var err error
			if r, err = selection.ParseRef(f, words[0]); err != nil {
				return err
			}
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		g, err := c.Tasks.Graph(cmd.Context(), r.Namespace, client.GraphOptions{Task: r.Name, Levels: levels})
		if err != nil {
			if r.Name == "" {
				return err
			}
			return selection.ExplainMissing(cmd.Context(), f, c, r, err)
		}

		return emitGraph(f, r, g)
	}

	return cmd
}

// emitGraph prints a graph.
func emitGraph(f *factory.Factory, r selection.Ref, g client.Graph) error {
	switch {
	case f.Format == formatMermaid:
		return f.Print(depgraph.OfAnswer(g).Mermaid())
	case f.Format == output.FormatName:
		return output.EmitList(&f.Printer, graphOrder(g), func(n graphNode) string { return n.Name }, nil)
	case !f.ForPeople():
		return output.EmitOne(&f.Printer, g, "", nil)
	case len(g.Links) == 0 && r.Name != "":
		f.Note("%s runs after no task, and no task runs after it", selection.Show(f, r))
	case len(g.Links) == 0:
		f.Note("no task of namespace %s runs after another", r.Namespace)
	}

	return output.EmitList(&f.Printer, g.Tasks, nil, func(bool) *output.Table { return graphTable(f, g) })
}

// graphNode is a task in a graph, and how far it is indented.
type graphNode struct {
	client.GraphTask
	level int
}

// graphOrder returns the tasks of a graph such that each is below a source, one level deeper. A task with several sources is below
// the one from which the longest chain leads to it.
func graphOrder(g client.Graph) (list []graphNode) {
	graph := depgraph.OfAnswer(g)
	byName := map[string]client.GraphTask{}
	for _, t := range g.Tasks {
		byName[t.Name] = t
	}

	level := map[string]int{}
	for i, names := range graph.Layers() {
		for _, name := range names {
			level[name] = i
		}
	}

	below := map[string][]string{}
	var roots []string
	for _, name := range graph.Tasks() {
		sources := graph.Sources(name)
		i := slices.IndexFunc(sources, func(source string) bool { return level[source] == level[name]-1 })
		if i < 0 {
			roots = append(roots, name)
			continue
		}
		below[sources[i]] = append(below[sources[i]], name)
	}

	var add func(name string, depth int)
	add = func(name string, depth int) {
		t := byName[name]
		t.Name = name
		list = append(list, graphNode{t, depth})
		for _, other := range below[name] {
			add(other, depth+1)
		}
	}
	for _, name := range roots {
		add(name, 0)
	}

	return list
}

// graphTable returns a table of a graph, with a line for each task.
func graphTable(f *factory.Factory, g client.Graph) *output.Table {
	table := &output.Table{Headers: []string{"TASK", "AFTER", "STATE", "LAST RUN", "WAITING"}}

	after := map[string][]string{}
	for _, l := range g.Links {
		s := task.Source{Task: l.Source, When: l.When}
		if s.When == task.WhenSucceeded {
			s.When = ""
		}
		after[l.Dependent] = append(after[l.Dependent], s.String())
	}

	for _, n := range graphOrder(g) {
		name := output.OneLine(n.Name)
		if n.level > 0 {
			name = strings.Repeat("  ", n.level-1) + f.Plain("└ ") + name
		}

		state := stateCell(f, client.Task{State: n.State})
		if n.Missing {
			state = f.Paint(output.Red, "missing")
		}

		last := f.NoValue()
		if r := n.LastRun; r != nil {
			last = view.RunResult(f, task.Run{State: r.State, Reason: r.Reason})
		}

		table.AddRow(name, cmp.Or(output.OneLine(strings.Join(after[n.Name], ", ")), f.NoValue()), state, last,
			cmp.Or(waitingCount(n.WaitingTriggers), f.NoValue()))
	}

	return table
}

// waitingCount returns how many triggers wait, or "".
func waitingCount(list []client.WaitingTriggers) string {
	n := 0
	for _, w := range list {
		n += w.Count
	}
	if n == 0 {
		return ""
	}

	return fmt.Sprint(n)
}

// waitingWords describes which triggers of a task wait, a line for each source.
func waitingWords(f *factory.Factory, t client.Task) string {
	lines := make([]string, len(t.WaitingTriggers))
	for i, w := range t.WaitingTriggers {
		lines[i] = fmt.Sprintf("%s of %s, the oldest %s", output.Plural(int64(w.Count), "run"), w.Source, f.PastTime(w.Oldest, t.Timezone))
	}

	return strings.Join(lines, "\n")
}
