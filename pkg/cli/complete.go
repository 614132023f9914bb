package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// completeLimit is how long TAB waits for an answer, whatever the server does, if
// IO does not say otherwise.
const completeLimit = 300 * time.Millisecond

// completeMost is how many names TAB looks at in one list.
const completeMost = 1000

type completer = func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective)

// offer is a word that TAB offers, and what it is.
type offer struct {
	Word  string `json:"word"`
	About string `json:"about,omitempty"`
}

// look asks the server for words.
type look func(ctx context.Context, c *client.Client) ([]offer, error)

// live is what look finds, or found a moment ago, for a moment. Errors are silence:
// a person who presses TAB has no use for them.
func (a *app) live(cmd *cobra.Command, kind string, look look) []offer {
	if cmd.Context() == nil {
		return nil
	}
	limit := cmp.Or(a.CompleteWithin, completeLimit)
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	found, err := patiently(ctx, func() ([]offer, error) { // a token's file may be a pipe
		quiet := *a
		quiet.Quiet, quiet.verbose = true, false
		c, err := quiet.connectFor(limit)
		if err != nil {
			return nil, err
		}
		return quiet.remembered(kind, func() ([]offer, error) { return look(ctx, c) })
	})
	if err != nil {
		return nil
	}
	return found
}

// begun keeps the offers that begin with what is typed and are not on the line yet.
func begun(offers []offer, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
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
func (a *app) someTasks(ctx context.Context, c *client.Client, pattern string, do func(client.Task)) error {
	o := client.ListOptions{Namespace: a.scope(), Limit: completeMost, Brief: true}
	if pattern != "" {
		var err error
		if o.Namespace, o.Names, err = a.patterns([]string{pattern}); err != nil {
			return err
		}
	}
	for t, err := range c.All(ctx, o) {
		if err != nil {
			return err
		}
		do(t)
	}
	return nil
}

// completeTasks offers the names of tasks that are not on the line yet. Where there
// are more than one list has, those are asked for that begin with what is typed.
func (a *app) completeTasks(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	offers := a.live(cmd, "tasks", a.taskOffers(""))
	bare := a.allNamespaces && !strings.Contains(typed, "/") // it begins a namespace, and no name
	if len(offers) >= completeMost && typed != "" && !bare && !isGlob(typed) {
		offers = a.live(cmd, "tasks "+typed, a.taskOffers(typed+"*"))
	}
	return begun(offers, done, typed)
}

// taskOffers looks for tasks: the first ones, or those that a pattern matches.
func (a *app) taskOffers(pattern string) look {
	return func(ctx context.Context, c *client.Client) (offers []offer, err error) {
		err = a.someTasks(ctx, c, pattern, func(t client.Task) {
			offers = append(offers, offer{a.taskName(t), cmp.Or(output.OneLine(t.Description), output.OneLine(scheduleWords(t.Spec)))})
		})
		return offers, err
	}
}

// completeTask is completeTasks for a command that takes one.
func (a *app) completeTask(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(done) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeTasks(cmd, done, typed)
}

// completeRuns offers tasks, and ids once one has been begun.
func (a *app) completeRuns(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if !idStart.MatchString(typed) {
		return a.completeTasks(cmd, done, typed)
	}
	return begun(a.live(cmd, "runs", func(ctx context.Context, c *client.Client) ([]offer, error) {
		runs, err := c.ListRuns(ctx, client.RunFilter{Namespace: a.scope(), Limit: completeMost})
		offers := make([]offer, len(runs))
		for i, r := range runs {
			offers[i] = offer{r.ID, output.OneLine(r.Task + " " + string(r.State))}
		}
		return offers, err
	}), done, typed)
}

// completeDead offers dead runs: by their task, if it has one, else by their ids.
func (a *app) completeDead(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return begun(a.live(cmd, "dead", func(ctx context.Context, c *client.Client) ([]offer, error) {
		runs, err := c.ListRuns(ctx, client.RunFilter{Namespace: a.scope(), Dead: true, Limit: completeMost})
		offers := make([]offer, len(runs))
		for i, r := range runs {
			name := a.show(ref{r.Namespace, r.Task})
			offers[i] = offer{name + "@" + r.ID, output.OneLine(string(r.State) + " " + a.PastTime(r.EndedAt, output.ReaderZone))}
		}
		return offers, err
	}), done, typed)
}

func (a *app) completeNodes(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return begun(a.live(cmd, "nodes", func(ctx context.Context, c *client.Client) ([]offer, error) {
		nodes, err := c.Nodes(ctx)
		offers := make([]offer, len(nodes))
		for i, n := range nodes {
			offers[i] = offer{n.Name, output.OneLine(n.State + " " + n.Address)}
		}
		return offers, err
	}), done, typed)
}

func (a *app) completeNamespaces(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	everywhere := *a
	everywhere.allNamespaces = true
	return begun(everywhere.live(cmd, "namespaces", func(ctx context.Context, c *client.Client) ([]offer, error) {
		count := map[string]int64{}
		err := everywhere.someTasks(ctx, c, "", func(t client.Task) { count[t.Namespace]++ })
		offers := []offer{}
		for _, ns := range slices.Sorted(maps.Keys(count)) {
			offers = append(offers, offer{ns, ""})
		}
		return offers, err
	}), nil, typed)
}

// completeTaskLabels offers, behind -l, the labels that tasks have.
func (a *app) completeTaskLabels(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nextTerm(a.live(cmd, "task-labels", func(ctx context.Context, c *client.Client) ([]offer, error) {
		l := labelsSeen{}
		err := a.someTasks(ctx, c, "", func(t client.Task) { l.add(t.Labels) })
		return l.offers(), err
	}), typed)
}

// completeNodeLabels offers the labels that nodes have.
func (a *app) completeNodeLabels(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nextTerm(a.live(cmd, "node-labels", func(ctx context.Context, c *client.Client) ([]offer, error) {
		nodes, err := c.Nodes(ctx)
		l := labelsSeen{}
		for _, n := range nodes {
			l.add(n.Labels)
		}
		return append(l.offers(), factOffers(nodes)...), err
	}), typed)
}

// factOffers are comparisons of facts to begin with, and what nodes have of them.
func factOffers(nodes []task.Node) []offer {
	var offers []offer
	for _, name := range task.FactNames() {
		var least, most string
		var low, high float64
		for _, n := range nodes {
			if v, ok := n.Facts.Fact(name); ok {
				if least == "" || v < low {
					least, low = factWords(n.Facts, name), v
				}
				if most == "" || v > high {
					most, high = factWords(n.Facts, name), v
				}
			}
		}
		if most != "" {
			sign := ">"
			if strings.HasPrefix(name, "load") {
				sign = "<"
			}
			offers = append(offers, offer{name + sign, fmt.Sprintf("%s to %s", least, most)})
		}
	}
	return offers
}

// labelsSeen are labels, and how many things have each.
type labelsSeen map[string]int64

func (l labelsSeen) add(labels map[string]string) {
	for k, v := range labels {
		l[k+"="+v]++
	}
}

func (l labelsSeen) offers() []offer {
	var offers []offer
	for _, label := range slices.Sorted(maps.Keys(l)) {
		offers = append(offers, offer{label, fmt.Sprintf("%d of them", l[label])})
	}
	return offers
}

// nextTerm offers what may follow the last comma of a selector.
func nextTerm(offers []offer, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	var next []offer
	for _, o := range offers {
		if !strings.Contains(","+before, ","+o.Word+",") {
			next = append(next, offer{before + o.Word, o.About})
		}
	}
	return begun(next, nil, typed)
}

func (a *app) completeContexts(_ *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	f, _, err := settings.ReadFile(a.Path())
	if err != nil || len(done) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []cobra.Completion
	for _, name := range slices.Sorted(maps.Keys(f.Contexts)) {
		if strings.HasPrefix(name, typed) {
			words = append(words, cobra.CompletionWithDesc(name, output.OneLine(cmp.Or(f.Contexts[name].Server, client.DefaultServer))))
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeContextSet offers contexts, then fields; files behind those that name one.
func (a *app) completeContextSet(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(done) == 0 {
		return a.completeContexts(cmd, done, typed)
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

func (a *app) completeGlobals(root *cobra.Command) {
	completeFixed(root, "output", output.Formats...)
	completeFixed(root, "time", output.TimeRelative, output.TimeLocal, output.TimeTask, output.TimeUTC)
	completeFixed(root, "color", "auto", "always", "never")
	complete(root, "namespace", a.completeNamespaces)
	complete(root, "context", func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.completeContexts(cmd, nil, typed)
	})
}

func completeTaskFlags(cmd *cobra.Command) {
	completeFixed(cmd, "strategy", task.Strategies()...)
	completeFixed(cmd, "count", task.All.String())
	completeFixed(cmd, "succeed", "all", "any")
	completeFixed(cmd, "output-streams", task.StreamsMerged, task.StreamsApart)
	completeFixed(cmd, "overlap", task.OverlapSkip, task.OverlapQueue, task.OverlapReplace, task.OverlapAllow)
	completeFixed(cmd, "queue-drop", task.DropNewest, task.DropOldest)
	completeFixed(cmd, "missed", task.MissedLatest, task.MissedSkip, task.MissedAll)
	completeFixed(cmd, "dst-gap", task.GapRunAfter, task.GapSkip)
	completeFixed(cmd, "dst-fold", task.FoldFirst, task.FoldBoth)
	completeFixed(cmd, "enforce", task.EnforceRequire, task.EnforceReport)
	completeFixed(cmd, "ionice", "idle", "best-effort", "best-effort/7", "realtime")
	completeFixed(cmd, "limit", limitNames()...)
	completeFixed(cmd, "retry-on", string(task.Failed), string(task.TimedOut), string(task.Lost))
}

// completeFlags gives flags of one meaning the same words, in all commands.
func (a *app) completeFlags(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		a.completeFlags(c)
	}
	known := map[string]completer{"selector": a.completeTaskLabels, "unset": completeUnset, "timezone": completeZones,
		"task": a.completeTasks, "node": a.completeNodes, "record": fixed(task.RecordAll, task.RecordFailures),
		"tls-client-auth": fixed("none", "optional", "require"), "role": fixed("scheduler", "executor"), "log-format": fixed("json", "console"),
		"log-level": fixed("debug", "info", "warn", "error"), "initial-cluster-state": fixed("new", "existing")}
	if cmd.HasParent() && cmd.Parent().Name() == "node" {
		known["selector"] = a.completeNodeLabels
	}
	own := cmd.LocalNonPersistentFlags() // put together anew by each call
	for flag, f := range known {
		if own.Lookup(flag) != nil {
			complete(cmd, flag, f) // but for a command that has its own
		}
	}
	own.VisitAll(func(f *pflag.Flag) {
		if !namesFile.MatchString(f.Name) {
			complete(cmd, f.Name, cobra.NoFileCompletions) // a file is not the answer
		}
	})
	takesFiles := strings.Contains(cmd.Use, "FILE") || strings.Contains(cmd.Use, "COMMAND")
	if refuses := cmd.Args != nil && cmd.Args(cmd, []string{"x"}) != nil; cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() && (refuses || !takesFiles) {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
}

// namesFile is what flags are called whose value is a file or a directory.
var namesFile = regexp.MustCompile(`(^|-)(file|filename|dir|config|ca|cert|key)$`)

// fixed is a completer of words that are always the same.
func fixed(words ...string) completer {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeUnset offers the fields that --unset knows.
func completeUnset(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var offers []offer
	for _, name := range slices.Sorted(maps.Keys(shortcuts())) {
		offers = append(offers, offer{name, ""})
	}
	return begun(offers, nil, typed)
}

// completeZones offers the names of time zones.
func completeZones(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return schedule.ZoneNames(typed), cobra.ShellCompDirectiveNoFileComp
}

func completeFixed(cmd *cobra.Command, flag string, words ...string) {
	complete(cmd, flag, fixed(words...))
}

func complete(cmd *cobra.Command, flag string, f completer) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f) // fails only for a flag that is not there
}
