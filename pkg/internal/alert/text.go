package alert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// The words with which titles begin, in the order in which a title counts them.
const (
	wordFailed   = "FAILED"
	wordOverdue  = "OVERDUE" // all expectations but failures
	wordMore     = "MORE"    // alerts that are only counted
	wordProblem  = "PROBLEM" // of the cluster
	wordStill    = "STILL"   // before the word of an alert that is repeated
	wordResolved = "RESOLVED"
	wordClosed   = "CLOSED"
	wordTest     = "TEST"

	wordStillOpen = wordStill + " OPEN" // of all that are repeated
)

// The longest parts of a text.
const (
	maxName      = 70  // characters of the name of a task in a title
	maxLine      = 300 // bytes of a line that a task has written
	maxShortLine = 120 // the same, in a text about several alerts
	maxCounted   = 5   // namespaces with their counts
	maxProblem   = 600 // bytes of the text of a problem of the cluster
)

// word returns the word for an alert of the message.
func (w *writer) word(item *Item) string {
	a := &item.Alert
	switch w.changes[item] {
	case isClosed:
		// Only what is known to work again is resolved.
		if c := a.Closed; c != nil && (c.Why == task.AlertSucceeded || c.Why == task.AlertSolved && a.Kind == task.AlertCluster) {
			return wordResolved
		}
		return wordClosed
	case isRepeated:
		return wordStill + " " + wordOfKind(a.Kind)
	}

	return wordOfKind(a.Kind)
}

// wordOfKind returns the word for an open alert.
func wordOfKind(kind task.AlertKind) string {
	switch kind {
	case task.AlertSuccessWithin, task.AlertSuccessBy, task.AlertMaxLateness, task.AlertMaxDuration, task.AlertMaxPause:
		return wordOverdue
	case task.AlertMore:
		return wordMore
	case task.AlertCluster:
		return wordProblem
	}

	return wordFailed
}

// nameOf returns the name of what an alert is about.
func nameOf(a *task.Alert) string {
	switch a.Kind {
	case task.AlertMore:
		return short(a.Namespace)
	case task.AlertCluster:
		return short("cluster/" + a.Code)
	}

	return short(a.Namespace + "/" + a.Task)
}

// writeTitle returns the first line of the text, at most MaxTitle characters.
func (w *writer) writeTitle() string {
	item := w.single
	switch {
	case w.m.Test:
		return w.withTime(wordTest+" "+short(w.m.Receiver)+": this receiver gets messages", time.UTC)
	case item == nil:
		return w.titleOfSeveral()
	}

	title := w.word(item) + " " + cutMiddle(nameOf(&item.Alert), maxName)
	if !w.m.Plain {
		title += ": " + w.whatHappened(item)
	}

	return w.withTime(title, zoneOf(item))
}

// withTime adds to a title the time of what it says, because a message may arrive late.
func (w *writer) withTime(title string, zone *time.Location) string {
	layout := "15:04"
	if zone == time.UTC {
		layout = "15:04 UTC"
	}
	end := " (as of " + w.m.Now.In(zone).Format(layout) + ")"

	return cutCharacters(OneLine(title), MaxTitle-len(end)) + end
}

// titleOfSeveral returns the title of a message about several alerts: their number by word, and the first names.
func (w *writer) titleOfSeveral() string {
	counts := map[string]int{wordClosed: w.m.Unnamed}
	for _, list := range [][]Item{w.m.Opened, w.m.Closed} {
		for i := range list {
			counts[w.word(&list[i])] += CountOf(&list[i].Alert)
		}
	}
	for i := range w.m.Repeated {
		counts[wordStillOpen] += CountOf(&w.m.Repeated[i].Alert)
	}

	var parts []string
	for _, word := range []string{wordFailed, wordOverdue, wordMore, wordProblem, wordStillOpen, wordResolved, wordClosed} {
		if n := counts[word]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}

	if len(parts) == 0 {
		parts = []string{"nothing new"}
	}

	end := w.withTime("", time.UTC)
	title := strings.Join(parts, ", ")
	for i, item := range w.named {
		separator := ", "
		if i == 0 {
			separator = ": "
		}

		more := separator + cutMiddle(nameOf(&item.Alert), maxName)
		if len(title)+len(more)+len(separator+cutMark)+len(end) > MaxTitle {
			title += separator + cutMark
			break
		}
		title += more
	}

	return w.withTime(title, time.UTC)
}

// whatHappened says in a few words why an alert is open, or why it was closed.
func (w *writer) whatHappened(item *Item) string {
	a := &item.Alert
	if w.changes[item] == isClosed {
		return whyClosed(item, w.m.Now)
	}

	at := func(t task.Time) string { return formatTime(t, zoneOf(item), w.m.Now) }
	switch a.Kind {
	case task.AlertSuccessBy:
		if !a.Deadline.IsZero() {
			return "no success by " + at(a.Deadline)
		}
		return "no success by its deadline, since " + at(a.Since)
	case task.AlertSuccessWithin:
		words := "no success"
		if item.Task != nil && item.Task.Alerts != nil && item.Task.Alerts.SuccessWithin > 0 {
			words += " within " + item.Task.Alerts.SuccessWithin.String()
		}
		return words + ", since " + at(a.Since)
	case task.AlertMaxLateness:
		return "has not started by " + at(a.Deadline)
	case task.AlertMaxDuration:
		return "a run takes too long" + limitText(item, func(e *task.Alerts) task.Duration { return e.MaxDuration }) + ", since " + at(a.Since)
	case task.AlertMaxPause:
		return "paused for too long" + limitText(item, func(e *task.Alerts) task.Duration { return e.MaxPause }) + ", since " + at(a.Since)
	case task.AlertMore:
		return fmt.Sprintf("%s without a name: %s", wording.Plural(int64(CountOf(a)), "alert"), kindsText(a.More))
	case task.AlertCluster:
		return short(a.Text) + ", since " + at(a.Since)
	}

	words := "failed"
	if item.Run != nil {
		words = short(wording.RunResult(*item.Run, w.m.Now))
	}
	if a.Failures > 1 {
		words += fmt.Sprintf(", %d in a row", a.Failures)
	}

	return words + ", since " + at(a.Since)
}

// limitText returns the limit of an expectation in parentheses, if it is known.
func limitText(item *Item, limit func(*task.Alerts) task.Duration) string {
	if item.Task == nil || item.Task.Alerts == nil || limit(item.Task.Alerts) == 0 {
		return ""
	}
	return " (limit " + limit(item.Task.Alerts).String() + ")"
}

// whyClosed says why an alert was closed.
func whyClosed(item *Item, now time.Time) string {
	a, c := &item.Alert, item.Alert.Closed
	if c == nil {
		return "no longer for this receiver"
	}

	by := ""
	if c.By != nil {
		by = " by " + short(c.By.String())
	}

	switch c.Why {
	case task.AlertSucceeded:
		at := c.At
		if item.Run != nil && !item.Run.EndedAt.IsZero() {
			at = item.Run.EndedAt
		}
		words := "succeeded " + formatTime(at, zoneOf(item), now)
		if lasted := at.Sub(a.Since.Time); lasted > 0 {
			was := "failing"
			if wordOfKind(a.Kind) == wordOverdue {
				was = "overdue"
			}
			words += fmt.Sprintf(", %s for %s", was, task.Duration(lasted).Approximate())
		}
		if c.Failures > 1 {
			words += fmt.Sprintf(", %d failures", c.Failures)
		}
		return words
	case task.AlertDismissed:
		return "dismissed" + by
	case task.AlertPaused:
		return "task paused" + by
	case task.AlertDeleted:
		return "task deleted" + by
	case task.AlertNotWatched:
		return "no longer watched" + by
	case task.AlertShadow:
		return "task is a shadow now" + by
	case task.AlertEnded:
		return "its schedule has ended"
	case task.AlertStarted:
		return "started, as of " + formatTime(c.At, zoneOf(item), now)
	case task.AlertRunEnded:
		words := "the run has ended"
		if item.Run != nil && item.Run.State.Final() {
			words = short(wording.RunResult(*item.Run, now))
		}
		return words
	case task.AlertResumed:
		return "pause ended" + by
	case task.AlertLimitRaised:
		return "limit raised" + by
	case task.AlertSolved:
		if a.Kind == task.AlertMore {
			return "all of its alerts have names again"
		}
		return fmt.Sprintf("solved after %s", task.Duration(c.At.Sub(a.Since.Time)).Approximate())
	}

	return short(string(c.Why)) + by
}

// kindsText lists counts by kind.
func kindsText(counts map[task.AlertKind]int) string {
	var words []string
	for _, kind := range task.TaskAlertKinds {
		if n := counts[kind]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, kind))
		}
	}

	return strings.Join(words, ", ")
}

// line is a line of a text. If a text is too long, the lines with the highest rank are left out first.
type line struct {
	text string
	rank int
}

// text returns the text of the message, at most MaxText bytes.
func (w *writer) text() string {
	item := w.single
	switch {
	case w.m.Test:
		return joinLines([]line{{w.title, 0}, {"This is a test. No alert has caused it.", 1}, {w.url(nil), 1}, {w.countsLine(), 2}})
	case item == nil:
		return w.textOfSeveral()
	}

	return joinLines(w.linesOf(item))
}

// linesOf returns the lines of a text about one alert.
func (w *writer) linesOf(item *Item) []line {
	a := &item.Alert
	lines := []line{{w.title, 0}}

	if w.changes[item] != isClosed && !w.m.Plain {
		if output := w.outputLine(item, maxLine); output != "" {
			lines = append(lines, line{"> " + output, 4})
		}
		if item.Task != nil {
			lines = append(lines, line{cutBytes(firstLine(item.Task.Description), maxLine), 5})
		}
		if text := Shorten(a.Text, maxProblem); !strings.Contains(w.title, text) {
			lines = append(lines, line{text, 4}) // the title has only its beginning
		}
		lines = append(lines, line{w.detailLine(item), 3}, line{w.nextLine(item), 3})
	}

	return append(lines, line{w.url(item), 2}, line{commandAbout(a), 1}, line{w.countsLine(), 6})
}

// joinLines joins the lines that are not empty. It leaves out those with the highest rank until the text fits.
func joinLines(lines []line) string {
	lines = slices.DeleteFunc(lines, func(l line) bool { return l.text == "" })
	for len(lines) > 1 && sizeOf(lines) > MaxText {
		last := 0
		for i, l := range lines {
			if l.rank >= lines[last].rank {
				last = i
			}
		}
		lines = slices.Delete(lines, last, last+1)
	}

	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.text
	}

	return cutBytes(strings.Join(texts, "\n"), MaxText)
}

// sizeOf returns the number of bytes of some lines.
func sizeOf(lines []line) int {
	sum := 0
	for _, l := range lines {
		sum += len(l.text) + len("\n")
	}

	return sum
}

// outputLine returns the last line of the output of the failed run or, without output, what went wrong with it.
func (w *writer) outputLine(item *Item, most int) string {
	if !w.mayShowOutput(item) {
		return ""
	}

	text := lastLine(item.Run.OutputTail)
	if text == "" {
		text = messageOf(item.Run)
	}

	return cutBytes(text, most)
}

// messageOf returns what went wrong with a run, in one line. It is empty if only its exit code tells: messages have that in any case.
func messageOf(r *task.Run) string {
	if r.Reason == task.ReasonExit {
		return ""
	}
	return OneLine(r.Message)
}

// detailLine returns whom to ask, the run, and when the task last succeeded.
func (w *writer) detailLine(item *Item) string {
	a := &item.Alert
	var words []string
	for _, label := range []string{task.LabelOwner, task.LabelRunbook} {
		if value := short(a.Labels[label]); value != "" {
			words = append(words, label+" "+value)
		}
	}

	if a.Run != "" {
		run := "run " + short(a.Run)
		if item.Run != nil && item.Run.Node != "" {
			run += " on " + short(item.Run.Node)
		}
		if item.Run != nil && a.Kind != task.AlertFailures { // the title does not say how it ended
			run += ": " + short(wording.RunResult(*item.Run, w.m.Now))
		}
		words = append(words, run)
	}

	if !item.LastSuccess.IsZero() {
		words = append(words, "last success "+formatLocal(item.LastSuccess, zoneOf(item), w.m.Now))
	}
	if a.Openings > 1 {
		words = append(words, "opened "+strconv.Itoa(a.Openings)+" times")
	}
	if a.Acknowledged != nil {
		words = append(words, "acknowledged by "+short(a.Acknowledged.By.String()))
	}

	return strings.Join(words, " | ")
}

// nextLine says when the task runs next.
func (w *writer) nextLine(item *Item) string {
	switch {
	case !item.Next.IsZero():
		return "next: " + formatTime(item.Next, zoneOf(item), w.m.Now)
	case item.NextWords != "":
		return "next: none, " + short(item.NextWords)
	}

	return ""
}

// commandAbout returns the command that explains an alert. Names have no characters that a shell would interpret.
func commandAbout(a *task.Alert) string {
	switch a.Kind {
	case task.AlertMore:
		return "carillon alert list -n " + short(a.Namespace)
	case task.AlertCluster:
		return "carillon cluster status"
	}

	return "carillon why -n " + short(a.Namespace) + " " + short(a.Task)
}

// countsLine returns who else is notified, what else is open, and what is silenced.
func (w *writer) countsLine() string {
	var words []string

	if item := w.single; item != nil {
		others := slices.DeleteFunc(slices.Clone(item.Alert.Notify), func(name string) bool { return name == w.m.Receiver })
		if len(others) > 0 {
			words = append(words, cutBytes("also notified: "+short(strings.Join(others, ", ")), maxLine))
		}
	}

	if open := without(w.m.Open, countByNamespace(w.m.Opened, w.m.Repeated)); len(open) > 0 {
		words = append(words, totalOf(open, "more open"))
	}

	if w.m.Silenced > 0 {
		silenced := fmt.Sprintf("%d silenced", w.m.Silenced)
		if w.m.SilencedBy != "" {
			silenced += " by " + short(w.m.SilencedBy)
		}
		if !w.m.SilencedUntil.IsZero() {
			silenced += " until " + formatClock(w.m.SilencedUntil, w.zone(), w.m.Now)
		}
		words = append(words, silenced)
	}

	return strings.Join(words, " | ")
}

// totalOf returns a number of alerts with the namespaces that have the most: "12 more open: shop 9, web 3".
func totalOf(counts map[string]int, what string) string {
	total, left := 0, 0
	var words []string
	for i, ns := range largestFirst(counts) {
		total += counts[ns]
		if i >= maxCounted {
			left += counts[ns]
			continue
		}

		name := cutMiddle(short(ns), maxName)
		if ns == "" {
			name = "cluster"
		}
		words = append(words, fmt.Sprintf("%s %d", name, counts[ns]))
	}
	if left > 0 {
		words = append(words, fmt.Sprintf("others %d", left))
	}

	return fmt.Sprintf("%d %s: %s", total, what, strings.Join(words, ", "))
}

// textOfSeveral returns the text of a message about several alerts: a line for each that is named, and a second one as long as there
// is room. A plain text has only names and counts.
func (w *writer) textOfSeveral() string {
	named := w.named
	var unnamed map[string]int

	// The first lines of all alerts are more important than the second lines of some.
	for {
		unnamed = w.countUnnamed(named)
		if len(named) == 0 || sizeOf(w.linesOfSeveral(named, unnamed, 0)) <= MaxText {
			break
		}
		named = named[:len(named)-1]
	}

	detailed := 0
	for detailed < len(named) && !w.m.Plain && sizeOf(w.linesOfSeveral(named, unnamed, detailed+1)) <= MaxText {
		detailed++
	}

	return joinLines(w.linesOfSeveral(named, unnamed, detailed))
}

// countUnnamed returns how many alerts of the message are not named, by namespace.
func (w *writer) countUnnamed(named []*Item) map[string]int {
	items := make([]Item, len(named))
	for i, item := range named {
		items[i] = *item
	}

	return without(countByNamespace(w.m.Opened, w.m.Closed, w.m.Repeated), countByNamespace(items))
}

// linesOfSeveral returns the lines of a text about several alerts. The first ones have a second line.
func (w *writer) linesOfSeveral(named []*Item, unnamed map[string]int, detailed int) []line {
	lines := []line{{w.title, 0}}
	for i, item := range named {
		first := w.word(item) + " " + cutMiddle(nameOf(&item.Alert), maxName)
		if !w.m.Plain {
			first += ": " + w.whatHappened(item)
		}
		lines = append(lines, line{cutBytes(first, 2*maxShortLine), 1})

		if i < detailed {
			if second := w.secondLine(item); second != "" {
				lines = append(lines, line{"  " + second, 2})
			}
		}
	}

	if len(unnamed) > 0 {
		lines = append(lines, line{totalOf(unnamed, "more in this message"), 0})
	}
	if w.m.Unnamed > 0 {
		lines = append(lines, line{fmt.Sprintf("%d more closed", w.m.Unnamed), 0})
	}

	return append(lines, line{w.url(w.single), 1}, line{"carillon alert list -A", 1}, line{w.countsLine(), 0})
}

// secondLine returns the second line about an alert in a text about several.
func (w *writer) secondLine(item *Item) string {
	var words []string
	if owner := short(item.Alert.Labels[task.LabelOwner]); owner != "" {
		words = append(words, "owner "+owner)
	}

	if output := w.outputLine(item, maxShortLine); output != "" {
		words = append(words, "> "+output)
	} else if next := w.nextLine(item); next != "" && w.changes[item] != isClosed {
		words = append(words, next)
	}

	return strings.Join(words, " | ")
}

// zone returns the zone of the times that belong to no alert.
func (w *writer) zone() *time.Location {
	if item := w.single; item != nil {
		return zoneOf(item)
	}
	return time.UTC
}

// zoneOf returns the zone of an alert: that of its task.
func zoneOf(item *Item) *time.Location {
	if item.Task == nil {
		return time.UTC
	}

	zone, err := schedule.Location(item.Task.Timezone)
	if err != nil || zone.String() == "UTC" {
		return time.UTC
	}

	return zone
}

// farAway is how far from now a time is if it needs a year.
const farAway = 180 * 24 * time.Hour

// formatLocal formats a time in a zone without the name of the zone: "Tue 24 Nov 00:04".
func formatLocal(t task.Time, zone *time.Location, now time.Time) string {
	layout := "Mon 2 Jan 15:04"
	if away := t.Sub(now); away > farAway || away < -farAway {
		layout = "Mon 2 Jan 2006 15:04"
	}

	return t.In(zone).Format(layout)
}

// formatTime formats a time in a zone with its offset: "Tue 24 Nov 00:04 +01:00".
func formatTime(t task.Time, zone *time.Location, now time.Time) string {
	return formatLocal(t, zone, now) + " " + offsetOf(t.Time, zone)
}

// formatClock formats a time of the current day without the day: "16:00".
func formatClock(t time.Time, zone *time.Location, now time.Time) string {
	local := t.In(zone)
	if local.Format(time.DateOnly) != now.In(zone).Format(time.DateOnly) {
		return formatTime(task.At(t), zone, now)
	}

	text := local.Format("15:04")
	if zone == time.UTC {
		text += " UTC"
	}

	return text
}

// offsetOf returns the offset of a zone at a time: "+01:00", or "UTC".
func offsetOf(t time.Time, zone *time.Location) string {
	if zone == time.UTC {
		return "UTC"
	}
	return t.In(zone).Format("-07:00")
}
