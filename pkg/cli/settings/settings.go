// Package settings determines how a command reaches the server: its URL, a token, TLS files and a namespace. A
// flag takes precedence over the environment, which takes precedence over the user's configuration, a file of
// contexts. The package also changes that file.
//
// The configuration is read once. The credentials of a context are used only for that context's own server. The
// file is replaced atomically, and only its owner can read it. The package makes no connections and prints
// nothing.
package settings

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// Context is a cluster that the user has named. Paths are absolute, relative to the home directory (~/), or
// relative to the configuration file.
type Context struct {
	Server    string `json:"server,omitempty"`
	CAFile    string `json:"ca_file,omitempty"`
	CertFile  string `json:"cert_file,omitempty"`
	KeyFile   string `json:"key_file,omitempty"`
	TokenFile string `json:"token_file,omitempty"`
	Token     string `json:"token,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	ReadOnly  bool   `json:"read_only,omitempty"`
	Insecure  bool   `json:"insecure,omitempty"`
}

// File is the user's configuration file.
type File struct {
	Current  string             `json:"current,omitempty"`
	Contexts map[string]Context `json:"contexts,omitempty"`
}

// validate checks the whole file. Errors contain the path of the field.
func (f File) validate() error {
	for _, name := range slices.Sorted(maps.Keys(f.Contexts)) {
		if err := task.CheckName("contexts", name); err != nil {
			return err
		}
		if err := f.Contexts[name].Validate(); err != nil {
			return task.Under("contexts."+name, err)
		}
	}

	switch _, ok := f.Contexts[f.Current]; {
	case f.Current == "" || ok:
	case len(f.Contexts) == 0:
		return task.Invalid(task.CodeBadValue, "current", "%s: no contexts exist", task.Quote(f.Current))
	default:
		return task.NoneOf(task.CodeBadValue, "current", f.Current, slices.Sorted(maps.Keys(f.Contexts))...)
	}

	return nil
}

// Validate checks a context. Errors contain the name of the field.
func (c Context) Validate() error {
	if c.Server != "" {
		if _, err := client.New(client.Config{Server: c.Server}); err != nil {
			return err
		}
	}

	if c.Namespace != "" {
		if err := task.CheckName("namespace", c.Namespace); err != nil {
			return err
		}
	}

	switch {
	case c.Token != "" && !isToken(c.Token):
		return task.Invalid(task.CodeBadValue, "token", "is not a token: a token is one word of printable ASCII")
	case c.Token != "" && c.TokenFile != "":
		return task.Invalid(task.CodeBadValue, "token", "cannot be used together with token_file")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return task.Invalid(task.CodeRequired, "", "cert_file and key_file must be set together")
	}

	return nil
}

// Settings are the user's configuration and the current context.
type Settings struct {
	Path     string // "" if no home directory is known
	exists   bool
	File     File
	Name     string // the name of the context; "" if there is none
	ChosenBy string // what selected the context
	Context
}

// Origins of a context or a value.
const (
	ByDefault = "default"
	byFlag    = "--context"
	byEnv     = "CARILLON_CONTEXT"
)

// Resolver determines the settings of a command from its flags, the environment, and the user's configuration.
type Resolver struct {
	Env func(string) string

	ServerFlag    string
	InsecureFlag  bool
	NamespaceFlag string
	TokenFileFlag string
	ContextFlag   string
	CAFileFlag    string
	CertFileFlag  string
	KeyFileFlag   string

	hostTokenFile  string // replaces the constant hostTokenFile in tests
	HostSocketPath string // replaces HostSocket in tests

	read    *Settings // the cached result of Settings
	readErr error
}

// Settings reads the configuration and determines the context. An error is returned to every command that needs
// the configuration.
func (r *Resolver) Settings() (*Settings, error) {
	if r.read != nil || r.readErr != nil {
		return r.read, r.readErr
	}
	r.read, r.readErr = r.readSettings()
	return r.read, r.readErr
}

// readSettings implements Settings.
func (r *Resolver) readSettings() (*Settings, error) {
	s := &Settings{Path: r.Path()}
	var err error
	if s.File, s.exists, err = ReadFile(s.Path); err != nil {
		return nil, err
	}

	switch {
	case r.ContextFlag != "":
		s.Name, s.ChosenBy = r.ContextFlag, byFlag
	case r.Env("CARILLON_CONTEXT") != "":
		s.Name, s.ChosenBy = r.Env("CARILLON_CONTEXT"), byEnv
	case s.File.Current != "":
		s.Name, s.ChosenBy = s.File.Current, s.Path
	default:
		return s, nil
	}

	var known bool
	if s.Context, known = s.File.Contexts[s.Name]; !known {
		return nil, s.UnknownContext(s.Name)
	}

	return s, nil
}

// UnknownContext returns the error for a context that does not exist.
func (s *Settings) UnknownContext(name string) error {
	names := slices.Sorted(maps.Keys(s.File.Contexts))
	f := failure.NotFound("context %s is not in %s", task.Quote(name), cmp.Or(s.Path, "any file"))
	f.Field = "context"

	switch near := task.Nearest(name, names); {
	case near != "":
		return f.WithHint("did you mean: %s", near)
	case len(names) > 0:
		return f.WithHint("contexts: %s", strings.Join(names, ", "))
	}

	return f.WithHint("create one with: carillon config set %s server=https://…", name)
}

// Path returns the path of the configuration, whether it exists or not, or "" if there is no home directory.
func (r *Resolver) Path() string {
	return cmp.Or(r.Env("CARILLON_CONFIG"), r.userFile("config.yaml"))
}

// userFile returns the path of a file in the user's configuration directory, or "" if there is no home
// directory.
func (r *Resolver) userFile(name string) string {
	return r.UserDirFile(ConfigDir, name)
}

// ConfigDir and CacheDir are user directories. Each is the environment variable that overrides the usual directory of the system.
const (
	ConfigDir = "XDG_CONFIG_HOME"
	CacheDir  = "XDG_CACHE_HOME"
)

// UserDirFile returns the path of a file in the program's part of a user directory, or "" if there is no such directory.
func (r *Resolver) UserDirFile(dir, name string) string {
	path := r.Env(dir)
	if variable, below := usualDir(runtime.GOOS, dir); path == "" && r.Env(variable) != "" {
		path = filepath.Join(r.Env(variable), below)
	}

	if path == "" {
		return ""
	}

	return filepath.Join(path, "carillon", name)
}

// usualDir returns where a system has a user directory: below the directory that an environment variable names. It is as in
// os.UserConfigDir and os.UserCacheDir, which do not take another environment.
func usualDir(goos, dir string) (variable, below string) {
	config := dir == ConfigDir
	switch {
	case goos == "windows" && config:
		return "AppData", ""
	case goos == "windows":
		return "LocalAppData", ""
	case goos == "darwin" && config:
		return "HOME", "Library/Application Support"
	case goos == "darwin":
		return "HOME", "Library/Caches"
	case config:
		return "HOME", ".config"
	}

	return "HOME", ".cache"
}

// maxConfig is the maximum size of a configuration in bytes.
const maxConfig = 1 << 20

// ReadFile reads a configuration. A file that does not exist counts as empty.
func ReadFile(path string) (f File, there bool, err error) {
	b, mode, err := readFile(path)
	if b == nil || err != nil {
		return f, false, err
	}
	if err := manifest.Checked(path, b, &f, func() error { return f.validate() }); err != nil {
		return f, true, err
	}

	secret := slices.ContainsFunc(slices.Collect(maps.Values(f.Contexts)), func(c Context) bool { return c.Token != "" })
	if secret && isOpenToOthers(mode) {
		return f, true, (&failure.Error{Exit: failure.ExitAuth, Problem: failure.Problem{Code: "config_file", Message: path + ": contains a token, but other users can read it"}}).
			WithHint("chmod 600 %s", path)
	}

	return f, true, nil
}

// readFile returns the contents and the permissions of a file; the contents are nil if it does not exist.
func readFile(path string) ([]byte, os.FileMode, error) {
	failed := func(what string) error {
		return &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: "config_file", Message: path + ": " + what}}
	}

	if path == "" {
		return nil, 0, nil
	}

	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, 0, nil
	case err != nil:
		return nil, 0, failed(failure.FileReason(err))
	case !info.Mode().IsRegular():
		return nil, 0, failed("is not a regular file")
	case info.Size() > maxConfig:
		return nil, 0, failed("is larger than " + strconv.Itoa(maxConfig) + " bytes")
	}

	file, err := os.Open(path)
	if err != nil {
		return nil, 0, failed(failure.FileReason(err))
	}

	defer file.Close()

	b, err := io.ReadAll(io.LimitReader(file, maxConfig))
	if err != nil {
		return nil, 0, failed(failure.FileReason(err))
	}

	return append([]byte{}, b...), info.Mode().Perm(), nil
}

// resolvePath converts a path in the configuration to a path that can be opened.
func (s *Settings) resolvePath(r *Resolver, file string) string {
	home := cmp.Or(r.Env("HOME"), r.Env("USERPROFILE")) // of Windows
	if rest, ok := strings.CutPrefix(file, "~/"); ok && home != "" {
		return filepath.Join(home, rest)
	}
	if file == "" || filepath.IsAbs(file) || s.Path == "" {
		return file
	}

	return filepath.Join(filepath.Dir(s.Path), file)
}

// FieldNames returns the names of a context's fields in their order.
func FieldNames() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Context]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}

	return names
}
