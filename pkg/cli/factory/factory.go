package factory

import (
	"io"
	"os"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
)

// IO contains the streams and the environment of a command.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
	// Env returns the value of an environment variable; nil means os.Getenv.
	Env func(string) string
	// Version is the version of this program; "" means the version that the build recorded.
	Version string
	// CompleteWithin limits how long shell completion waits for the server; 0 means 300 ms, which a user does
	// not notice as a delay.
	CompleteWithin time.Duration
	// CompleteFor is how long shell completion reuses an answer of the server; 0 means 5 s, which is about as
	// long as a user edits one command line.
	CompleteFor time.Duration
}

// Factory holds the state of one invocation of the program. It is not safe for concurrent use, except where a
// method states otherwise.
type Factory struct {
	output.Printer
	settings.Resolver

	In             io.Reader
	Env            func(string) string
	Version        string
	CompleteWithin time.Duration
	CompleteFor    time.Duration

	Words    []string // the words of the command line
	Parsed   bool     // the words and flags were parsed successfully
	LastHint string   // the hint that was printed last

	AllNamespaces bool
	Yes           bool
	NoInput       bool
	Timeout       time.Duration
	Verbose       bool

	LookupTimeout time.Duration // limits calls that only improve an error message
	RescanEvery   time.Duration // how often the owners of the shards are asked again for a list that is watched
	NodeTimeout   time.Duration // how long a node may take to do what was requested
}

// New returns the factory of one invocation.
func New(sys IO) *Factory {
	if sys.Env == nil {
		sys.Env = os.Getenv
	}

	return &Factory{
		Printer:  output.Printer{Out: sys.Out, Err: sys.Err, Env: sys.Env, Now: time.Now, Terminal: output.TerminalWidth},
		Resolver: settings.Resolver{Env: sys.Env},

		LookupTimeout: 2 * time.Second, RescanEvery: 5 * time.Second, NodeTimeout: 3 * time.Second,

		In: sys.In, Env: sys.Env, Version: sys.Version,
		CompleteWithin: sys.CompleteWithin, CompleteFor: sys.CompleteFor,
	}
}

// Namespace returns the namespace of names that do not contain one.
func (f *Factory) Namespace() string {
	s, err := f.Settings()
	if err != nil { // CheckFlags reports this error
		s = &settings.Settings{}
	}
	return f.NamespaceSetting(s).Value
}

// Scope returns the namespace of lists; "" means all namespaces.
func (f *Factory) Scope() string {
	if f.AllNamespaces {
		return ""
	}
	return f.Namespace()
}

// inContext adds the name of the context to a question, so that the user does not confirm a change in the wrong
// cluster.
func (f *Factory) inContext(question string) string {
	s, err := f.Settings()
	if err != nil || s.Name == "" {
		return question
	}
	return strings.TrimSuffix(question, "?") + " in context " + s.Name + "?"
}
