package settings

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Setting is the value of a setting, with its origin for messages.
type Setting struct{ Value, Origin string }

// chooseValue returns the value of a setting. A flag takes precedence over the environment, and the environment
// over the context. If the context was chosen with --context, its values take precedence over the environment,
// because the user has named it explicitly.
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

// HostSocket is the unix socket of this host's node.
const HostSocket = "/run/carillon/api.sock"

// Socket returns the path of the unix socket of this host's node.
func (r *Resolver) Socket() string { return cmp.Or(r.HostSocketPath, HostSocket) }

// ServerSetting returns the server of calls; "" means the default. If no server is configured, it is the socket
// of this host's node, provided that this user may open it. No other user can listen on that socket.
func (r *Resolver) ServerSetting(s *Settings) Setting {
	c := s.chooseValue("--server", r.ServerFlag, "CARILLON_SERVER", r.Env("CARILLON_SERVER"), s.Server)
	if socket := r.Socket(); c.Value == "" && canOpenSocket(socket) {
		c.Value = "unix://" + socket
	}
	return c
}

// InsecureSetting reports whether the token may be sent in clear text. The setting of a context applies only to
// its own server.
func (r *Resolver) InsecureSetting(s *Settings) Setting {
	switch {
	case r.InsecureFlag:
		return Setting{"true", "--insecure"}
	case s.Insecure && r.IsOwnServer(s):
		return Setting{"true", "context " + s.Name}
	}

	return Setting{"false", ByDefault}
}

// NamespaceSetting returns the namespace of names that do not contain one.
func (r *Resolver) NamespaceSetting(s *Settings) Setting {
	c := s.chooseValue("--namespace", r.NamespaceFlag, "CARILLON_NAMESPACE", r.Env("CARILLON_NAMESPACE"), s.Namespace)
	c.Value = cmp.Or(c.Value, task.Defaults().Namespace)
	return c
}

// IsOwnServer reports whether calls go to the context's own servers. Its credentials must not be sent to any
// other.
func (r *Resolver) IsOwnServer(s *Settings) bool {
	if s.Name == "" {
		return false
	}

	there, err := client.New(client.Config{Server: r.ServerSetting(s).Value})
	own, ownErr := client.New(client.Config{Server: s.Server})
	isForeign := func(server string) bool { return !slices.Contains(own.Servers(), server) }

	return err == nil && ownErr == nil && !slices.ContainsFunc(there.Servers(), isForeign)
}

// FileSetting returns the path of a TLS file.
func (r *Resolver) FileSetting(s *Settings, flag, flagValue, fromContext string) Setting {
	if !r.IsOwnServer(s) {
		fromContext = ""
	}
	variable := "CARILLON_" + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_"))
	return s.chooseValue(flag, flagValue, variable, r.Env(variable), s.resolvePath(r, fromContext))
}

// TokenSetting determines the token. It returns either a token or a file that contains one. Neither is an
// error, because a server may not require a token.
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
	case has, r.IsOwnServer(s): // if calls go to a context's server and the context has no token, no other token is used
		return own, ownFile
	}

	usual := r.UserTokenFile()
	if _, err := os.Stat(usual); usual == "" || os.IsNotExist(err) {
		return Setting{}, Setting{r.hostToken(r.ServerSetting(s).Value), ByDefault}
	}

	return Setting{}, Setting{usual, ByDefault}
}

// hostTokenFile is where the node of this host stores the first token, if it created the cluster and uses the
// default data directory.
const hostTokenFile = "/var/lib/carillon/token"

// hostToken returns that file for a user who can read it, which is root, and only if the server is a port of
// this host. A unix socket needs no token, because the node identifies root by its uid, and a token that is not
// sent cannot be stolen.
func (r *Resolver) hostToken(server string) string {
	c, err := client.New(client.Config{Server: server})
	if err != nil || !c.OnThisHost() || strings.HasPrefix(c.Server(), "unix://") {
		return ""
	}

	file := cmp.Or(r.hostTokenFile, hostTokenFile)
	f, err := os.Open(file)
	if err != nil {
		return "" // the file does not exist or is not readable; the server will report that a token is required
	}

	f.Close()

	return file
}

// UserTokenFile returns the default path of the user's token, or "" if there is no home directory.
func (r *Resolver) UserTokenFile() string { return r.userFile("token") }

// maxToken is the maximum length of a token in bytes.
const maxToken = 4096

// readToken reads a token from a file. warning is a message for the user, or "".
func readToken(file string) (token, warning string, err error) {
	failed := func(what string) error {
		return &failure.Error{Exit: failure.ExitAuth, Problem: failure.Problem{Code: "token_file", Field: "token-file", Message: file + ": " + what}}
	}

	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", failed(failure.FileReason(err))
	}

	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && isOpenToOthers(info.Mode()) {
		warning = fmt.Sprintf("warning: other users can read %s; run chmod 600 on it", file)
	}

	token = strings.TrimSpace(string(b))
	if !isToken(token) {
		return "", warning, failed("does not contain a token: a token is one word of printable ASCII")
	}

	return token, warning, nil
}

// isToken reports whether a text can be a token.
func isToken(t string) bool {
	return t != "" && len(t) <= maxToken && !strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' })
}

// Credential is the token of calls, with the users who can read it anyway.
type Credential struct {
	Token   string // "" means none
	Owners  []int  // users who already have the token: the owner of its file
	Warning string // a problem with its file
}

// ReadCredential returns the token of calls.
func (r *Resolver) ReadCredential(s *Settings) (c Credential, err error) {
	chosen, file := r.TokenSetting(s)
	if file.Value == "" {
		return Credential{Token: chosen.Value}, nil
	}

	if uid, ok := ownerOf(file.Value); ok {
		c.Owners = append(c.Owners, uid)
	}

	c.Token, c.Warning, err = readToken(file.Value)

	return c, err
}
