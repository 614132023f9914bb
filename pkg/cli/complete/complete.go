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

// completionTimeout is how long completion waits for the server, unless IO.CompleteWithin is set.
const completionTimeout = 300 * time.Millisecond

// MaxOffers is the maximum number of names that one completion reads.
const MaxOffers = 1000

// Func is cobra's type of completion functions.
type Func = func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective)

// Offer is a word that completion offers, with a description.
type Offer struct {
	Word  string `json:"word"`
	About string `json:"about,omitempty"`
}

// Lookup requests words from the server.
type Lookup func(ctx context.Context, c *client.Client) ([]Offer, error)

// Live returns the words of look, which may be cached. It returns nothing after an error, because an error
// message would disturb the command line.
func Live(f *factory.Factory, cmd *cobra.Command, kind string, look Lookup) []Offer {
	if cmd.Context() == nil {
		return nil
	}

	limit := cmp.Or(f.CompleteWithin, completionTimeout)
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()

	found, err := factory.ReadPatiently(ctx, func() ([]Offer, error) { // the file with the token may be a pipe, whose read blocks
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

// Matching returns the offers that begin with typed and are not among the words done.
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

// someTasks calls do for the first tasks of the scope, or for those that match a pattern.
func someTasks(ctx context.Context, f *factory.Factory, c *client.Client, pattern string, do func(client.Task)) error {
	o := client.TaskListOptions{Namespace: f.Scope(), Limit: MaxOffers, Brief: true}
	if pattern != "" {
		var err error
		if o.Namespace, o.Query, err = selection.Query(f, []string{pattern}, ""); err != nil {
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

// Tasks completes names of tasks. If there are more tasks than one list contains, it requests those that begin
// with typed.
func Tasks(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		offers := Live(f, cmd, "tasks", taskOffers(f, ""))
		bare := f.AllNamespaces && !strings.Contains(typed, "/") // typed begins a namespace and not a name
		if len(offers) >= MaxOffers && typed != "" && !bare && !selection.IsGlob(typed) {
			offers = Live(f, cmd, "tasks "+typed, taskOffers(f, typed+"*"))
		}

		return Matching(offers, done, typed)
	}
}

// taskOffers returns a lookup of the first tasks, or of those that match a pattern.
func taskOffers(f *factory.Factory, pattern string) Lookup {
	return func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		err = someTasks(ctx, f, c, pattern, func(t client.Task) {
			offers = append(offers, Offer{selection.TaskName(f, t), cmp.Or(output.OneLine(t.Description), output.OneLine(view.ScheduleText(t.Spec)))})
		})
		return offers, err
	}
}

// Task is like Tasks, for a command that takes only one task.
func Task(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(done) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return Tasks(f)(cmd, done, typed)
	}
}

// Runs completes names of tasks, and ids of runs if typed begins with one.
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

// DeadRuns completes dead runs as TASK@ID.
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

// Nodes completes names of nodes.
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

// TaskLabels completes a selector with the labels of tasks.
func TaskLabels(f *factory.Factory) Func {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nextTerm(Live(f, cmd, "task-labels", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			l := labelsSeen{}
			err := someTasks(ctx, f, c, "", func(t client.Task) { l.countLabels(t.Labels) })
			return l.listOffers(), err
		}), typed)
	}
}

// NodeLabels completes a selector with the labels and facts of nodes.
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

// factOffers returns the beginnings of comparisons of facts, with the range of values on the nodes.
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

// labelsSeen counts the objects with each label.
type labelsSeen map[string]int64

// countLabels counts the labels of one object.
func (l labelsSeen) countLabels(labels map[string]string) {
	for k, v := range labels {
		l[k+"="+v]++
	}
}

// listOffers returns the labels as offers.
func (l labelsSeen) listOffers() []Offer {
	var offers []Offer
	for _, label := range slices.Sorted(maps.Keys(l)) {
		offers = append(offers, Offer{label, fmt.Sprintf("%d of them", l[label])})
	}
	return offers
}

// nextTerm completes the term after the last comma of a selector.
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

// Contexts completes the names of contexts.
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

// ContextSet completes a context, then fields, and the files of fields that name one.
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
