package top

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// server is an API with one task, which may be away.
type server struct {
	API
	url string

	mu     sync.Mutex
	away   bool
	asked  int
	output string
	state  task.State
	did    []string
}

func (s *server) Server() string { return s.url }

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// boards is how often the board was asked for.
func (s *server) boards() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *server) Board(context.Context, client.BoardOptions) (task.Board, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked++; s.away {
		return task.Board{}, &client.Error{Code: client.CodeUnavailable, Message: s.url + " is away"}
	}
	b := busy()
	b.Node = s.url
	b.Nodes[1].Address = "http://b"
	b.Nodes = b.Nodes[:2]
	b.Nodes[0].Address = "http://a"
	return b, nil
}

func (s *server) Run(_ context.Context, namespace, name, id string) (task.Run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return task.Run{Namespace: namespace, Task: name, ID: id, State: s.state, Attempt: 1, Node: "n1"}, nil
}

func (s *server) LogsWith(_ context.Context, _, _, _ string, o client.LogOptions) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return io.NopCloser(strings.NewReader(s.output[o.From:])), nil
}

func (s *server) Trigger(_ context.Context, namespace, name string, _ map[string]string) (client.Triggered, error) {
	s.set(func() { s.did = append(s.did, "trigger "+namespace+"/"+name) })
	return client.Triggered{}, nil
}

// paper is a terminal in a test.
type paper struct {
	keys chan Message
	mu   sync.Mutex
	last string
}

func (p *paper) Draw(pic Picture) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = pic.Text()
}

func (p *paper) Messages() <-chan Message { return p.keys }

// reads waits until all is quiet, and looks for words on the screen.
func (p *paper) reads(t *testing.T, words string, there bool) {
	t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if strings.Contains(p.last, words) != there {
		t.Errorf("%q is there: %t, want %t\n%s", words, !there, there, p.last)
	}
}

func TestProgram_IsAScreenThatIsKeptUpToDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &server{url: "http://a", state: task.Running, output: "one\n"}, &server{url: "http://b"}
		tty := &paper{keys: make(chan Message)}
		p := Program{API: a, Model: New(Config{Namespace: "default"}), Now: time.Now, Dial: func(url string) (API, error) {
			if url != "http://b" {
				return nil, errors.New("unknown")
			}
			return b, nil
		}}
		end := make(chan error)
		go func() { end <- p.Run(t.Context(), tty) }()
		tty.reads(t, "100,012 tasks", true)
		before := a.boards()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := a.boards() - before; n < 9 || n > 11 {
			t.Errorf("in 10 s the board was asked for %d times", n)
		}

		// Logs grow while they are looked at.
		for _, k := range []string{"3", "l"} {
			tty.keys <- Key(k)
		}
		tty.reads(t, " one\n", true)
		a.set(func() { a.output += "two\n" })
		time.Sleep(time.Second)
		tty.reads(t, " two\n", true)
		a.set(func() { a.output, a.state = a.output+"the end\n", task.Succeeded })
		time.Sleep(time.Second)
		tty.reads(t, " the end\n", true)
		tty.reads(t, "succeeded", true)

		// A change, after a yes.
		for _, k := range []string{"esc", "t", "y"} {
			tty.keys <- Key(k)
		}
		tty.reads(t, "triggered import-0", true)
		a.mu.Lock()
		if len(a.did) != 1 || a.did[0] != "trigger default/import-0" {
			t.Errorf("it did %q", a.did)
		}
		a.mu.Unlock()

		// The server goes away: another is asked, and the picture stays.
		a.set(func() { a.away = true })
		b.set(func() { b.away = true })
		time.Sleep(10 * time.Second)
		tty.reads(t, "is away", true)
		tty.reads(t, "100,012 tasks", true)
		b.set(func() { b.away = false })
		time.Sleep(10 * time.Second)
		tty.reads(t, "is away", false)
		n := a.boards()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if a.boards() != n {
			t.Error("it turns back to the server that is away")
		}
		tty.keys <- Key("q")
		if err := <-end; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestProgram_EndsWithItsContextAndItsTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tty := &paper{keys: make(chan Message)}
		run := func() error {
			p := Program{API: &server{url: "http://a"}, Model: New(Config{}), Now: time.Now}
			return p.Run(ctx, tty)
		}
		time.AfterFunc(3*time.Second, cancel)
		if err := run(); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		ctx = t.Context()
		time.AfterFunc(3*time.Second, func() { close(tty.keys) })
		if err := run(); err == nil {
			t.Error("without a terminal it ended well")
		}
	})
}
