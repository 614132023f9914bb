package view

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// NoteFrozen prints a note if a freeze prevents the listed ticks.
func NoteFrozen(ctx context.Context, f *factory.Factory, c *client.Client, namespace string) {
	if !f.ForPeople() {
		return
	}

	if words := FrozenText(ctx, f, c, namespace); words != "" {
		f.Note("%s", words)
	}
}

// FrozenText states that the namespace or the cluster is frozen. It returns "" if neither is, or if this cannot
// be determined.
func FrozenText(ctx context.Context, f *factory.Factory, c *client.Client, namespace string) string {
	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	if namespace == "" && !readsCluster(ctx, c) {
		return "" // a request for the freeze of the cluster would be denied, and the node would log that
	}

	st, err := c.Freezes.Get(ctx, namespace)
	if err != nil || st.Freeze == nil {
		return ""
	}

	what := "the cluster"
	if ns := st.Freeze.Namespace; ns != "" {
		what = "namespace " + ns
	}

	return fmt.Sprintf("%s is frozen, %s; ticks are skipped until carillon cluster unfreeze%s", what, FreezeText(f, *st.Freeze), NamespaceFlag(st.Freeze.Namespace))
}

// readsCluster reports whether the caller may read the state of the whole cluster.
func readsCluster(ctx context.Context, c *client.Client) bool {
	me, err := c.Access.WhoAmI(ctx)

	return err == nil && slices.ContainsFunc(me.Cluster, func(r task.Rule) bool {
		return slices.Contains(r.Objects, "cluster") && slices.Contains(r.Verbs, "read")
	})
}

// FreezeText describes since when something is frozen, by whom and why.
func FreezeText(f *factory.Factory, z task.Freeze) string {
	var words []string
	if !z.Since.IsZero() {
		words = append(words, "since "+f.PastTime(z.Since, output.ReaderZone))
	}

	if z.By != "" {
		words = append(words, "by "+output.OneLine(z.By))
	}

	return strings.Join(words, " ") + ": " + output.OneLine(z.Reason)
}

// NamespaceFlag returns the flag that names a namespace in a command, or "" if there is none.
func NamespaceFlag(ns string) string {
	if ns == "" {
		return ""
	}
	return " --namespace " + ns
}

// NoteHeld prints whether a freeze or a pause affects a run that was just queued.
func NoteHeld(f *factory.Factory, r selection.Ref, t client.Triggered) {
	if z := t.Frozen; z != nil {
		what := "the cluster"
		if z.Namespace != "" {
			what = "namespace " + z.Namespace
		}

		f.Note("%s is frozen, %s; the run starts after the freeze ends", what, FreezeText(f, *z))

		return
	}

	if t.Paused {
		f.Note("%s is paused; this run starts anyway", selection.Show(f, r))
	}
}
