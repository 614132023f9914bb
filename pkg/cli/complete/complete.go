package complete

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// completionTimeout is how long TAB waits for an answer, whatever the server does, if
// IO does not say otherwise.
const completionTimeout = 300 * time.Millisecond

// MaxOffers is how many names TAB looks at in one list.
const MaxOffers = 1000

// Func offers words to complete what is typed, as cobra asks for them.
type Func = func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective)

// Offer is a word that TAB offers, and what it is.
type Offer struct {
	Word  string `json:"word"`
	About string `json:"about,omitempty"`
}

// Lookup asks the server for words.
type Lookup func(ctx context.Context, c *client.Client) ([]Offer, error)

// Live is what look finds, or found a moment ago, for a moment. Errors are silence:
// a person who presses TAB has no use for them.
func Live(f *factory.Factory, cmd *cobra.Command, kind string, look Lookup) []Offer {
	if cmd.Context() == nil {
		return nil
	}

	limit := cmp.Or(f.CompleteWithin, completionTimeout)
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()

	found, err := factory.ReadPatiently(ctx, func() ([]Offer, error) { // a token's file may be a pipe
		quiet := *f
		quiet.Quiet, quiet.Verbose = true, false

		c, err := quiet.ConnectFor(limit)
		if err != nil {
			return nil, err
		}

		return cachedOffers(&quiet, kind, func() ([]Offer, error) { return look(ctx, c) })
	})

	if err != nil {
		return nil
	}

	return found
}

// Matching keeps the offers that begin with what is typed and are not on the line yet.
func Matching(offers []Offer, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var words []cobra.Completion
	for _, o := range offers {
		switch {
		case !strings.HasPrefix(o.Word, typed) || slices.Contains(done, o.Word):
		case o.About == "":
			words = append(words, o.Word)
		default:
			words = append(words, cobra.CompletionWithDesc(o.Word, o.About))
		}
	}

	return words, cobra.ShellCompDirectiveNoFileComp
}

// someTasks are the first tasks of the scope, or of a pattern.
func someTasks(ctx context.Context, f *factory.Factory, c *client.Client, pattern string, do func(client.Task)) error {
	o := client.TaskListOptions{Namespace: f.Scope(), Limit: MaxOffers, Brief: true}
	if pattern != "" {
		var err error
		if o.Namespace, o.Names, err = selection.Patterns(f, []string{pattern}); err != nil {
			return err
		}
	}

	for t, err := range c.Tasks.All(ctx, o) {
		if err != nil {
			return err
		}
		do(t)
	}

	return nil
}

// Tasks offers the names of tasks that are not on the line yet. Where there
// are more than one list has, those are asked for that begin with what is typed.
func Tasks(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		offers := Live(f, cmd, "tasks", taskOffers(f, ""))
		bare := f.AllNamespaces && !strings.Contains(typed, "/") // it begins a namespace, and no name
		if len(offers) >= MaxOffers && typed != "" && !bare && !selection.IsGlob(typed) {
			offers = Live(f, cmd, "tasks "+typed, taskOffers(f, typed+"*"))
		}

		return Matching(offers, done, typed)
	}
}

// taskOffers looks for tasks: the first ones, or those that a pattern matches.
func taskOffers(f *factory.Factory, pattern string) Lookup {
	return func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		err = someTasks(ctx, f, c, pattern, func(t client.Task) {
			offers = append(offers, Offer{selection.TaskName(f, t), cmp.Or(output.OneLine(t.Description), output.OneLine(view.ScheduleText(t.Spec)))})
		})
		return offers, err
	}
}

// Task is Tasks for a command that takes one.
func Task(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(done) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return Tasks(f)(cmd, done, typed)
	}
}

// Runs offers tasks, and ids once one has been begun.
func Runs(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if !selection.RunIDStart.MatchString(typed) {
			return Tasks(f)(cmd, done, typed)
		}

		return Matching(Live(f, cmd, "runs", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			runs, err := c.Runs.List(ctx, client.RunListOptions{Namespace: f.Scope(), Limit: MaxOffers})
			offers := make([]Offer, len(runs))
			for i, r := range runs {
				offers[i] = Offer{r.ID, output.OneLine(r.Task + " " + string(r.State))}
			}

			return offers, err
		}), done, typed)
	}
}

// DeadRuns offers dead runs: by their task, if it has one, else by their ids.
func DeadRuns(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Matching(Live(f, cmd, "dead", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			runs, err := c.Runs.List(ctx, client.RunListOptions{Namespace: f.Scope(), Dead: true, Limit: MaxOffers})
			offers := make([]Offer, len(runs))
			for i, r := range runs {
				name := selection.Show(f, selection.Ref{Namespace: r.Namespace, Name: r.Task})
				offers[i] = Offer{name + "@" + r.ID, output.OneLine(string(r.State) + " " + f.PastTime(r.EndedAt, output.ReaderZone))}
			}

			return offers, err
		}), done, typed)
	}
}

// Nodes offers the names of nodes.
func Nodes(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Matching(Live(f, cmd, "nodes", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			nodes, err := c.Nodes.List(ctx)
			offers := make([]Offer, len(nodes))
			for i, n := range nodes {
				offers[i] = Offer{n.Name, output.OneLine(n.State + " " + n.Address)}
			}

			return offers, err
		}), done, typed)
	}
}

// Namespaces offers the namespaces that have tasks.
func Namespaces(f *factory.Factory) Func {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		everywhere := *f
		everywhere.AllNamespaces = true
		return Matching(Live(&everywhere, cmd, "namespaces", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			count := map[string]int64{}
			err := someTasks(ctx, &everywhere, c, "", func(t client.Task) { count[t.Namespace]++ })

			offers := []Offer{}
			for _, ns := range slices.Sorted(maps.Keys(count)) {
				offers = append(offers, Offer{ns, ""})
			}

			return offers, err
		}), nil, typed)
	}
}

// TaskLabels offers, behind -l, the labels that tasks have.
func TaskLabels(f *factory.Factory) Func {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nextTerm(Live(f, cmd, "task-labels", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			l := labelsSeen{}
			err := someTasks(ctx, f, c, "", func(t client.Task) { l.countLabels(t.Labels) })
			return l.listOffers(), err
		}), typed)
	}
}

// NodeLabels offers the labels that nodes have.
func NodeLabels(f *factory.Factory) Func {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nextTerm(Live(f, cmd, "node-labels", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			nodes, err := c.Nodes.List(ctx)
			l := labelsSeen{}

			for _, n := range nodes {
				l.countLabels(n.Labels)
			}

			return append(l.listOffers(), factOffers(nodes)...), err
		}), typed)
	}
}

// factOffers are comparisons of facts to begin with, and what nodes have of them.
func factOffers(nodes []task.Node) []Offer {
	var offers []Offer
	for _, name := range task.FactNames() {
		var least, most string
		var low, high float64
		for _, n := range nodes {
			if v, ok := n.Facts.Fact(name); ok {
				if least == "" || v < low {
					least, low = view.FactText(n.Facts, name), v
				}

				if most == "" || v > high {
					most, high = view.FactText(n.Facts, name), v
				}
			}
		}

		if most != "" {
			sign := ">"
			if strings.HasPrefix(name, "load") {
				sign = "<"
			}
			offers = append(offers, Offer{name + sign, fmt.Sprintf("%s to %s", least, most)})
		}
	}

	return offers
}

// labelsSeen are labels, and how many things have each.
type labelsSeen map[string]int64

func (l labelsSeen) countLabels(labels map[string]string) {
	for k, v := range labels {
		l[k+"="+v]++
	}
}

func (l labelsSeen) listOffers() []Offer {
	var offers []Offer
	for _, label := range slices.Sorted(maps.Keys(l)) {
		offers = append(offers, Offer{label, fmt.Sprintf("%d of them", l[label])})
	}
	return offers
}

// nextTerm offers what may follow the last comma of a selector.
func nextTerm(offers []Offer, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	var next []Offer
	for _, o := range offers {
		if !strings.Contains(","+before, ","+o.Word+",") {
			next = append(next, Offer{before + o.Word, o.About})
		}
	}

	return Matching(next, nil, typed)
}

// Contexts offers the names of the contexts in the configuration.
func Contexts(f *factory.Factory) Func {
	return func(_ *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		file, _, err := settings.ReadFile(f.Path())
		if err != nil || len(done) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}

		var words []cobra.Completion
		for _, name := range slices.Sorted(maps.Keys(file.Contexts)) {
			if strings.HasPrefix(name, typed) {
				words = append(words, cobra.CompletionWithDesc(name, output.OneLine(cmp.Or(file.Contexts[name].Server, client.DefaultServer))))
			}
		}

		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// ContextSet offers contexts, then fields; files behind those that name one.
func ContextSet(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(done) == 0 {
			return Contexts(f)(cmd, done, typed)
		}

		key, _, begun := strings.Cut(typed, "=")
		switch {
		case begun && strings.HasSuffix(key, "_file"):
			return nil, cobra.ShellCompDirectiveDefault
		case begun && (key == "read_only" || key == "insecure"):
			return []cobra.Completion{key + "=true", key + "=false"}, cobra.ShellCompDirectiveNoFileComp
		}

		var words []cobra.Completion
		for _, name := range settings.FieldNames() {
			if strings.HasPrefix(name, typed) {
				words = append(words, name+"=")
			}
		}

		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}
