package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Terminal is the display and the keyboard of a Program.
type Terminal interface {
	// Draw shows a picture.
	Draw(p Picture)
	// Messages returns keys and sizes. The channel is closed with the terminal.
	Messages() <-chan Message
}

// Program connects a Model to a terminal and a server.
type Program struct {
	// Client is the client of the first server.
	Client *client.Client
	Model  *Model
	// Dial returns a client of another server, whose address comes from a board. If nil, only the first server
	// is used.
	Dial func(server string) (*client.Client, error)
	// Options select the contents of boards. Every is the interval between boards; 0 means 1 s.
	Options client.BoardOptions
	Every   time.Duration
	Now     func() time.Time

	mu    sync.Mutex
	c     *client.Client // the client of the current server
	known []string       // the addresses of nodes, from the latest board

	messages chan Message
	refresh  wake.Signal
	stopLogs context.CancelFunc
	work     sync.WaitGroup
}

// answerTimeout limits how long a board or another answer may take.
const answerTimeout = 5 * time.Second

// Run shows the screen until the user quits, which returns nil, or ctx ends.
func (p *Program) Run(ctx context.Context, t Terminal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer p.work.Wait()
	defer cancel()

	if p.Every <= 0 {
		p.Every = time.Second
	}

	p.c, p.messages, p.refresh, p.stopLogs = p.Client, make(chan Message, 16), wake.NewSignal(), func() {}
	p.Model.server = p.Client.Server()
	// Only this goroutine uses the model. Others send it messages.
	p.Model.Update(Clock(p.Now()))
	p.work.Go(func() { p.pollBoard(ctx) })
	clock := time.NewTicker(time.Second)
	defer clock.Stop()

	for {
		t.Draw(p.Model.View())
		var m Message
		var open bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m, open = <-t.Messages():
			if !open {
				return errors.New("the terminal was closed")
			}
		case m = <-p.messages:
		case <-clock.C:
			m = Clock(p.Now())
		}

		for _, c := range p.Model.Update(m) {
			if _, quit := c.(Quit); quit {
				return nil
			}
			p.runCommand(ctx, c)
		}
	}
}

// sendMessage delivers a message to the Model, unless ctx ends first.
func (p *Program) sendMessage(ctx context.Context, m Message) {
	select {
	case p.messages <- m:
	case <-ctx.Done():
	}
}

// pollBoard requests the board repeatedly.
func (p *Program) pollBoard(ctx context.Context) {
	for {
		began := time.Now()
		p.sendMessage(ctx, p.readBoard(ctx))

		pause := time.NewTimer(max(p.Every-time.Since(began), p.Every/2))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-p.refresh:
			pause.Stop()
		case <-pause.C:
		}
	}
}

// readBoard requests the board once. If the server is unavailable, the next call uses another server.
func (p *Program) readBoard(ctx context.Context) BoardUpdate {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	c := p.currentClient()

	b, err := c.Board.Get(ctx, p.Options)
	if err != nil {
		if errors.Is(err, task.ErrUnavailable) {
			p.turnFrom(c)
		}
		return BoardUpdate{Err: err, Server: c.Server()}
	}

	var known []string
	for _, n := range b.Nodes {
		if n.Address != "" {
			known = append(known, n.Address)
		}
	}

	p.mu.Lock()
	p.known = known
	p.mu.Unlock()

	return BoardUpdate{Board: b, Server: c.Server()}
}

// currentClient returns the client of the current server.
func (p *Program) currentClient() *client.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.c
}

// turnFrom switches to the next known server, and after the last one to the first server again.
func (p *Program) turnFrom(from *client.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.Dial == nil || p.c != from {
		return
	}

	at := slices.Index(p.known, from.Server())
	if at+1 >= len(p.known) {
		if p.c != p.Client {
			p.c = p.Client
			return
		}
		at = -1
	}

	if at+1 < len(p.known) {
		if next, err := p.Dial(p.known[at+1]); err == nil {
			p.c = next
		}
	}
}

// runCommand executes a command in the background.
func (p *Program) runCommand(ctx context.Context, command Command) {
	c := p.currentClient()
	ask := func(how func(ctx context.Context) Message) {
		p.work.Go(func() {
			limited, cancel := context.WithTimeout(ctx, answerTimeout)
			defer cancel()
			p.sendMessage(ctx, how(limited))
		})
	}

	switch command := command.(type) {
	case Refresh:
		p.refresh.Send()
	case ReadTask:
		ask(func(ctx context.Context) Message { return readTask(ctx, c, command.About) })

	case AskWhy:
		ask(func(ctx context.Context) Message {
			a, err := askWhy(ctx, c, command.About)
			return RunExplanation{command.About, a, err}
		})

	case ReadAlerts:
		ask(func(ctx context.Context) Message {
			list, err := c.Alerts.List(ctx, client.AlertListOptions{})
			return AlertList{list, err}
		})

	case FollowLogs:
		p.stopLogs()
		var logs context.Context
		logs, p.stopLogs = context.WithCancel(ctx)
		p.work.Go(func() { p.followRun(logs, command.About) })

	case StopLogs:
		p.stopLogs()
	case Trigger:
		ask(func(ctx context.Context) Message {
			r, err := c.Tasks.Trigger(ctx, command.Of.Namespace, command.Of.Task, nil)
			return doneMessage("triggered "+command.Of.Task+" · run "+r.ID, "could not trigger "+command.Of.Task, err)
		})

	case Pause:
		ask(func(ctx context.Context) Message {
			_, err := c.Tasks.Pause(ctx, command.Of.Namespace, command.Of.Task, 0)
			return doneMessage("paused "+command.Of.Task, "could not pause "+command.Of.Task, err)
		})

	case Acknowledge:
		ask(func(ctx context.Context) Message { return acknowledge(ctx, c, command.Of) })

	case Resume:
		ask(func(ctx context.Context) Message {
			_, err := c.Tasks.Resume(ctx, command.Of.Namespace, command.Of.Task, 0)
			return doneMessage("resumed "+command.Of.Task, "could not resume "+command.Of.Task, err)
		})
	}
}

// acknowledge acknowledges the open alerts of a task.
func acknowledge(ctx context.Context, c *client.Client, about Target) ActionResult {
	all, err := c.Alerts.ListByTask(ctx, about.Namespace, about.Task)
	done := 0
	for _, a := range all.Items {
		if err == nil && a.IsOpen() {
			_, err = c.Alerts.Acknowledge(ctx, a.Namespace, a.Task, a.Kind)
			done++
		}
	}

	if err == nil && done == 0 {
		return ActionResult{about.Task + " has no open alerts", nil}
	}

	return doneMessage(fmt.Sprintf("acknowledged %s of %s", formatCount(done, "alert"), about.Task), "could not acknowledge the alerts of "+about.Task, err)
}

// doneMessage returns the message about the result of a change.
func doneMessage(well, badly string, err error) ActionResult {
	if err != nil {
		return ActionResult{badly, err}
	}
	return ActionResult{well, nil}
}

// readTask reads the details of a task.
func readTask(ctx context.Context, c *client.Client, about Target) TaskDetails {
	told := TaskDetails{About: about}
	if told.Task, told.Err = c.Tasks.Get(ctx, about.Namespace, about.Task); told.Err != nil {
		return told
	}

	// The other details are optional, so their errors are ignored.
	told.Runs, _ = c.Runs.ListByTask(ctx, about.Namespace, about.Task, client.RunListOptions{Limit: 20})
	told.Next, _ = c.Ticks.ListByTask(ctx, about.Namespace, about.Task, 5, time.Time{})
	told.Why, _ = c.Tasks.Why(ctx, about.Namespace, about.Task, client.WhyQuestion{})

	return told
}

// askWhy requests the explanation of the tick of a row's run, or of the latest tick and the next one.
func askWhy(ctx context.Context, c *client.Client, about Target) (task.Answer, error) {
	q := client.WhyQuestion{}
	if at, ok := task.TimeOfRunID(about.Run); ok && strings.Count(about.Run, "-") == 1 {
		q.At = at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	}
	return c.Tasks.Why(ctx, about.Namespace, about.Task, q)
}

// logsEvery is how often more output of a run is requested.
const logsEvery = 700 * time.Millisecond

// followRun reads the output of a run until the run or ctx ends.
func (p *Program) followRun(ctx context.Context, about Target) {
	r := reader{about: about}

	for {
		w := r.readMore(ctx, p.currentClient())

		if ctx.Err() != nil {
			return
		}

		p.sendMessage(ctx, w)

		if r.behind && w.Err == nil {
			continue
		}
		if w.Err == nil && w.Run.State.Final() {
			return
		}

		if !clock.Sleep(ctx, logsEvery) {
			return
		}
	}
}

// reader reads the output of a run, attempt by attempt.
type reader struct {
	about   Target
	run     string
	attempt int
	seen    int64
	behind  bool // more output exists already
}

// maxAtOnce is the maximum number of bytes of output in one message.
const maxAtOnce = 1 << 20

// readMore reads new output. It reads the run's state first, so that everything that the run printed before it
// ended is read.
func (r *reader) readMore(ctx context.Context, c *client.Client) RunOutput {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	w := RunOutput{About: r.about}
	if w.Run, w.Err = r.findRun(ctx, c); w.Err != nil {
		return w
	}

	r.run = w.Run.ID
	// Another attempt has separate output, which is read from its beginning.
	if at := max(w.Run.Attempt, 1); at != r.attempt {
		if r.attempt > 0 {
			w.Text = fmt.Sprintf("--- attempt %d ---\n", at)
		}
		r.attempt, r.seen = at, 0
	}

	body, err := c.Logs.Open(ctx, w.Run.Namespace, w.Run.Task, w.Run.ID, client.LogOptions{Attempt: r.attempt, From: r.seen})
	var e *client.Error
	switch {
	case errors.As(err, &e) && e.Code == client.CodeNoLogs:
		// The output no longer exists, but the record of an ended run may contain its end.
		if w.Run.State.Final() {
			if w.Note = e.Message; r.seen == 0 && w.Run.OutputTail != "" {
				w.Text, w.Note = w.Run.OutputTail, "only the end of the output is stored"
			}
		} else {
			w.Note = "the run has not started"
		}

		return w
	case err != nil:
		w.Err = err
		return w
	}

	defer body.Close()

	b, err := io.ReadAll(io.LimitReader(body, maxAtOnce))
	r.seen += int64(len(b))
	r.behind = len(b) == maxAtOnce
	w.Text += string(b)
	w.Err = err

	return w
}

// findRun returns the run of the view, or the latest run of the task.
func (r *reader) findRun(ctx context.Context, c *client.Client) (task.Run, error) {
	id := r.run
	if id == "" {
		id = r.about.Run
	}

	if id != "" {
		return c.Runs.Get(ctx, r.about.Namespace, r.about.Task, id)
	}

	runs, err := c.Runs.ListByTask(ctx, r.about.Namespace, r.about.Task, client.RunListOptions{Limit: 20})
	if err != nil {
		return task.Run{}, err
	}

	for _, run := range runs {
		if run.State != task.Skipped && run.State != task.Missed {
			return run, nil
		}
	}

	return task.Run{}, fmt.Errorf("%s has not run yet", r.about.Task)
}
