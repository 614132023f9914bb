package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The output of a run is sent to a page in messages of limited size, at a limited rate, so that neither the node nor the
// browser holds much of it, however much the run writes. If a run writes faster, the page skips to the newest lines and
// says how much it has left out.
const (
	outputTail   = 300                    // lines with which a page begins
	outputBatch  = 48 << 10               // bytes of text in a message, approximately
	outputEvery  = 200 * time.Millisecond // between two messages
	outputBehind = 15                     // full messages in a row after which the page skips to the newest lines
	maxShownLine = 2000                   // bytes of a line that are shown
	runPoll      = 2 * time.Second        // between two looks at whether a run has another attempt
	outputRetry  = 5 * time.Second        // after an error that may pass
)

// outputEvent is the name of the events with output.
const outputEvent = "output"

// outputMessage is what an event contains.
type outputMessage struct {
	Attempt int          `json:"attempt"`
	Lines   []outputLine `json:"lines,omitempty"`
	Ended   bool         `json:"ended,omitempty"`   // the attempt has ended, and these are its last lines
	Problem string       `json:"problem,omitempty"` // why there is no output, or no more
	Kept    *string      `json:"kept,omitempty"`    // the lines are all that is kept: what to say about that
	Last    bool         `json:"last,omitempty"`    // the lines are the end of output that was not stored completely
	Lost    int64        `json:"lost,omitempty"`    // bytes before them that were not
}

// outputLine is a line of output as a page shows it.
type outputLine struct {
	At   int64  `json:"at"`   // the number of bytes of output before it
	Next int64  `json:"next"` // and up to its end
	Time string `json:"time,omitempty"`
	Err  bool   `json:"err,omitempty"` // written to standard error
	Text string `json:"text"`
	Cut  int64  `json:"cut,omitempty"`  // bytes at its end that are left out
	Open bool   `json:"open,omitempty"` // it continues: the next line with the same beginning replaces it
}

// feedOutput sends the output of a run, attempt by attempt, until the run has ended.
func feedOutput(ctx context.Context, r *Request, last string, send func(FeedEvent) error) error {
	run, err := r.API.Runs.Find(ctx, r.Value("ns"), r.Value("id"))
	if err != nil || !hasOutput(run) {
		return err
	}
	chosen, err := chosenAttempt(r)
	if err != nil {
		return err
	}

	f := &outputFeed{r: r, send: send, run: run, zone: r.Zone(zoneOfTask(ctx, r, run))}
	f.attempt, f.next, f.resumes = parseOutputID(last)
	for {
		attempt := chosen
		if attempt == 0 {
			attempt = newestAttempt(f.run)
		}
		if attempt != f.attempt {
			f.attempt, f.next, f.resumes = attempt, 0, false
		}

		err := f.followAttempt(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && (chosen != 0 || !f.awaitNext(ctx)) {
			return f.sendUnstored()
		}
		if err != nil && !f.reportAndWait(ctx, err) {
			return err
		}
	}
}

// hasOutput reports whether a run itself writes output: only its parts do if it has some, and ticks that did not run do not.
func hasOutput(r task.Run) bool {
	return r.ID != "" && r.Fan == nil && (!r.State.Final() || !r.StartedAt.IsZero() || len(r.Attempts) > 0)
}

// newestAttempt returns the latest attempt that a node has received; 0 if none has.
func newestAttempt(r task.Run) int {
	if r.State == task.Queued {
		if n := len(r.Attempts); n > 0 {
			return r.Attempts[n-1].Attempt
		}
		return 0
	}
	return r.Attempt
}

// chosenAttempt returns the attempt that the page asks for; 0 means the newest.
func chosenAttempt(r *Request) (int, error) {
	text := r.Query.Get("attempt")
	if text == "" {
		return 0, nil
	}

	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, task.Invalid(task.CodeBadValue, "attempt", "%s is not the number of an attempt", task.Quote(text))
	}

	return n, nil
}

// zoneOfTask returns the time zone of the task of a run; "" if the task is gone.
func zoneOfTask(ctx context.Context, r *Request, run task.Run) string {
	t, err := r.API.Tasks.Get(ctx, run.Namespace, run.Task)
	if err != nil {
		return ""
	}
	return t.Timezone
}

// outputID is the id of an event: the attempt, and the number of bytes of its output that the page has.
func outputID(attempt int, next int64) string { return fmt.Sprintf("%d.%d", attempt, next) }

func parseOutputID(id string) (attempt int, next int64, ok bool) {
	a, n, _ := strings.Cut(id, ".")
	attempt, err := strconv.Atoi(a)
	if err != nil {
		return 0, 0, false
	}
	next, err = strconv.ParseInt(n, 10, 64)
	if err != nil || next < 0 {
		return 0, 0, false
	}

	return attempt, next, true
}

// outputFeed sends the output of one run.
type outputFeed struct {
	r    *Request
	send func(FeedEvent) error
	run  task.Run // as read last
	zone *time.Location

	attempt int
	next    int64 // the number of bytes of output that were sent or skipped
	resumes bool  // the page has the output up to next

	lines []outputLine
	size  int // bytes of their texts
	open  *outputLine
	raw   []byte // the beginning of the open line
	fresh bool   // the open line has changed since it was sent
	last  string // the text of the line before it
}

// followAttempt sends the output of an attempt until it has ended.
func (f *outputFeed) followAttempt(ctx context.Context) error {
	patience := outputBehind
	for {
		stream, err := f.openStream(ctx)
		if err != nil {
			return err
		}

		f.lines, f.size, f.open, f.raw = nil, 0, nil, nil
		f.next = max(f.next, stream.From)
		behind, err := f.sendStream(ctx, stream, patience)
		if !behind {
			return err
		}

		// Skip to the newest lines. The next time it takes longer, so that the end of output in very long lines is reached.
		f.resumes, patience = false, 2*patience
	}
}

// openStream opens the output after what the page has, or its newest lines.
func (f *outputFeed) openStream(ctx context.Context) (*client.LogStream, error) {
	o := client.LogOptions{Attempt: f.attempt, Times: true}
	if f.resumes {
		o.From = f.next
	} else {
		o.Tail = outputTail
	}

	if f.run.State.Final() || f.attempt != 0 && f.attempt < newestAttempt(f.run) {
		return f.r.API.Logs.Open(ctx, f.run.Namespace, f.run.Task, f.run.ID, o)
	}

	return f.r.API.Logs.Follow(ctx, f.run.Namespace, f.run.Task, f.run.ID, o)
}

// sendStream sends what a stream brings until it ends. It returns true if the stream brings more than the page gets, for a while.
func (f *outputFeed) sendStream(ctx context.Context, stream *client.LogStream, patience int) (behind bool, err error) {
	pieces, stop, reason := readPieces(stream)
	defer stop()

	pace := time.NewTimer(0) // fires when the next message may be sent
	defer pace.Stop()
	ready, full := false, 0
	in := pieces
	for {
		select {
		case p, ok := <-in:
			if !ok {
				return false, f.endStream(*reason)
			}
			f.addPiece(p)
		case <-pace.C:
			ready = true
		case <-ctx.Done():
			return false, ctx.Err()
		}

		// While a full message waits for its time, nothing is read.
		in = pieces
		isFull := f.size >= outputBatch
		switch {
		case ready && (len(f.lines) > 0 || f.fresh):
			if err := f.sendLines(false); err != nil {
				return false, err
			}
			ready = false
			pace.Reset(outputEvery)
			if full++; !isFull {
				full = 0
			}
			if full >= patience {
				return true, nil
			}
		case isFull:
			in = nil
		}
	}
}

// readPieces reads a stream in a goroutine, because reading cannot be combined with a timer. stop closes the stream and
// waits for the goroutine. reason is why the channel was closed.
func readPieces(stream *client.LogStream) (pieces chan client.LogPiece, stop func(), reason *error) {
	pieces, reason = make(chan client.LogPiece), new(error)
	quit, done := make(chan struct{}), make(chan struct{})
	read := func() {
		for {
			p, err := stream.Next()
			if err != nil {
				*reason = err
				return
			}

			p.Text = bytes.Clone(p.Text)
			select {
			case pieces <- p:
			case <-quit:
				return
			}
		}
	}

	callgroup.Start(func() {
		defer close(done)
		defer close(pieces)
		if p := callgroup.Catch(read); p != nil {
			*reason = p
		}
	}, func(*callgroup.Panic) {})

	return pieces, func() {
		close(quit)
		stream.Close()
		<-done
	}, reason
}

// endStream sends the last lines. A stream that ends without an error is complete.
func (f *outputFeed) endStream(reason error) error {
	ended := errors.Is(reason, io.EOF)
	if err := f.sendLines(ended); err != nil {
		return err
	}
	if ended {
		return nil
	}

	f.resumes = true

	return reason
}

// addPiece adds a piece of output to the next message. Pieces that the page has already are left out.
func (f *outputFeed) addPiece(p client.LogPiece) {
	if end := p.From + int64(len(p.Text)); end <= f.next {
		return
	} else if p.From < f.next {
		p.Text, p.From = p.Text[f.next-p.From:], f.next
	}

	for line := range bytes.Lines(p.Text) {
		f.addLine(p, line)
		p.From += int64(len(line))
	}
	f.next = p.From
}

// addLine adds a line or a part of one, which begins at p.From.
func (f *outputFeed) addLine(p client.LogPiece, text []byte) {
	isErr := p.Stream == task.Stderr
	if f.open != nil && (f.open.Next != p.From || f.open.Err != isErr) {
		f.closeLine()
	}
	if f.open == nil {
		f.open, f.raw = &outputLine{At: p.From, Err: isErr, Open: true}, nil
		if !p.Time.IsZero() {
			f.open.Time = p.Time.In(f.zone).Format("15:04:05.000")
		}
	}

	f.fresh = true
	f.open.Next = p.From + int64(len(text))
	text, ended := bytes.CutSuffix(text, []byte("\n"))
	room := min(len(text), maxShownLine-len(f.raw))
	f.raw = append(f.raw, text[:room]...)
	f.open.Cut += int64(len(text) - room)
	if ended {
		f.closeLine()
	}
}

// closeLine ends the open line.
func (f *outputFeed) closeLine() {
	line := f.shownLine()
	line.Open = false
	f.last = line.Text
	f.lines, f.size = append(f.lines, line), f.size+len(line.Text)+64
	f.open, f.raw, f.fresh = nil, nil, false
}

// shownLine returns the open line with its text.
func (f *outputFeed) shownLine() outputLine {
	line := *f.open
	raw := f.raw
	if line.Cut > 0 { // the cut may be within a character
		for n := 0; n < utf8.UTFMax && len(raw) > 0 && !utf8.Valid(raw[max(len(raw)-utf8.UTFMax, 0):]); n++ {
			raw = raw[:len(raw)-1]
		}
		line.Cut += int64(len(f.raw) - len(raw))
	}
	line.Text = shownText(raw)

	return line
}

// sendLines sends the lines. The open line is sent, too, and will be sent again when it continues.
func (f *outputFeed) sendLines(ended bool) error {
	lines, next := f.lines, f.next
	if f.open != nil {
		line := f.shownLine()
		lines, next = append(lines, line), line.At
	}
	if len(lines) == 0 && !ended {
		return nil
	}

	f.lines, f.size, f.fresh = nil, 0, false

	return f.send(FeedEvent{Name: outputEvent, ID: outputID(f.attempt, next), Data: outputMessage{Attempt: f.attempt, Lines: lines, Ended: ended}})
}

// awaitNext waits for another attempt of the run. It returns false if none will follow.
func (f *outputFeed) awaitNext(ctx context.Context) bool {
	for {
		run, err := f.r.API.Runs.Find(ctx, f.run.Namespace, f.run.ID)
		if err == nil {
			f.run = run
		}
		if newestAttempt(f.run) > f.attempt {
			return true
		}
		if f.run.State.Final() || err != nil && !problemOf(err).away() || !sleep(ctx, runPoll) {
			return false
		}
	}
}

// reportAndWait says why there is no output. It returns false if a further try is useless.
func (f *outputFeed) reportAndWait(ctx context.Context, err error) bool {
	p := problemOf(err)
	if errors.Is(err, task.ErrUnavailable) && f.resumes { // the stream was cut off
		return sleep(ctx, time.Second)
	}

	if p.Code == client.CodeNoLogs {
		if run, err := f.r.API.Runs.Find(ctx, f.run.Namespace, f.run.ID); err == nil {
			f.run = run
		}
		if f.run.State == task.Queued && f.attempt == 0 {
			return f.awaitStart(ctx)
		}
		if f.hasKept() {
			_ = f.sendKept(p.Message) // the page is gone
			return false
		}
		if isUnkeptResponse(f.run) {
			p.Message = "Nodes store the responses of successful parts only with action.http.output: keep."
		}
	}

	if f.send(FeedEvent{Name: outputEvent, Data: outputMessage{Attempt: f.attempt, Problem: p.Message}}) != nil {
		return false
	}
	if !p.away() && p.Code != client.CodeNodeAway {
		return false
	}
	if !sleep(ctx, outputRetry) {
		return false
	}
	if run, err := f.r.API.Runs.Find(ctx, f.run.Namespace, f.run.ID); err == nil {
		f.run = run
	}

	return true
}

// awaitStart waits until a node has received the run. It returns false if none will.
func (f *outputFeed) awaitStart(ctx context.Context) bool {
	message := outputMessage{Problem: "The run has not started yet."}
	if f.run.WaitsForTarget() {
		message.Problem = "No request was sent yet."
	}

	return f.send(FeedEvent{Name: outputEvent, Data: message}) == nil && f.awaitNext(ctx)
}

// hasKept reports whether the record of the run has the end of the output of this attempt.
func (f *outputFeed) hasKept() bool {
	return f.run.State.Final() && f.attempt == f.run.Attempt && f.run.OutputTail != ""
}

// sendKept sends the end of the output that the record of the run contains, because the output itself is gone.
func (f *outputFeed) sendKept(why string) error {
	tail := f.run.OutputTail
	note := "This is the end of the output, from the record of the run: " + why
	switch {
	case int64(len(tail)) >= f.run.OutputBytes && !f.run.Truncated:
		note = ""
	case f.run.HTTPStatus > 0 && f.run.State == task.Succeeded:
		note = "This is the end of the response. Nodes store whole responses of successful runs only with action.http.output: keep."
	}

	lines := recordedLines(tail, max(f.run.OutputBytes-int64(len(tail)), 0))

	return f.send(FeedEvent{Name: outputEvent, Data: outputMessage{Attempt: f.attempt, Lines: lines, Ended: true, Kept: &note}})
}

// sendUnstored sends the end of the output from the record of the run, if the node has not stored all of it: what it has
// ends in the middle of the run.
func (f *outputFeed) sendUnstored() error {
	if !f.hasKept() || !f.run.Truncated {
		return nil
	}

	// The last line of what is stored is not from the run, and says how much that is.
	stored := f.next
	var limit int64
	if n, _ := fmt.Sscanf(f.last, "[carillon: output beyond %d bytes", &limit); n == 1 && limit < stored {
		stored = limit
	}

	tail := f.run.OutputTail
	at := f.run.OutputBytes - int64(len(tail))
	if at < stored { // a part of the end is stored
		tail = tail[min(stored-at, int64(len(tail))):]
		at = stored
	}
	if tail == "" {
		return nil
	}

	return f.send(FeedEvent{Name: outputEvent, Data: outputMessage{Attempt: f.attempt, Lines: recordedLines(tail, at), Ended: true, Last: true, Lost: at - stored}})
}

// recordedLines returns the lines of the end of the output that the record of a run contains, which begins at a byte.
func recordedLines(tail string, at int64) (lines []outputLine) {
	for text := range strings.Lines(tail) {
		next := at + int64(len(text))
		lines = append(lines, outputLine{At: at, Next: next, Text: shownText([]byte(strings.TrimSuffix(text, "\n")))})
		at = next
	}

	return lines
}

// isUnkeptResponse reports whether the output of a run is missing because it was the response to a part that succeeded.
func isUnkeptResponse(r task.Run) bool {
	return task.IsPart(r.ID) && r.State == task.Succeeded && r.ExitCode == nil && r.OutputBytes > 0
}

// sleep waits. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// openOutput returns the whole output of an attempt.
func openOutput(ctx context.Context, r *Request) (io.ReadCloser, string, error) {
	attempt, err := chosenAttempt(r)
	if err != nil {
		return nil, "", err
	}
	run, err := r.API.Runs.Find(ctx, r.Value("ns"), r.Value("id"))
	if err != nil {
		return nil, "", err
	}
	stream, err := r.API.Logs.Open(ctx, run.Namespace, run.Task, run.ID, client.LogOptions{Attempt: attempt})
	if err != nil {
		return nil, "", err
	}

	return stream, run.Task + "-" + run.ID + ".log", nil
}

// colors are the sequences with which programs color their output.
var colors = regexp.MustCompile(`\x1b\[[0-9;:]*m`)

// shownText returns a line of output as a page shows it: without colors, and with visible symbols instead of characters
// that would move text or hide it.
func shownText(raw []byte) string {
	raw = bytes.TrimSuffix(raw, []byte("\r"))
	if bytes.IndexByte(raw, 0x1b) >= 0 {
		raw = colors.ReplaceAll(raw, nil)
	}

	return strings.Map(func(c rune) rune {
		switch {
		case c == '\t':
			return c
		case c < ' ':
			return 0x2400 + c // the symbol of the control character
		case c == 0x7f:
			return 0x2421
		case !unicode.IsGraphic(c):
			return unicode.ReplacementChar
		}
		return c
	}, string(raw))
}

// shownLines returns the lines of a text as a page shows them.
func shownLines(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, shownText([]byte(strings.TrimSuffix(line, "\n"))))
	}
	return lines
}
