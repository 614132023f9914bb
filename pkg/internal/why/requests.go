package why

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// hasHadAttempt reports whether an attempt of a run has ended, whether its request was sent or not.
func hasHadAttempt(r *task.Run) bool { return len(r.Attempts) > 0 || r.UnsentCount() > 0 }

// targetWords explains why a run waits for the target of a request: its own, or that of another run of the task.
func (w wording) targetWords(r *task.Run) string {
	if r.Unsent != nil {
		return reasonWords(r) + ": " + w.unsentWords(r.Unsent)
	}

	if other := w.runAtTarget(); other != nil {
		return fmt.Sprintf("%s waits for the target of its request: %s", w.runWords(other), w.unsentWords(other.Unsent))
	}

	return "the target of the task's requests was unreachable or asked to wait, and another run tries it again"
}

// runAtTarget returns the oldest run that waits for the target of its request, or nil.
func (f *Facts) runAtTarget() (oldest *task.Run) {
	for i := range f.Runs {
		if r := &f.Runs[i]; r.WaitsForTarget() && (oldest == nil || r.ScheduledTime.Before(oldest.ScheduledTime.Time)) {
			oldest = r
		}
	}

	return oldest
}

// unsentWords describes the attempts of a run that were not sent: the cause, how many they were, and since when.
func (s speaker) unsentWords(u *task.Unsent) string {
	count := formatCount(int64(u.Count), "attempt was", "attempts were")
	return fmt.Sprintf("%s (%s not sent since %s)", unsentCause(u.Message), count, s.formatClock(u.First.Time))
}

// notSent begins the messages of attempts that were not sent (process.NotSentPrefix), which the sentence says already.
const notSent = "nothing was sent: "

// unsentCause returns what prevented a request.
func unsentCause(message string) string {
	message = strings.TrimRight(strings.TrimPrefix(message, notSent), ".")
	if message == "" {
		return "the cause is not on record"
	}
	return message
}

// unsentEnd returns the sentence for a run that ended because its request could not be sent.
func (s speaker) unsentEnd(subject string, r *task.Run) string {
	text := fmt.Sprintf("%s failed: its request was not sent: %s", subject, unsentCause(r.Message))
	if u := r.Unsent; u != nil {
		text += fmt.Sprintf("; before that, %s not sent since %s", formatCount(int64(u.Count), "attempt was", "attempts were"), s.formatTime(u.First.Time))
	}

	return makeSentence("%s", text)
}
