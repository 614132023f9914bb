package wording

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// AlertProblem describes which expectation is not met. at formats a time.
func AlertProblem(a *task.Alert, at func(task.Time) string) string {
	switch a.Kind {
	case task.AlertFailures:
		if a.Failures > 1 {
			return fmt.Sprintf("%d or more failures in a row", a.Failures)
		}
		return "the last run failed"
	case task.AlertSuccessWithin:
		return "no success in time"
	case task.AlertSuccessBy:
		if a.Deadline.IsZero() {
			return "no success by the deadline"
		}
		return "no success by the deadline, " + at(a.Deadline)
	case task.AlertMaxLateness:
		return "a tick has not started in time"
	case task.AlertMaxDuration:
		return "a run takes too long"
	case task.AlertMaxPause:
		return "the task is paused for too long"
	case task.AlertMore:
		var kinds []string
		for _, kind := range slices.Sorted(maps.Keys(a.More)) {
			kinds = append(kinds, fmt.Sprintf("%d %s", a.More[kind], kind))
		}
		return "more alerts: " + strings.Join(kinds, ", ")
	case task.AlertCluster:
		return OneLine(a.Text)
	}

	return string(a.Kind)
}

// UnmetText describes which expectations of a task are not met.
func UnmetText(kinds []task.AlertKind) string {
	words := make([]string, len(kinds))
	for i, kind := range kinds {
		words[i] = AlertProblem(&task.Alert{Kind: kind}, nil)
	}

	return strings.Join(words, ", ")
}

// alertReasons are the reasons for which alerts are closed, in words.
var alertReasons = map[task.AlertReason]string{
	task.AlertSucceeded:   "succeeded",
	task.AlertDismissed:   "failed runs dismissed",
	task.AlertPaused:      "task paused",
	task.AlertDeleted:     "task deleted",
	task.AlertNotWatched:  "no longer expected",
	task.AlertShadow:      "task is a shadow",
	task.AlertEnded:       "schedule has ended",
	task.AlertStarted:     "started",
	task.AlertRunEnded:    "run ended",
	task.AlertResumed:     "pause ended",
	task.AlertLimitRaised: "limit raised",
	task.AlertSolved:      "solved",
}

// AlertClosedText describes why an alert was closed, and by whom.
func AlertClosedText(c *task.AlertClose) string {
	words, known := alertReasons[c.Why]
	if !known {
		words = strings.ReplaceAll(string(c.Why), "_", " ")
	}

	return OneLine(words + byActor(c.By))
}

// byActor returns " by NAME", or "" if nobody is known.
func byActor(actor *task.Actor) string {
	if actor == nil {
		return ""
	}
	return " by " + actor.Name()
}

// AlertReceiverText describes what a receiver knows of an alert, and why it gets no messages. closed says whether the alert is closed. at
// formats a time.
func AlertReceiverText(r *task.AlertReceiver, closed bool, at func(task.Time) string) string {
	var words string
	switch r.State {
	case task.ReceiverNotified:
		words = "notified"
	case task.ReceiverSending:
		words = "message under way"
	case task.ReceiverFailed:
		words = "message failed"
	case task.ReceiverWaiting:
		if words = "not notified yet"; closed {
			words = "not told yet that it is closed"
		}
	case task.ReceiverSettled:
		words = "knows of no open alert"
	default:
		words = string(r.State)
	}

	if !r.At.IsZero() {
		words += " " + at(r.At)
	}
	if r.Run != "" {
		words += " by run " + r.Run
	}
	if r.State == task.ReceiverFailed {
		words += ", will be sent again"
	}

	if b := r.Blocked; b != nil && words == "" {
		words = AlertBlockText(b, at)
	} else if b != nil {
		words += " (" + AlertBlockText(b, at) + ")"
	}

	return OneLine(words)
}

// AlertBlockText describes why a receiver gets no messages.
func AlertBlockText(b *task.AlertBlock, at func(task.Time) string) string {
	words := string(b.Why)
	switch b.Why {
	case task.BlockMissing:
		return "does not exist, or is not a receiver"
	case task.BlockForbidden:
		return "does not exist, or does not accept alerts of this namespace"
	case task.BlockPaused:
		if b.By.Is(task.PausedByFailures) {
			words, b = "paused after too many failures", &task.AlertBlock{Since: b.Since, Until: b.Until}
		}
	}

	words += byActor(b.By)
	if !b.Since.IsZero() {
		words += " since " + at(b.Since)
	}
	if !b.Until.IsZero() {
		words += " until " + at(b.Until)
	}
	if b.Reason != "" {
		words += ": " + b.Reason
	}

	return OneLine(words)
}

// AlertSilenceText describes a silence.
func AlertSilenceText(s *task.AlertSilence, at func(task.Time) string) string {
	return OneLine(fmt.Sprintf("silenced%s until %s: %s", byActor(s.By), at(s.Until), s.Reason))
}

// alertEventText describes an event of an alert. The actor of an alert that opens or closes by itself is a node, and is not shown.
func alertEventText(e task.Event, by string) string {
	what := strings.ReplaceAll(e.Alert, "_", " ") + " alert "
	switch {
	case e.Alert == "silence":
		what = "alerts "
	case e.Alert == "rule":
		what = "alert rule "
	case e.Alert == string(task.AlertCluster) && e.Reason != "":
		what, e.Reason = "cluster alert "+e.Reason+" ", ""
	}

	words := what + e.Action
	if e.Action == task.ActionClosed && e.Reason != "" {
		words, e.Reason = words+" ("+strings.ReplaceAll(e.Reason, "_", " ")+")", ""
	}
	if isPerson(e.Actor) {
		words += by
	}
	if e.Reason != "" {
		words += ": " + e.Reason
	}

	return words
}
