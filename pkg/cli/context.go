package cli

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// contextSpec is a cluster as its user named it. Files are absolute, of the home
// directory (~/), or beside the configuration.
type contextSpec struct {
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

// contextFile is the user's configuration.
type contextFile struct {
	Current  string                 `json:"current,omitempty"`
	Contexts map[string]contextSpec `json:"contexts,omitempty"`
}

// validate says what cannot be, by the field's path.
func (f contextFile) validate() error {
	for _, name := range slices.Sorted(maps.Keys(f.Contexts)) {
		if err := task.CheckName("contexts", name); err != nil {
			return err
		}
		if err := f.Contexts[name].validate(); err != nil {
			return task.Under("contexts."+name, err)
		}
	}
	switch _, ok := f.Contexts[f.Current]; {
	case f.Current == "" || ok:
	case len(f.Contexts) == 0:
		return task.Invalid(task.CodeBadValue, "current", "%s: there are no contexts", quote(f.Current))
	default:
		return task.NoneOf(task.CodeBadValue, "current", f.Current, slices.Sorted(maps.Keys(f.Contexts))...)
	}
	return nil
}

func (c contextSpec) validate() error {
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
		return task.Invalid(task.CodeBadValue, "token", "is no token, which is one word of printable ASCII")
	case c.Token != "" && c.TokenFile != "":
		return task.Invalid(task.CodeBadValue, "token", "excludes token_file")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return task.Invalid(task.CodeRequired, "", "cert_file and key_file need each other")
	}
	return nil
}

// settings are the user's configuration, read once, and the context that holds.
type settings struct {
	path    string // "" if there can be none
	there   bool
	file    contextFile
	context string // its name; "" if there is none
	by      string // what chose it
	contextSpec
}

// chosenBy is what chose a context or a value.
const (
	byDefault = "default"
	byFlag    = "--context"
	byEnv     = "CARILLON_CONTEXT"
)

// settings reads the configuration, and finds the context. What is wrong with it
// is the error of every command that would use it.
func (a *app) settings() (*settings, error) {
	if a.read != nil || a.readErr != nil {
		return a.read, a.readErr
	}
	a.read, a.readErr = a.readSettings()
	return a.read, a.readErr
}

func (a *app) readSettings() (*settings, error) {
	s := &settings{path: a.configPath()}
	var err error
	if s.file, s.there, err = readConfig(s.path); err != nil {
		return nil, err
	}
	switch {
	case a.context != "":
		s.context, s.by = a.context, byFlag
	case a.Env("CARILLON_CONTEXT") != "":
		s.context, s.by = a.Env("CARILLON_CONTEXT"), byEnv
	case s.file.Current != "":
		s.context, s.by = s.file.Current, s.path
	default:
		return s, nil
	}
	var known bool
	if s.contextSpec, known = s.file.Contexts[s.context]; !known {
		return nil, s.noContext(s.context)
	}
	return s, nil
}

// noContext is the error of a context that is not there.
func (s *settings) noContext(name string) error {
	names := slices.Sorted(maps.Keys(s.file.Contexts))
	f := notFound("context %s is not in %s", quote(name), first(s.path, "any file"))
	f.Field = "context"
	switch near := task.Nearest(name, names); {
	case near != "":
		return f.hinting("did you mean: %s", near)
	case len(names) > 0:
		return f.hinting("there are: %s", strings.Join(names, ", "))
	}
	return f.hinting("make one with: carillon config set %s server=https://…", name)
}

// configPath is where the configuration is, or would be; "" if there is no home.
func (a *app) configPath() string {
	return first(a.Env("CARILLON_CONFIG"), a.userFile("config.yaml"))
}

// userFile is a file in the user's configuration; "" if there is no home.
func (a *app) userFile(name string) string {
	return a.inUserDir("XDG_CONFIG_HOME", ".config", name)
}

func (a *app) inUserDir(variable, usual, name string) string {
	dir := a.Env(variable)
	if home := a.Env("HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, usual)
	}
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "carillon", name)
}

// maxConfig is how many bytes a configuration may have.
const maxConfig = 1 << 20

// readConfig reads a configuration; one that is not there is empty.
func readConfig(path string) (f contextFile, there bool, err error) {
	b, mode, err := readUserFile(path)
	if b == nil || err != nil {
		return f, false, err
	}
	if err := manifest.Checked(path, b, &f, func() error { return f.validate() }); err != nil {
		return f, true, err
	}
	secret := slices.ContainsFunc(slices.Collect(maps.Values(f.Contexts)), func(c contextSpec) bool { return c.Token != "" })
	if secret && mode&0o077 != 0 {
		return f, true, (&failure{exit: exitAuth, problem: problem{Code: "config_file", Message: path + ": holds a token, and can be read by others"}}).
			hinting("chmod 600 %s", path)
	}
	return f, true, nil
}

// readUserFile is a file's bytes, nil if it is not there, and who may read it.
func readUserFile(path string) ([]byte, os.FileMode, error) {
	failed := func(what string) error {
		return &failure{exit: exitUsage, problem: problem{Code: "config_file", Message: path + ": " + what}}
	}
	if path == "" {
		return nil, 0, nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, 0, nil
	case err != nil:
		return nil, 0, failed(reason(err))
	case !info.Mode().IsRegular():
		return nil, 0, failed("is no regular file")
	case info.Size() > maxConfig:
		return nil, 0, failed("has more than " + strconv.Itoa(maxConfig) + " bytes")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, failed(reason(err))
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxConfig))
	if err != nil {
		return nil, 0, failed(reason(err))
	}
	return append([]byte{}, b...), info.Mode().Perm(), nil
}

// beside is a file that the configuration names, as a path that can be opened.
func (s *settings) beside(a *app, file string) string {
	if rest, ok := strings.CutPrefix(file, "~/"); ok && a.Env("HOME") != "" {
		return filepath.Join(a.Env("HOME"), rest)
	}
	if file == "" || filepath.IsAbs(file) || s.path == "" {
		return file
	}
	return filepath.Join(filepath.Dir(s.path), file)
}

// inContext names the context in a question, so that nobody says yes in the wrong one.
func (a *app) inContext(question string) string {
	s, err := a.settings()
	if err != nil || s.context == "" {
		return question
	}
	return strings.TrimSuffix(question, "?") + " in context " + s.context + "?"
}
