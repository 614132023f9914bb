package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

// chosen is a setting's value, and what it is from.
type chosen struct{ value, origin string }

// choose is a setting's value: a flag beats the environment, and that the file. The
// flag --context stands for all that its context says.
func (s *settings) choose(flag, flagValue, variable, variableValue, fromContext string) chosen {
	inContext := chosen{fromContext, "context " + s.context}
	order := []chosen{{flagValue, flag}, {variableValue, variable}, inContext}
	if s.by == byFlag {
		order = []chosen{{flagValue, flag}, inContext, {variableValue, variable}}
	}
	for _, c := range order {
		if c.value != "" {
			return c
		}
	}
	return chosen{"", byDefault}
}

// hostSocket is where the node of this host answers to those who may open it.
const hostSocket = "/run/carillon/api.sock"

// serverOf is where calls go; "" is the default. If nothing names a server it is the
// socket of this host's node for who may open it: no other user can listen there.
func (a *app) serverOf(s *settings) chosen {
	c := s.choose("--server", a.server, "CARILLON_SERVER", a.Env("CARILLON_SERVER"), s.Server)
	if socket := first(a.socketOfHost, hostSocket); c.value == "" && canOpenSocket(socket) {
		c.value = "unix://" + socket
	}
	return c
}

// insecureOf reports whether the token may go out in clear text. A context says so of
// its own server only.
func (a *app) insecureOf(s *settings) chosen {
	switch {
	case a.insecure:
		return chosen{"true", "--insecure"}
	case s.Insecure && a.home(s):
		return chosen{"true", "context " + s.context}
	}
	return chosen{"false", byDefault}
}

// namespaceOf is where names without one are looked up.
func (a *app) namespaceOf(s *settings) chosen {
	c := s.choose("--namespace", a.ns, "CARILLON_NAMESPACE", a.Env("CARILLON_NAMESPACE"), s.Namespace)
	c.value = first(c.value, task.Defaults().Namespace)
	return c
}

// home reports whether calls go to the context's own server. Nothing by which it
// lets its user in is shown to another.
func (a *app) home(s *settings) bool {
	if s.context == "" {
		return false
	}
	there, err := client.New(client.Config{Server: a.serverOf(s).value})
	own, ownErr := client.New(client.Config{Server: s.Server})
	return err == nil && ownErr == nil && there.Server() == own.Server()
}

// fileOf is a file of TLS.
func (a *app) fileOf(s *settings, flag, flagValue, fromContext string) chosen {
	if !a.home(s) {
		fromContext = ""
	}
	variable := "CARILLON_" + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_"))
	return s.choose(flag, flagValue, variable, a.Env(variable), s.beside(a, fromContext))
}

// tokenOf finds the token. What is chosen is a token, or a file that has one. No
// token at all is no error, a server may want none.
func (a *app) tokenOf(s *settings) (token, file chosen) {
	own, ownFile := chosen{}, chosen{}
	if a.home(s) {
		own, ownFile = chosen{s.Token, "context " + s.context}, chosen{s.beside(a, s.TokenFile), "context " + s.context}
	}
	has := own.value != "" || ownFile.value != ""
	switch env, envFile := strings.TrimSpace(a.Env("CARILLON_TOKEN")), a.Env("CARILLON_TOKEN_FILE"); {
	case a.tokenFile != "":
		return chosen{}, chosen{a.tokenFile, "--token-file"}
	case has && s.by == byFlag:
		return own, ownFile
	case env != "":
		return chosen{env, "CARILLON_TOKEN"}, chosen{}
	case envFile != "":
		return chosen{}, chosen{envFile, "CARILLON_TOKEN_FILE"}
	case has, a.home(s): // a context without a token has none
		return own, ownFile
	}
	usual := a.userTokenFile()
	if _, err := os.Stat(usual); usual == "" || os.IsNotExist(err) {
		return chosen{}, chosen{a.hostToken(a.serverOf(s).value), byDefault}
	}
	return chosen{}, chosen{usual, byDefault}
}

// hostTokenFile is where the node of this host keeps the token, if it made the cluster
// and its data is at the usual place.
const hostTokenFile = "/var/lib/carillon/token"

// hostToken is that file, for who may read it, which is root, and towards a port of this
// host only; "" for all others. A unix socket needs none: the node knows root there by its
// user, and a token that is not sent cannot be taken.
func (a *app) hostToken(server string) string {
	c, err := client.New(client.Config{Server: server})
	if err != nil || !c.OnThisHost() || strings.HasPrefix(c.Server(), "unix://") {
		return ""
	}
	file := first(a.tokenOfHost, hostTokenFile)
	f, err := os.Open(file)
	if err != nil {
		return "" // there is none, or not for this user: the server says what it wants
	}
	f.Close()
	return file
}

// token is the token that calls carry; "" is none.
func (a *app) token() (string, error) {
	s, err := a.settings()
	if err != nil {
		return "", err
	}
	token, _, err := a.readTokenOf(s)
	return token, err
}

// readTokenOf is the token that calls carry, and the users who have it without being
// told: the owner of its file.
func (a *app) readTokenOf(s *settings) (token string, owners []int, err error) {
	chosen, file := a.tokenOf(s)
	if file.value == "" {
		return chosen.value, nil, nil
	}
	if uid, ok := ownerOf(file.value); ok {
		owners = append(owners, uid)
	}
	token, err = a.readToken(file.value)
	return token, owners, err
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
	s, err := a.settings()
	if err != nil {
		return cfg, err
	}
	cfg = client.Config{Server: a.serverOf(s).value, Timeout: limit, ReadOnly: s.ReadOnly, Insecure: a.insecureOf(s).value == "true"}
	if cfg.Token, cfg.TrustedUsers, err = a.readTokenOf(s); err != nil {
		return cfg, err
	}

	ca := a.fileOf(s, "--ca-file", a.caFile, s.CAFile)
	cert, key := a.fileOf(s, "--cert-file", a.certFile, s.CertFile), a.fileOf(s, "--key-file", a.keyFile, s.KeyFile)
	if cfg.TLS, err = secured(ca.value, cert.value, key.value); err != nil {
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
	fmt.Fprintln(a.Err, a.paintErr(dim, a.plain(printable(words))))
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
		return nil, task.Invalid(task.CodeBadValue, file.Part+"_file", "%s: %s", file.Path, reason(file.Err))
	}
	return cfg, err
}
