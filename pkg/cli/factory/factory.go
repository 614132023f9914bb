package factory

import (
	"io"
	"os"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
)

// IO is what a command talks to.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
	// Env looks an environment variable up; nil is os.Getenv.
	Env func(string) string
	// Version is this program's; "" is what the build recorded.
	Version string
	// CompleteWithin is how long TAB waits for an answer; 0 is 300 ms, as long as a
	// person takes it for a key that works.
	CompleteWithin time.Duration
	// CompleteFor is how long TAB offers what it has found, without asking again; 0
	// is 5 s, as long as a person goes on with one line.
	CompleteFor time.Duration
}

// Factory is one command line while it runs.
type Factory struct {
	output.Printer
	settings.Resolver

	In             io.Reader
	Env            func(string) string
	Version        string
	CompleteWithin time.Duration
	CompleteFor    time.Duration

	Words    []string
	Parsed   bool   // the words and flags are those of a command
	LastHint string // the hint that was told last

	AllNamespaces bool
	Yes           bool
	NoInput       bool
	Timeout       time.Duration
	Verbose       bool

	LookupTimeout time.Duration // bounds what is asked only to make a message better
	NodeTimeout   time.Duration // how long a node may take to do what it was asked for
}

// New makes the factory of one command line.
func New(sys IO) *Factory {
	if sys.Env == nil {
		sys.Env = os.Getenv
	}

	return &Factory{
		Printer:  output.Printer{Out: sys.Out, Err: sys.Err, Env: sys.Env, Now: time.Now, Terminal: output.TerminalWidth},
		Resolver: settings.Resolver{Env: sys.Env},

		LookupTimeout: 2 * time.Second, NodeTimeout: 3 * time.Second,

		In: sys.In, Env: sys.Env, Version: sys.Version,
		CompleteWithin: sys.CompleteWithin, CompleteFor: sys.CompleteFor,
	}
}

// Namespace is where names without one are looked up.
func (f *Factory) Namespace() string {
	s, err := f.Settings()
	if err != nil { // it is told elsewhere
		s = &settings.Settings{}
	}
	return f.NamespaceSetting(s).Value
}

// Scope is the namespace that lists are of; "" is all.
func (f *Factory) Scope() string {
	if f.AllNamespaces {
		return ""
	}
	return f.Namespace()
}

// inContext names the context in a question, so that nobody says yes in the wrong one.
func (f *Factory) inContext(question string) string {
	s, err := f.Settings()
	if err != nil || s.Name == "" {
		return question
	}
	return strings.TrimSuffix(question, "?") + " in context " + s.Name + "?"
}
