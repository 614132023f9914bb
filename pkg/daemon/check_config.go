package daemon

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/peercerts"
	"github.com/carillonhq/carillon/pkg/task"
)

// setting is a resulting setting and its origin.
type setting struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
	From  string          `json:"from"` // default, host, the file, a variable, or a flag
}

// configFaults lists the faults of a configuration.
type configFaults []error

// ExitCode returns 2, as for a wrong command line, because nothing was started.
func (configFaults) ExitCode() int { return 2 }

func (f configFaults) Error() string {
	var all []string
	for _, err := range f {
		all = append(all, err.Error())
	}
	return strings.Join(all, "; ")
}

// usualFile is the configuration file that the service uses.
const usualFile = "/etc/carillon/agent.yaml"

// checkConfig prints the settings that an agent with this file and these flags would
// have, with the origin of each and without secrets. It starts nothing. It writes the settings to out
// and warnings to notes. Its error lists all faults that can be found without contacting
// other hosts.
func checkConfig(out, notes io.Writer, file string, given *pflag.FlagSet) error {
	cfg, err := loadConfig(file, given)
	var faults configFaults
	if err != nil {
		faults = append(faults, err)
	} else if err := cfg.Validate(); err != nil {
		faults = append(faults, err)
	} else if s, err := cfg.securityOf(); err == nil {
		for _, warning := range slices.Concat(cfg.securityWarnings(s), cfg.proxyWarnings(), cfg.endpointWarnings()) {
			fmt.Fprintln(notes, "warning:", warning)
		}

		if cfg.hasOwnPeerCerts() && !cfg.makesPeerCA() && !peercerts.HasAny(cfg.DataDir) {
			fmt.Fprintln(notes, "warning:", cfg.joinTokenNeeded())
		}
	}

	settings, err := settingsOf(cfg, file, given)
	if err != nil {
		return configFaults{err} // loadConfig has found the same fault
	}

	faults = append(faults, filesFaults(settings)...)
	faults = append(faults, cfg.secretFaults()...)
	if err := checkWritable(cfg.DataDir); err != nil {
		faults = append(faults, err)
	}

	asJSON := false
	if f := given.Lookup("output"); f != nil {
		asJSON = f.Value.String() == "json"
	}

	// People look for the error, and would have to find it below all settings.
	if asJSON || len(faults) == 0 {
		if err := printSettings(out, settings, asJSON); err != nil {
			return err
		}
	}
	if len(faults) == 0 {
		return nil
	}

	if _, err := os.Stat(usualFile); file == "" && err == nil {
		faults = append(faults, fmt.Errorf("no file was read; did you mean --config %s?", usualFile))
	}

	return faults
}

// settingsOf returns the settings with their origins, in the order of the fields of Config.
func settingsOf(cfg Config, file string, given *pflag.FlagSet) ([]setting, error) {
	inFile := map[string]json.RawMessage{}

	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		if err := manifest.Document(file, b, &inFile); err != nil {
			return nil, err
		}
	}

	fields := reflect.ValueOf(cfg)
	var list []setting
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Tag.Get("json")
		value, err := json.Marshal(fields.Field(i).Interface())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}

		s := setting{Name: name, Value: value, From: "default"}
		if name == "name" || name == "slots" {
			s.From = "host" // the default depends on the host
		}

		flag := flagOf(name)

		if _, ok := inFile[name]; ok {
			s.From = file
		}

		if v := variableOf(flag); os.Getenv(v) != "" {
			s.From = v
		}

		if f := given.Lookup(flag); f != nil && f.Changed {
			s.From = "--" + flag
		}

		list = append(list, s)
	}

	return list, nil
}

// flagOf returns the name of the flag for a setting of the file.
func flagOf(field string) string {
	switch field {
	case "labels":
		return "label"
	case "roles":
		return "role"
	}

	return strings.ReplaceAll(field, "_", "-")
}

// variableOf returns the environment variable for a flag.
func variableOf(flag string) string {
	return "CARILLON_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// inURL matches a password in the URL of an endpoint, with or without a scheme.
var inURL = regexp.MustCompile(`("(?:[a-z]+://)?[^/@:"]*:)[^"]*@`)

// printSettings prints the settings as a table or as JSON. It hides passwords.
func printSettings(out io.Writer, settings []setting, asJSON bool) error {
	for i, s := range settings {
		settings[i].Value = inURL.ReplaceAll(s.Value, []byte("${1}(hidden)@"))
		if strings.HasSuffix(s.Name, "password") && string(s.Value) != `""` {
			settings[i].Value = json.RawMessage(`"(hidden)"`)
		}
	}

	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(settings)
	}

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tVALUE\tFROM")

	for _, s := range settings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.Name, plainJSON(s.Value), s.From)
	}

	return w.Flush()
}

// plainJSON formats a value on one line, as in YAML. An empty value is a dash.
func plainJSON(v json.RawMessage) string {
	var s string
	if json.Unmarshal(v, &s) == nil {
		return cmp.Or(strings.Join(strings.Fields(s), " "), "-")
	}
	if string(v) == "{}" || string(v) == "[]" {
		return "-"
	}

	return string(v)
}

// keyPairs lists the settings of certificates with those of their keys. caSettings
// name files with CAs, and secretFileSettings files with a secret in one line.
var (
	keyPairs           = [][2]string{{"tls_cert", "tls_key"}, {"etcd_cert", "etcd_key"}, {"etcd_peer_cert", "etcd_peer_key"}}
	caSettings         = []string{"tls_ca", "etcd_ca", "etcd_peer_ca"}
	secretFileSettings = []string{"etcd_password_file"}
)

// filesFaults reads all files that settings name and returns their faults.
func filesFaults(settings []setting) (faults configFaults) {
	path := func(name string) (p string) {
		for _, s := range settings {
			if s.Name == name {
				_ = json.Unmarshal(s.Value, &p) // all these settings are strings
			}
		}

		return p
	}

	fault := func(name string, err error) {
		faults = append(faults, task.Invalid(task.CodeBadValue, name, "%v", err))
	}

	for _, pair := range keyPairs {
		cert, key := path(pair[0]), path(pair[1])
		if cert == "" || key == "" {
			continue // Validate reports a missing one
		}

		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			fault(pair[0], fmt.Errorf("%s with %s: %w", cert, key, err))
		}
	}

	for _, name := range caSettings {
		if p := path(name); p == "" {
			continue
		} else if b, err := os.ReadFile(p); err != nil {
			fault(name, err)
		} else if !x509.NewCertPool().AppendCertsFromPEM(b) {
			fault(name, fmt.Errorf("%s has no certificate in PEM", p))
		}
	}

	for _, name := range secretFileSettings {
		if p := path(name); p == "" {
			continue
		} else if b, err := os.ReadFile(p); err != nil {
			fault(name, err)
		} else if strings.TrimSpace(string(b)) == "" {
			fault(name, fmt.Errorf("%s is empty", p))
		}
	}

	for _, cfg := range []Config{{SecretKeys: path("secret_keys")}, {Policy: path("policy")}} {
		if _, err := cfg.openHostFiles(zap.NewNop()); err != nil {
			faults = append(faults, err)
		}
	}

	return faults
}

// checkWritable returns an error if the data directory cannot be written to, or created if it does not exist.
func checkWritable(dir string) error {
	for at := dir; dir != ""; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if os.IsNotExist(err) && at != filepath.Dir(at) {
			continue
		}

		switch {
		case err != nil:
		case !info.IsDir():
			err = fmt.Errorf("%s is not a directory", at)
		default:
			if err = unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
				err = fmt.Errorf("%s: cannot be written to: %w", at, err)
			}
		}

		if err != nil {
			return task.Invalid(task.CodeBadValue, "data_dir", "%v", err)
		}

		return nil
	}

	return nil // Validate reports that data_dir is empty
}
