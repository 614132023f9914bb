package factory

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

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

// Connect returns a client for the configured server, with the timeout of --timeout. It does not connect.
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
