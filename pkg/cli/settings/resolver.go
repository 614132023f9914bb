package settings

import (
	"cmp"
	"os"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Setting is a setting's value, and what it is from.
type Setting struct{ Value, Origin string }

// chooseValue is a setting's value: a flag beats the environment, and that the file. The
// flag --context stands for all that its context says.
func (s *Settings) chooseValue(flag, flagValue, variable, variableValue, fromContext string) Setting {
	inContext := Setting{fromContext, "context " + s.Name}
	order := []Setting{{flagValue, flag}, {variableValue, variable}, inContext}
	if s.ChosenBy == byFlag {
		order = []Setting{{flagValue, flag}, inContext, {variableValue, variable}}
	}

	for _, c := range order {
		if c.Value != "" {
			return c
		}
	}

	return Setting{"", ByDefault}
}

// HostSocket is where the node of this host answers to those who may open it.
const HostSocket = "/run/carillon/api.sock"

// ServerSetting is where calls go; "" is the default. If nothing names a server it is the
// socket of this host's node for who may open it: no other user can listen there.
func (r *Resolver) ServerSetting(s *Settings) Setting {
	c := s.chooseValue("--server", r.ServerFlag, "CARILLON_SERVER", r.Env("CARILLON_SERVER"), s.Server)
	if socket := cmp.Or(r.hostSocketPath, HostSocket); c.Value == "" && canOpenSocket(socket) {
		c.Value = "unix://" + socket
	}
	return c
}

// InsecureSetting reports whether the token may go out in clear text. A context says so of
// its own server only.
func (r *Resolver) InsecureSetting(s *Settings) Setting {
	switch {
	case r.InsecureFlag:
		return Setting{"true", "--insecure"}
	case s.Insecure && r.IsOwnServer(s):
		return Setting{"true", "context " + s.Name}
	}

	return Setting{"false", ByDefault}
}

// NamespaceSetting is where names without one are looked up.
func (r *Resolver) NamespaceSetting(s *Settings) Setting {
	c := s.chooseValue("--namespace", r.NamespaceFlag, "CARILLON_NAMESPACE", r.Env("CARILLON_NAMESPACE"), s.Namespace)
	c.Value = cmp.Or(c.Value, task.Defaults().Namespace)
	return c
}

// IsOwnServer reports whether calls go to the context's own server. Nothing by which it
// lets its user in is shown to another.
func (r *Resolver) IsOwnServer(s *Settings) bool {
	if s.Name == "" {
		return false
	}

	there, err := client.New(client.Config{Server: r.ServerSetting(s).Value})
	own, ownErr := client.New(client.Config{Server: s.Server})
	return err == nil && ownErr == nil && there.Server() == own.Server()
}

// FileSetting is a file of TLS.
func (r *Resolver) FileSetting(s *Settings, flag, flagValue, fromContext string) Setting {
	if !r.IsOwnServer(s) {
		fromContext = ""
	}
	variable := "CARILLON_" + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_"))
	return s.chooseValue(flag, flagValue, variable, r.Env(variable), s.resolvePath(r, fromContext))
}

// TokenSetting finds the token. What is chosen is a token, or a file that has one. No
// token at all is no error, a server may want none.
func (r *Resolver) TokenSetting(s *Settings) (token, file Setting) {
	own, ownFile := Setting{}, Setting{}
	if r.IsOwnServer(s) {
		own, ownFile = Setting{s.Token, "context " + s.Name}, Setting{s.resolvePath(r, s.TokenFile), "context " + s.Name}
	}

	has := own.Value != "" || ownFile.Value != ""
	switch env, envFile := strings.TrimSpace(r.Env("CARILLON_TOKEN")), r.Env("CARILLON_TOKEN_FILE"); {
	case r.TokenFileFlag != "":
		return Setting{}, Setting{r.TokenFileFlag, "--token-file"}
	case has && s.ChosenBy == byFlag:
		return own, ownFile
	case env != "":
		return Setting{env, "CARILLON_TOKEN"}, Setting{}
	case envFile != "":
		return Setting{}, Setting{envFile, "CARILLON_TOKEN_FILE"}
	case has, r.IsOwnServer(s): // a context without a token has none
		return own, ownFile
	}

	usual := r.UserTokenFile()
	if _, err := os.Stat(usual); usual == "" || os.IsNotExist(err) {
		return Setting{}, Setting{r.hostToken(r.ServerSetting(s).Value), ByDefault}
	}

	return Setting{}, Setting{usual, ByDefault}
}

// hostTokenFile is where the node of this host keeps the token, if it made the cluster
// and its data is at the usual place.
const hostTokenFile = "/var/lib/carillon/token"

// hostToken is that file, for who may read it, which is root, and towards a port of this
// host only; "" for all others. A unix socket needs none: the node knows root there by its
// user, and a token that is not sent cannot be taken.
func (r *Resolver) hostToken(server string) string {
	c, err := client.New(client.Config{Server: server})
	if err != nil || !c.OnThisHost() || strings.HasPrefix(c.Server(), "unix://") {
		return ""
	}

	file := cmp.Or(r.hostTokenFile, hostTokenFile)
	f, err := os.Open(file)
	if err != nil {
		return "" // there is none, or not for this user: the server says what it wants
	}

	f.Close()

	return file
}
