package wording

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// EventText describes an event on one line: what happened, who caused it, and why.
func EventText(e task.Event) string {
	by := ""
	if e.Actor != nil {
		by = " by " + e.Actor.String()
	}

	more := ""
	if e.Detail != "" {
		more = ": " + e.Detail
	}

	switch e.Kind {
	case task.EventRun:
		return OneLine(runEventText(e, by) + more)
	case task.EventAlert:
		return OneLine(alertEventText(e, by) + more)
	case task.EventShard:
		return OneLine(shardEventText(e) + more)
	case task.EventGap:
		if e.From == 0 {
			return OneLine(fmt.Sprintf("events up to revision %d are no longer available", e.To) + more)
		}
		return OneLine(fmt.Sprintf("events of revisions %d to %d are no longer available", e.From, e.To) + more)
	case task.EventNode:
		if isOwnNode(e) {
			by = ""
		}
	case task.EventCluster:
		if e.Action == task.ActionLeader {
			return OneLine(cmp.Or(e.Node, "nobody") + " leads" + previousLeader(e.Previous))
		}
	}

	words := strings.ReplaceAll(e.Action, "_", " ") + by
	if e.Generation > 0 {
		words += fmt.Sprintf(", generation %d", e.Generation)
	}
	if e.Reason != "" {
		more += ": " + e.Reason
	}

	return OneLine(words + more)
}

// isPerson reports whether an actor is a person or a program that has made a request, and neither a node nor Carillon.
func isPerson(a *task.Actor) bool {
	return a != nil && a.Node() == "" && !a.Is(task.CreatedByCarillon)
}

// isOwnNode reports whether the actor of an event is the node that it is about.
func isOwnNode(e task.Event) bool { return e.Node != "" && e.Actor.Node() == e.Node }

// previousLeader describes the leader before.
func previousLeader(previous string) string {
	if previous == "" {
		return ""
	}
	return ", after " + previous
}

// shardEventText describes a new owner of a shard.
func shardEventText(e task.Event) string {
	text := "assigned to " + e.Node
	switch {
	case e.Node == "":
		text = "taken from " + cmp.Or(e.Previous, "nobody")
	case e.Previous != "":
		text += ", after " + e.Previous
	}

	if e.Actor != nil {
		text += ", by the leader " + e.Actor.Name()
	}

	return text
}

// runEventText describes an event of a run.
func runEventText(e task.Event, by string) string {
	words := strings.ReplaceAll(e.Action, "_", " ")

	switch e.Action {
	case task.ActionEnded:
		words = strings.ReplaceAll(e.State, "_", " ")
		if isOwnNode(e) {
			words += " on " + e.Node
		}
	case task.ActionDispatched:
		words += " to " + e.Node
	case task.ActionStarted:
		words += " on " + e.Node
		by = ""
	}

	// Nodes act for the shards that they own, and for the runs that they execute. A person or a service is always shown.
	switch {
	case isPerson(e.Actor) || by == "":
	case isOwnNode(e):
		by = ""
	default:
		by = ", decided by " + e.Actor.Name()
	}

	if e.Reason != "" {
		words += " (" + strings.ReplaceAll(e.Reason, "_", " ") + ")"
	}
	if e.Count > 1 {
		words += fmt.Sprintf(" ×%d", e.Count)
	}
	if e.Attempt > 1 {
		words += fmt.Sprintf(", attempt %d", e.Attempt)
	}
	if e.Dead {
		words += ", dead"
	}

	return e.Run + " " + words + by
}
