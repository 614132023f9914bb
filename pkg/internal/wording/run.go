package wording

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// RunDuration returns how long an attempt ran, or has been running. It is negative if the attempt has not
// started.
func RunDuration(r task.Run, now time.Time) time.Duration {
	switch {
	case r.StartedAt.IsZero():
		return -1
	case r.EndedAt.IsZero():
		return max(now.Sub(r.StartedAt.Time), 0)
	}

	return max(r.EndedAt.Sub(r.StartedAt.Time), 0)
}

// RunResult describes the state of a run in a few words: "exit 1, attempt 2".
func RunResult(r task.Run, now time.Time) string {
	words := OneLine(strings.ReplaceAll(string(r.State), "_", " "))
	why := OneLine(strings.ReplaceAll(r.Reason, "_", " "))

	switch {
	case slices.Contains([]task.State{task.Failed, task.TimedOut, task.Lost}, r.State) && httpResult(r) != "":
		words = httpResult(r)
	case r.State == task.Failed && r.Reason == task.ReasonShutdown: // whatever its exit code is
		words = why
	case r.State == task.Failed && r.Reason == task.ReasonOutput:
		words = why
	case r.State == task.Failed && r.Reason == task.ReasonOOM: // whichever of its processes was killed
		words = "out of memory"
	case r.State == task.Failed && r.Reason == task.ReasonLimits: // by a signal, or by the exit code with which a shell reports that signal
		words = "over its limit"
	case r.State == task.Failed && slices.Contains([]string{task.ReasonHost, task.ReasonSecret, task.ReasonPolicy, task.ReasonNamespace, task.ReasonAccept}, r.Reason):
		words = fmt.Sprintf("not started (%s)", why)
		if r.HTTPStatus > 0 { // a request was answered, and its redirect or its response was refused
			words = fmt.Sprintf("failed (%s)", why)
		}
	case r.State == task.Failed && r.Signal != "":
		words = "signal " + OneLine(r.Signal)
	case r.State == task.Failed && r.ExitCode != nil:
		words = fmt.Sprintf("exit %d", *r.ExitCode)
	case r.State == task.Failed && r.Reason == task.ReasonStart:
		words = "could not start"
	case r.State == task.Paused:
		words += " (" + task.Duration(r.PausedFor(now)).Approximate() + ")"
	case r.State == task.Dispatched && r.PausedBy != "":
		words += " (held)"
	case r.State == task.Running && r.PausedBy != "":
		words += " (pausing)"
	case r.State == task.Cancelled && r.Reason == task.ReasonCancelled:
	case r.State == task.Skipped, r.State == task.Queued, r.State == task.Missed, r.State == task.Cancelled:
		if why != "" {
			words += " (" + why + ")"
		}
	}

	if r.Fan != nil {
		words += ", " + partsText(r)
	}

	if r.Count > 1 {
		words += fmt.Sprintf(" ×%d", r.Count)
	}

	if r.Attempt > 1 {
		words += fmt.Sprintf(", attempt %d", r.Attempt)
	}

	return words
}

// partsText summarizes the states of a run's parts.
func partsText(r task.Run) string {
	f := r.Fan
	if !r.State.Final() {
		return f.String()
	}
	return fmt.Sprintf("%d of %d parts", f.Succeeded+f.Kept, f.Count)
}

// UsageText describes the resources that the processes of a run used; "" if nothing is known.
func UsageText(u task.Usage) string {
	var words []string
	add := func(v int64, format, text string) {
		if v > 0 {
			words = append(words, fmt.Sprintf(format, text))
		}
	}

	add(u.CPUMS, "%s CPU", task.Duration(time.Duration(u.CPUMS)*time.Millisecond).Approximate())
	add(u.MemoryPeak, "%s memory", Bytes(u.MemoryPeak))
	add(u.IORead, "%s read", Bytes(u.IORead))
	add(u.IOWritten, "%s written", Bytes(u.IOWritten))

	return strings.Join(words, ", ")
}

// DecidedBy names the node and the shard that decided the tick of a run.
func DecidedBy(r task.Run) string {
	if r.Owner == "" {
		return fmt.Sprintf("shard %d", r.Shard)
	}
	return fmt.Sprintf("%s, shard %d", OneLine(r.Owner), r.Shard)
}

// PartsText says how many parts a run has, and how many of them have ended.
func PartsText(f task.Fan) string {
	words := fmt.Sprintf("%d: %d ended, %d succeeded, %d required", f.Count, f.Ended, f.Succeeded+f.Kept, f.Need)
	if f.Kept > 0 {
		words += fmt.Sprintf(", %d kept from the earlier run", f.Kept)
	}
	return words
}
