package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// completeLimit is how long TAB may take, whatever the server does.
const completeLimit = 300 * time.Millisecond

// completeMost is how many names TAB looks at.
const completeMost = 1000

type completer = func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective)

// live asks the server for words, for a moment. Errors are silence: a person
// who presses TAB has no use for them.
func (a *app) live(cmd *cobra.Command, look func(ctx context.Context, c *client.Client) []cobra.Completion) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	quiet := *a
	quiet.quiet = true
	c, err := quiet.connectFor(completeLimit)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	return look(ctx, c), cobra.ShellCompDirectiveNoFileComp
}

// completeTasks offers the names of tasks that are not on the line yet.
func (a *app) completeTasks(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.live(cmd, func(ctx context.Context, c *client.Client) []cobra.Completion {
		var words []cobra.Completion
		for t, err := range c.All(ctx, client.ListOptions{Namespace: a.scope(), Limit: completeMost}) {
			if err != nil {
				break
			}
			name := a.taskName(t)
			if strings.HasPrefix(name, typed) && !slices.Contains(done, name) {
				words = append(words, cobra.CompletionWithDesc(name, first(oneLine(t.Description), scheduleWords(t.Spec))))
			}
		}
		return words
	})
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
	return a.live(cmd, func(ctx context.Context, c *client.Client) []cobra.Completion {
		runs, err := c.ListRuns(ctx, client.RunFilter{Namespace: a.scope(), Limit: completeMost})
		if err != nil {
			return nil
		}
		var words []cobra.Completion
		for _, r := range runs {
			if strings.HasPrefix(r.ID, typed) {
				words = append(words, cobra.CompletionWithDesc(r.ID, r.Task+" "+string(r.State)))
			}
		}
		return words
	})
}

func (a *app) completeNodes(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.live(cmd, func(ctx context.Context, c *client.Client) []cobra.Completion {
		nodes, err := c.Nodes(ctx)
		if err != nil {
			return nil
		}
		var words []cobra.Completion
		for _, n := range nodes {
			if strings.HasPrefix(n.Name, typed) {
				words = append(words, cobra.CompletionWithDesc(n.Name, oneLine(n.State+" "+n.Address)))
			}
		}
		return words
	})
}

func (a *app) completeNamespaces(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.live(cmd, func(ctx context.Context, c *client.Client) []cobra.Completion {
		var words []cobra.Completion
		for t, err := range c.All(ctx, client.ListOptions{Limit: completeMost}) {
			if err != nil {
				break
			}
			if strings.HasPrefix(t.Namespace, typed) && !slices.Contains(words, t.Namespace) {
				words = append(words, t.Namespace)
			}
		}
		return words
	})
}

func (a *app) completeContexts(_ *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	f, _, err := readConfig(a.configPath())
	if err != nil || len(done) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []cobra.Completion
	for _, name := range slices.Sorted(maps.Keys(f.Contexts)) {
		if strings.HasPrefix(name, typed) {
			words = append(words, cobra.CompletionWithDesc(name, oneLine(first(f.Contexts[name].Server, client.DefaultServer))))
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
	case begun && key == "read_only":
		return []cobra.Completion{"read_only=true", "read_only=false"}, cobra.ShellCompDirectiveNoFileComp
	}
	var words []cobra.Completion
	for _, name := range contextFields() {
		if strings.HasPrefix(name, typed) {
			words = append(words, name+"=")
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (a *app) completeGlobals(root *cobra.Command) {
	completeFixed(root, "output", allFormats...)
	completeFixed(root, "time", timeRelative, timeLocal, timeTask, timeUTC)
	completeFixed(root, "color", "auto", "always", "never")
	complete(root, "namespace", a.completeNamespaces)
	complete(root, "context", func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.completeContexts(cmd, nil, typed)
	})
}

func completeTaskFlags(cmd *cobra.Command) {
	completeFixed(cmd, "overlap", task.OverlapSkip, task.OverlapQueue, task.OverlapReplace, task.OverlapAllow)
	completeFixed(cmd, "queue-drop", task.DropNewest, task.DropOldest)
	completeFixed(cmd, "missed", task.MissedLatest, task.MissedSkip, task.MissedAll)
	completeFixed(cmd, "dst-gap", task.GapRunAfter, task.GapSkip)
	completeFixed(cmd, "dst-fold", task.FoldFirst, task.FoldBoth)
	completeFixed(cmd, "retry-on", string(task.Failed), string(task.TimedOut), string(task.Lost))
}

func completeFixed(cmd *cobra.Command, flag string, words ...string) {
	complete(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func complete(cmd *cobra.Command, flag string, f completer) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f) // fails only for a flag that is not there
}
