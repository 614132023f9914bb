package cli

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

// token is the token that calls carry; "" is none.
func (a *app) token() (string, error) {
	s, err := a.Settings()
	if err != nil {
		return "", err
	}
	c, err := a.readCredential(s)
	return c.Token, err
}

// readCredential is readTokenOf, and tells the warning.
func (a *app) readCredential(s *settings.Settings) (settings.Credential, error) {
	c, err := a.ReadCredential(s)
	if c.Warning != "" {
		a.Note("%s", c.Warning)
	}
	return c, err
}

func (a *app) connect() (*client.Client, error) {
	return a.connectFor(a.timeout)
}

// connectFor makes a client whose calls take no longer than limit. It does not
// connect.
func (a *app) connectFor(limit time.Duration) (*client.Client, error) {
	cfg, err := a.clientConfig(limit)
	if err != nil {
		return nil, err
	}
	return client.New(cfg)
}

// clientConfig is how the server is reached.
func (a *app) clientConfig(limit time.Duration) (cfg client.Config, err error) {
	s, err := a.Settings()
	if err != nil {
		return cfg, err
	}
	cfg = client.Config{Server: a.ServerSetting(s).Value, Timeout: limit, ReadOnly: s.ReadOnly, Insecure: a.InsecureSetting(s).Value == "true"}

	held, err := a.readCredential(s)
	if err != nil {
		return cfg, err
	}
	cfg.Token, cfg.TrustedUsers = held.Token, held.Owners

	ca := a.FileSetting(s, "--ca-file", a.CAFileFlag, s.CAFile)
	cert, key := a.FileSetting(s, "--cert-file", a.CertFileFlag, s.CertFile), a.FileSetting(s, "--key-file", a.KeyFileFlag, s.KeyFile)
	if cfg.TLS, err = secured(ca.Value, cert.Value, key.Value); err != nil {
		return cfg, err
	}
	if a.verbose {
		cfg.Trace = a.traced
	}
	return cfg, nil
}

// traced tells of a call, for -v.
func (a *app) traced(k client.Sent) {
	words := fmt.Sprintf("%s %s · %d · %s", k.Method, k.Path, k.Status, k.Took.Round(time.Millisecond/10))
	if k.Err != nil {
		words = fmt.Sprintf("%s %s · no answer · %s: %v", k.Method, k.Path, k.Took.Round(time.Millisecond/10), k.Err)
	}
	fmt.Fprintln(a.Err, a.PaintErr(output.Dim, a.Plain(output.Sanitize(words))))
}

// secured is TLS with files of one's own; nil if there are none.
func secured(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	for _, half := range []struct{ field, path, other string }{{"cert_file", cert, key}, {"key_file", key, cert}} {
		if half.path == "" && half.other != "" {
			return nil, task.Invalid(task.CodeRequired, half.field, "is required: a certificate and its key need each other")
		}
	}
	cfg, err := certs.Client(ca, cert, key)
	var file *certs.FileError
	if errors.As(err, &file) {
		return nil, task.Invalid(task.CodeBadValue, file.Part+"_file", "%s: %s", file.Path, failure.FileReason(file.Err))
	}
	return cfg, err
}
