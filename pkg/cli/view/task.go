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
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// NextText returns the end of a sentence that states when the task runs next.
func NextText(f *factory.Factory, t client.Task) string {
	var words string

	switch {
	case t.Paused:
		words = PausedText(f, t)
	case t.Next.IsZero():
		words = "no next tick"
		if without := wording.WithoutTicks(t.Spec); t.Schedule.AtBoot() {
			words = "runs at the next boot of a matching node"
		} else if without != "" {
			words = "runs " + without
		} else if t.NoNext != "" {
			words = "no more ticks: " + t.NoNext
		}
	default:
		left := f.TimeLeft(t.Next)
		if left != "now" {
			left = "in " + left
		}
		words = fmt.Sprintf("next %s (%s)", f.DateTime(t.Next, t.Timezone), left)
	}

	return f.Plain(" · ") + words
}

// PausedText describes a pause briefly enough for a list: "paused until 18:00 (ann)".
func PausedText(f *factory.Factory, t client.Task) string {
	words, by := "paused", wording.PausedBy(t.Pause)

	if !t.PausedUntil.IsZero() {
		words += " until " + f.SoonTime(t.PausedUntil, t.Timezone)
	}

	if by != "" {
		words += " (" + by + ")"
	}

	return words
}

// PastOrFuture returns a function that formats a time: how long ago it was, or when it will be.
func PastOrFuture(f *factory.Factory) func(task.Time) string {
	return func(t task.Time) string {
		if t.After(f.Now()) {
			return f.FutureTime(t, output.ReaderZone)
		}
		return f.PastTime(t, output.ReaderZone)
	}
}

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

	if z.By != nil {
		words = append(words, "by "+output.OneLine(z.By.String()))
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

// NoteHeld prints what affects the start of a run that was just queued: the server's warnings, a freeze or a pause.
func NoteHeld(f *factory.Factory, r selection.Ref, t client.Triggered) {
	for _, text := range t.Warnings {
		f.Note("warning: %s: %s", selection.Show(f, r), output.Sanitize(text))
	}

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

// NoteOwners prints what a reader must know of a list that the owners of shards have answered, below the list: how many
// tasks match if not all are listed, which shards are missing, how old the list is, and whether owners still collect how
// runs ended.
func NoteOwners(f *factory.Factory, info client.ListInfo, listed int) {
	if text := OwnersText(info, listed, f.ForPeople()); text != "" {
		f.Note("%s", text)
	}
}

// OwnersText is the text of NoteOwners; "" if there is nothing to say. Programs read how many tasks match elsewhere.
func OwnersText(info client.ListInfo, listed int, people bool) string {
	text := wording.MissingText(info)
	if n := info.Count; people && n != nil && *n > listed {
		count := wording.Grouped(*n) + " tasks"
		if text == "" {
			return count
		}
		return count + "; " + text
	}

	return text
}

// FactText formats a fact for people. It returns "" if the fact is unknown.
func FactText(f *task.Facts, name string) string { return wording.FactText(f, name) }
