// Package factory contains what all commands share. A Factory holds the global flags and the streams of one
// invocation. It creates the client, determines the namespace, asks for confirmations, and reports errors.
//
// A Factory embeds an output.Printer and a settings.Resolver, so a command needs only one parameter. It does
// not depend on any resource; package selection resolves the names of tasks and runs. It connects only when a
// command requests it, asks only on a terminal, and never exits the process.
package factory

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/version"
	"github.com/carillonhq/carillon/pkg/task"
)

// IO contains the streams and the environment of a command.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
	// Env returns the value of an environment variable; nil means os.Getenv.
	Env func(string) string
	// Version is the version of this program; "" means that of the build.
	Version string
	// CompleteTimeout limits how long shell completion waits for the server; 0 means 300 ms, which a user does
	// not notice as a delay.
	CompleteTimeout time.Duration
	// CompleteFor is how long shell completion reuses an answer of the server; 0 means 5 s, which is about as
	// long as a user edits one command line.
	CompleteFor time.Duration
	// RestoreHost returns what the settings of the agent of this host say, from its file. Only the program that contains an agent sets it.
	RestoreHost RestoreHost
}

// Factory holds the state of one invocation of the program. It is not safe for concurrent use, except where a
// method states otherwise.
type Factory struct {
	output.Printer
	settings.Resolver

	In              io.Reader
	Env             func(string) string
	Version         string
	CompleteTimeout time.Duration
	CompleteFor     time.Duration
	RestoreHost     RestoreHost // may be nil

	Words    []string // the words of the command line
	Parsed   bool     // the words and flags were parsed successfully
	LastHint string   // the hint that was printed last

	allowHints *allowHints // held back until the end

	AllNamespaces bool
	Yes           bool
	NoInput       bool
	Timeout       time.Duration
	Verbose       bool

	LookupTimeout time.Duration // limits calls that only improve an error message
	RescanEvery   time.Duration // how often the owners of the shards are asked again for a list that is watched
	NodeTimeout   time.Duration // how long a node may take to do what was requested

	UnitDirs []string // the directories of systemd's units
}

// New returns the factory of one invocation.
func New(sys IO) *Factory {
	if sys.Env == nil {
		sys.Env = os.Getenv
	}

	return &Factory{
		Printer:  output.Printer{Out: sys.Out, Err: sys.Err, Env: sys.Env, Now: time.Now, Terminal: output.TerminalWidth, Local: output.LocalZone(sys.Env)},
		Resolver: settings.Resolver{Env: sys.Env},

		LookupTimeout: 2 * time.Second, RescanEvery: 5 * time.Second, NodeTimeout: 3 * time.Second,

		UnitDirs: []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"},

		allowHints: &allowHints{},

		In: sys.In, Env: sys.Env, Version: cmp.Or(sys.Version, version.Get()),
		CompleteTimeout: sys.CompleteTimeout, CompleteFor: sys.CompleteFor, RestoreHost: sys.RestoreHost,
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

// Token returns the token that calls use, or "" if there is none.
func (f *Factory) Token() (string, error) {
	s, err := f.Settings()
	if err != nil {
		return "", err
	}

	c, err := f.readCredential(s)
	return c.Token, err
}

// readCredential reads the credential and prints its warning.
func (f *Factory) readCredential(s *settings.Settings) (settings.Credential, error) {
	c, err := f.ReadCredential(s)
	if c.Warning != "" {
		f.Note("%s", c.Warning)
	}
	return c, err
}

// Connect returns a client for the configured server, with the timeout of --request-timeout. It does not connect.
func (f *Factory) Connect() (*client.Client, error) {
	return f.ConnectFor(f.Timeout)
}

// ConnectFor is like Connect, with another timeout.
func (f *Factory) ConnectFor(limit time.Duration) (*client.Client, error) {
	cfg, err := f.ClientConfig(limit)
	if err != nil {
		return nil, err
	}
	return client.New(cfg)
}

// ClientConfig returns the configuration of a client for the configured server.
func (f *Factory) ClientConfig(limit time.Duration) (cfg client.Config, err error) {
	s, err := f.Settings()
	if err != nil {
		return cfg, err
	}

	held, err := f.readCredential(s)
	if err != nil {
		return cfg, err
	}

	return f.ClientConfigWith(limit, held)
}

// ClientConfigWith is like ClientConfig, with a credential that is not that of the configuration.
func (f *Factory) ClientConfigWith(limit time.Duration, held settings.Credential) (cfg client.Config, err error) {
	s, err := f.Settings()
	if err != nil {
		return cfg, err
	}

	cfg = client.Config{Server: f.ServerSetting(s).Value, Timeout: limit, ReadOnly: s.ReadOnly, Insecure: f.InsecureSetting(s).Value == "true"}
	cfg.Token, cfg.TrustedUsers = held.Token, held.Owners

	ca := f.FileSetting(s, "--ca-file", f.CAFileFlag, s.CAFile)
	cert, key := f.FileSetting(s, "--cert-file", f.CertFileFlag, s.CertFile), f.FileSetting(s, "--key-file", f.KeyFileFlag, s.KeyFile)
	if cfg.TLS, err = tlsConfig(ca.Value, cert.Value, key.Value); err != nil {
		return cfg, err
	}

	if f.Verbose {
		cfg.Trace = f.printCall
	}

	return cfg, nil
}

// printCall prints a call for --verbose.
func (f *Factory) printCall(k client.Sent) {
	words := fmt.Sprintf("%s %s · %d · %s", k.Method, k.Path, k.Status, k.Took.Round(time.Millisecond/10))
	if k.Err != nil {
		words = fmt.Sprintf("%s %s · no response · %s: %v", k.Method, k.Path, k.Took.Round(time.Millisecond/10), k.Err)
	}
	fmt.Fprintln(f.Err, f.PaintErr(output.Dim, f.Plain(output.Sanitize(words))))
}

// tlsConfig returns a TLS configuration with the user's files, or nil if there are none.
func tlsConfig(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}

	for _, half := range []struct{ field, path, other string }{{"cert_file", cert, key}, {"key_file", key, cert}} {
		if half.path == "" && half.other != "" {
			return nil, task.Invalid(task.CodeRequired, half.field, "is required: set both the certificate and its key")
		}
	}

	cfg, err := certs.Client(ca, cert, key)
	var file *certs.FileError
	if errors.As(err, &file) {
		return nil, task.Invalid(task.CodeBadValue, file.Part+"_file", "%s: %s", file.Path, failure.FileReason(file.Err))
	}

	return cfg, err
}
